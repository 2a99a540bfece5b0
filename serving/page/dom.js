// Builds elements. Text only ever goes in as text nodes: nothing that a model or the service said is read as markup.

export const byId = (id) => document.getElementById(id);

export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function facts(pairs) {
  const list = el("dl", { class: "facts" });
  for (const [label, value, note] of pairs) {
    list.append(el("div", {}, el("dt", {}, label), el("dd", {}, value, note ? el("small", {}, note) : null)));
  }
  return list;
}

export const number = (value) => new Intl.NumberFormat("en").format(value);

export const capitalised = (text) => text.charAt(0).toUpperCase() + text.slice(1);
