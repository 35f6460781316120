// Builds elements. Text only ever becomes text nodes: there is no way here to write markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Attributes that begin with `on` are listeners; null and false leave one out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(shown(String(child))));
  }
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

// Characters that change the direction or cannot be seen would make one text look like another.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function shown(text) {
  return text.replace(HIDDEN, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A link inside the console. */
export function link(address, ...children) {
  return h("a", { href: address }, ...children);
}

/** The address of a view; undefined, null and empty parameters are left out. */
export function address(parts, parameters = {}) {
  const path = "/" + parts.map((each) => encodeURIComponent(each)).join("/");
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

/** Tells users of screen readers. */
export function say(text) {
  document.getElementById("said").textContent = text;
}
