// Builds elements, and updates a part of the page in place.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "path", "line", "rect", "g", "text", "circle", "polyline", "title"]);

/** An element: h("td", {class: "num", onclick: f}, "7", other). Empty children are left out. */
export function h(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(parent, children) {
  for (const child of children) {
    if (child === undefined || child === null || child === false || child === "") continue;
    if (Array.isArray(child)) append(parent, child);
    else parent.append(child instanceof Node ? child : String(child));
  }
}

/** Makes the children of an element those that are given; what is equal stays as it is.
 *
 * Elements with a data-key are matched by it, others by their place. So the focus, a selection and
 * an open <details> survive an update. An element with data-keep is left alone once it exists.
 */
export function update(parent, ...children) {
  const fragment = document.createDocumentFragment();
  append(fragment, children);
  reconcile(parent, fragment);
}

function reconcile(parent, source) {
  const keyed = new Map();
  for (const child of parent.childNodes) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let place = parent.firstChild;
  for (const wanted of [...source.childNodes]) {
    const key = wanted.dataset?.key;
    let match = key ? keyed.get(key) : place;
    if (!key) while (match && match.dataset?.key && keyed.has(match.dataset.key)) match = match.nextSibling;
    if (match && match.nodeName === wanted.nodeName) {
      if (key) keyed.delete(key);
      if (match === place) place = place.nextSibling;
      else parent.insertBefore(match, place);
      patch(match, wanted);
    } else parent.insertBefore(wanted, place);
  }
  while (place) {
    const next = place.nextSibling;
    place.remove();
    place = next;
  }
}

const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "ontoggle", "onkeydown"];

function patch(element, wanted) {
  if (element.nodeType !== Node.ELEMENT_NODE) {
    if (element.data !== wanted.data) element.data = wanted.data;
    return;
  }
  for (const name of HANDLERS) if (element[name] !== wanted[name]) element[name] = wanted[name];
  if (element.hasAttribute("data-keep")) return;
  for (const { name } of [...element.attributes]) {
    // The user opens and closes <details>.
    if (!wanted.hasAttribute(name) && !(name === "open" && element.nodeName === "DETAILS")) element.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (element.getAttribute(name) !== value) element.setAttribute(name, value);
  }
  reconcile(element, wanted);
}

/** Replaces the content of an element, without a look at what it was. */
export function replace(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}
