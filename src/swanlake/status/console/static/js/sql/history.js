// The statements that were run in this browser.

const KEY = "swanlake.history";
const MAX_ENTRIES = 200;
const MAX_TEXT = 20_000;

/** The entries, newest first: {sql, at, seconds, rows, error}. */
export function entries() {
  try {
    return JSON.parse(localStorage.getItem(KEY)) ?? [];
  } catch {
    return [];
  }
}

/** Adds an entry; a repeated text moves to the top. */
export function add(entry) {
  if (entry.sql.length > MAX_TEXT) return;
  const others = entries().filter((each) => each.sql !== entry.sql);
  localStorage.setItem(KEY, JSON.stringify([entry, ...others].slice(0, MAX_ENTRIES)));
}

export function clear() {
  localStorage.removeItem(KEY);
}
