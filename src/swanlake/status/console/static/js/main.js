// The shell: navigation, the live stream, the theme. A page is a class with mount(), show(document).

import { get } from "./lib/api.js";
import { h, replace, update } from "./lib/dom.js";
import { icon } from "./lib/icons.js";
import { Live } from "./lib/live.js";
import { describe } from "./lib/dialog.js";
import { Lake } from "./pages/lake.js";
import { Overview } from "./pages/overview.js";
import { Pipeline } from "./pages/pipeline.js";
import { Queue } from "./pages/queue.js";
import { Sql } from "./pages/sql.js";
import { Statements } from "./pages/statements.js";

const PAGES = [
  { path: "/", topic: "overview", title: "Overview", page: Overview },
  { path: "/queue", topic: "queue", title: "Queue", page: Queue },
  { path: "/statements", topic: "statements", title: "Statements", page: Statements },
  { path: "/lake", topic: "lake", title: "Lake", page: Lake },
  { path: "/pipeline", topic: "pipeline", title: "Pipeline", page: Pipeline },
  { path: "/sql", topic: "sql", title: "SQL", page: Sql },
];
const LIVE_TEXTS = { live: "Live", polling: "Every 5 s", lost: "No connection" };

const main = document.getElementById("main");
let current = null;
let me = null;
let badges = {};

const live = new Live(
  (document, failure) => (failure ? current?.page.fail?.(failure) : current?.page.show(document)),
  (server) => showServer(server),
  (state) => {
    const line = document.getElementById("live");
    line.className = `live is-${state === "polling" ? "live" : state}`;
    const text = document.getElementById("live-text");
    if (text.textContent !== LIVE_TEXTS[state]) text.textContent = LIVE_TEXTS[state];
  },
);

/** Goes to a page of the console; parameters are part of its address. */
export function go(href, { replace: isReplaced = false } = {}) {
  history[isReplaced ? "replaceState" : "pushState"](null, "", href);
  open(false);
}

function open(isFirst) {
  const wanted = PAGES.find((each) => each.path === location.pathname) ?? PAGES[0];
  const parameters = Object.fromEntries(new URLSearchParams(location.search));
  showNav(wanted);
  document.title = `${wanted.title} · SwanLake`;
  if (current?.entry !== wanted) {
    current?.page.leave?.();
    replace(main);
    current = { entry: wanted, page: new wanted.page({ me, go, refresh: () => live.start() }) };
    current.page.mount(main);
    if (!isFirst) {
      main.focus({ preventScroll: true });
      scrollTo(0, 0);
    }
  }
  current.page.parameters?.(parameters);
  live.follow(wanted.topic, parameters);
}

function showNav(wanted) {
  update(
    document.getElementById("nav"),
    PAGES.map((each) =>
      h(
        "a",
        { href: each.path, "data-link": true, "data-key": each.path, "aria-current": each === wanted ? "page" : undefined },
        icon(each.topic),
        h("span", {}, each.title),
        badges[each.topic] && h("span", { class: `badge ${badges[each.topic].kind}`, title: badges[each.topic].title }, badges[each.topic].text),
      ),
    ),
  );
}

function showServer(server) {
  badges = {};
  if (server.reasons.length) badges.overview = { text: "!", kind: "bad", title: server.reasons.join(" ") };
  if (server.dead_letters) badges.queue = { text: server.dead_letters, kind: "bad", title: "dead letters" };
  else if (server.paused) badges.queue = { text: "II", kind: "warn", title: "paused" };
  if (server.running) badges.statements = { text: server.running, kind: "info", title: "running" };
  document.getElementById("version").textContent = server.version;
  if (current) showNav(current.entry);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-link]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
addEventListener("popstate", () => open(false));

const theme = document.getElementById("theme");
const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
function showTheme() {
  theme.textContent = isDark() ? "Light theme" : "Dark theme";
}
theme.onclick = () => {
  const wanted = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = wanted;
  localStorage.setItem("swanlake.theme", wanted);
  showTheme();
};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
showTheme();

try {
  me = await get("/api/me");
  replace(document.getElementById("who"), h("b", {}, me.name), ` · ${me.role}`);
  document.getElementById("logout").hidden = !me.has_login;
  open(true);
} catch (failure) {
  replace(main, h("p", { class: "notice bad" }, describe(failure)));
}
