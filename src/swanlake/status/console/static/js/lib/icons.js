// Icons of the navigation, drawn as lines.

import { h } from "./dom.js";

const PATHS = {
  overview: ["M3 13h4v7H3z", "M10 4h4v16h-4z", "M17 9h4v11h-4z"],
  queue: ["M4 5h16v4H4z", "M4 11.500h16v4H4z", "M7 19h10"],
  statements: ["M5 6l5 6-5 6", "M12 18h8"],
  lake: ["M3 8c3-2.500 6-2.500 9 0s6 2.500 9 0", "M3 13c3-2.500 6-2.500 9 0s6 2.500 9 0", "M3 18c3-2.500 6-2.500 9 0s6 2.500 9 0"],
  pipeline: ["M4 6h5v5H4z", "M15 13h5v5h-5z", "M9 8.500h4.500a2 2 0 0 1 2 2V13"],
  sql: ["M5 5h14v14H5z", "M5 10h14", "M10 10v9"],
};

export function icon(name) {
  return h(
    "svg",
    { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": 1.8, "stroke-linejoin": "round", "stroke-linecap": "round", "aria-hidden": "true" },
    PATHS[name].map((d) => h("path", { d })),
  );
}
