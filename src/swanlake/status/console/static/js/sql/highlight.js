// Colours of SQL: splits a text into tokens, without knowing what it means.

const KEYWORDS = new Set(
  ("add all alter analyze and any as asc at attach begin between by call case cast checkpoint column commit copy create cross database default delete " +
    "desc describe detach distinct drop else end except exists explain false filter from full group having if ilike in inner insert intersect into is " +
    "join key kill lateral left like limit macro merge natural not null nulls offset on or order outer over partition partitioned pivot pragma primary " +
    "qualify query references rename replace returning right rollback row rows sample schema select semi session set show sorted table temp temporary " +
    "then to transaction true union unpivot update use using values view when where window with within").split(" "),
);
const TOKEN = /(--[^\n]*|\/\*[\s\S]*?(?:\*\/|$))|('(?:[^']|'')*(?:'|$)|\$\$[\s\S]*?(?:\$\$|$))|("(?:[^"]|"")*(?:"|$))|(\b\d+(?:\.\d+)?(?:e[+-]?\d+)?\b)|([A-Za-z_][A-Za-z_0-9]*)/gi;
const KINDS = ["comment", "string", "name", "number"];

/** The tokens of a text as [kind, text]; kind is empty for what has no colour. */
export function tokens(text) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(TOKEN)) {
    if (match.index > end) found.push(["", text.slice(end, match.index)]);
    const place = match.slice(1, 5).findIndex((group) => group !== undefined);
    const kind = place >= 0 ? KINDS[place] : KEYWORDS.has(match[0].toLowerCase()) ? "keyword" : "";
    found.push([kind, match[0]]);
    end = match.index + match[0].length;
  }
  if (end < text.length) found.push(["", text.slice(end)]);
  return found;
}
