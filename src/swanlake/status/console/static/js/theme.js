// Runs before the first paint, so that a page never shows the other theme first.
{
  const theme = localStorage.getItem("swanlake.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
