// The conversation on the screen. A message that is still under way is shown, but kept out of the accessible tree: only
// whole messages are read out.

import { capitalised, el } from "./dom.js";

const WHO = { me: "You", agent: "Agent" };

export class Log {
  constructor(node) {
    this.node = node;
  }

  clear() {
    this.node.replaceChildren();
  }

  add(by, { words, chip, terms, note, voided }) {
    const line = el("div", { class: `turn ${by}` }, el("span", { class: "hidden-visually" }, `${WHO[by]}: `));
    if (words) line.append(el("p", { class: "words" }, words));
    if (chip) line.append(chipOf(chip, terms, note));
    if (voided) {
      const why = by === "agent" ? "The offer in this message does not count." : "Your message holds no valid move.";
      line.append(el("p", { class: "void" }, why));
    }
    if (!words && !chip && !voided) line.append(el("p", { class: "words silent" }, "says nothing"));
    this.#append(line);
  }

  remark(text) {
    this.#append(el("p", { class: "remark" }, text));
  }

  // A message under way: `show(text)` replaces its words (dots while there are none), `remove()` takes it away.
  provisional(by, words) {
    const said = el("p", { class: "words" });
    const line = el("div", { class: `turn ${by} provisional`, "aria-hidden": "true" }, said);
    const show = (text) => {
      line.classList.toggle("typing", !text);
      said.textContent = text;
      this.toEnd();
    };
    this.#append(line);
    show(words);
    return { show, remove: () => line.remove() };
  }

  toEnd() {
    this.node.scrollTop = this.node.scrollHeight;
  }

  #append(line) {
    this.node.append(line);
    this.toEnd();
  }
}

function chipOf(chip, terms, note) {
  const pause = () => el("i", { class: "hidden-visually" }, ": ");
  return el("p", { class: "chip" }, el(terms ? "span" : "b", {}, chip),
    terms ? el("b", {}, pause(), capitalised(terms)) : null, note ? el("small", {}, pause(), note) : null);
}
