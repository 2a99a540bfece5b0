// Deal-or-NoDeal as one side sees it: the pool and its values, splits in words, and what a deal was worth.
// Shares here are always the person's own. The service shows a proposal as `[yours B H B]`: what is left for us.

import { capitalised, el, facts } from "./dom.js";
import { parse, write } from "./moves.js";

const ITEMS = ["book", "hat", "ball"];
const ALL = 10;

export class DealOrNoDeal {
  stating = false;
  offerLabel = "Propose a split";
  #standing = null;
  #proposed = null;

  constructor(publicPart, card) {
    this.counts = publicPart.counts;
    this.values = card.values;
  }

  get brief() {
    return ITEMS.map((item, i) => `${item} ${this.values[i]}`).join(" · ");
  }

  renderCard() {
    const rows = ITEMS.map((item, i) =>
      el("tr", {}, el("th", { scope: "row" }, capitalised(plural(item, 2))),
        el("td", {}, String(this.counts[i])), el("td", {}, String(this.values[i])),
        el("td", {}, String(this.counts[i] * this.values[i]))));
    return [
      facts([["All of it is worth", `${ALL} points`, "to each side, by its own values"]]),
      el("table", { class: "stock wide" },
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "To share"), el("th", { scope: "col" }, "Count"),
          el("th", { scope: "col" }, "Each"), el("th", { scope: "col" }, "All"))),
        el("tbody", {}, ...rows)),
      el("p", { class: "help" }, "Once a side agrees, both state their share unseen. The deal holds if the two add up."),
    ];
  }

  suggestions() {
    const most = this.values.indexOf(Math.max(...this.values));
    const idle = this.values.indexOf(0);
    const said = [`I would like ${inWords(this.counts.map((count, i) => (i === most ? count : 0)))}.`];
    if (idle >= 0) said.push(`You can have the ${plural(ITEMS[idle], 2)}.`);
    return [...said, "Can you give me more?"];
  }

  // `recorded`: as the service keeps it, where our own proposal reads as the agent saw it.
  hear(by, text, binding, recorded = false) {
    const { words, move, attempted } = parse(text);
    if (by === "agent" && text.trim() === "[selection]") return this.#state("", "The agent has stated its share");
    if (by === "me" && text.trim() === "[selection]") return this.#state("", "You stated your share");
    const share = move && this.#shareOf(by, move);
    if (this.stating && move?.kind === "select" && (share || move.arguments.join() === "none")) {
      return this.#state(words, share ? "You state your share" : "You state", share ? inWords(share) : "no deal");
    }
    if (this.stating || !move) return { words, voided: attempted };
    const proposal = by === "agent" || recorded ? "yours" : "propose";
    if (move.kind === proposal && share) {
      this.#standing = { by, share };
      if (by === "me") this.#proposed = share;
      const whose = by === "agent" ? "Offer, your share" : "Your proposal, your share";
      return { words, chip: whose, terms: inWords(share), note: `${this.#worth(share)} of ${ALL} points for you` };
    }
    if (move.arguments.length) return { words, voided: true };
    if (move.kind === "agree") {
      this.stating = true;
      return { words, chip: by === "agent" ? "The agent agrees" : "You agree" };
    }
    if (move.kind === "quit") return { words, chip: by === "agent" ? "The agent walked away" : "You walked away" };
    return { words, voided: true };
  }

  get acceptLabel() {
    if (this.stating || this.#standing?.by !== "agent") return null;
    return `Agree: ${inWords(this.#standing.share)} for you`;
  }

  accept = (words) => write(words || "Deal.", "agree");
  quit = (words) => (this.stating ? write("", "select", "none") : write(words || "No deal then.", "quit"));

  renderOffer(words, send) {
    const wished = this.counts.map((count, i) => (this.values[i] ? count : 0));
    const share = [...((this.stating ? this.#standing?.share : this.#proposed) ?? wished)];
    const note = el("output", { class: "note" });
    const say = () => {
      const rest = this.counts.map((count, i) => count - share[i]);
      note.textContent = `${this.#worth(share)} of ${ALL} points for you; the agent gets ${inWords(rest)}`;
    };
    const rows = ITEMS.map((item, i) => {
      const shown = el("output", { "aria-label": capitalised(plural(item, 2)) });
      const [less, more] = [-1, 1].map((by) => el("button", {
        type: "button", class: "secondary", "aria-label": `One ${item} ${by < 0 ? "less" : "more"}`,
        onclick: () => {
          share[i] = Math.min(this.counts[i], Math.max(0, share[i] + by));
          show();
          say();
        },
      }, by < 0 ? "−" : "+"));
      const show = () => {
        shown.textContent = `${share[i]} of ${this.counts[i]}`;
        // Not `disabled`: that would throw the keyboard's focus away.
        less.setAttribute("aria-disabled", String(share[i] === 0));
        more.setAttribute("aria-disabled", String(share[i] === this.counts[i]));
      };
      show();
      return el("div", { class: "item", role: "group", "aria-label": capitalised(plural(item, 2)) },
        el("span", { class: "item-name" }, capitalised(plural(item, 2)), el("small", {}, `${this.values[i]} each`)),
        el("div", { class: "stepper" }, less, shown, more));
    });
    const submit = (event) => {
      event.preventDefault();
      if (this.stating) send(write("", "select", ...share));
      else send(write(words() || `I would like ${inWords(share)}.`, "propose", ...share));
    };
    say();
    return el("form", { class: "offer-form split", onsubmit: submit },
      el("h2", {}, this.stating ? "You agreed. What is your share?" : "Your share"),
      this.stating ? el("p", { class: "help" }, "The agent states its own unseen. Both must add up to the pool.") : null,
      el("div", { class: "items" }, ...rows), note,
      el("button", { class: "primary", type: "submit" }, this.stating ? "State this share" : "Send proposal"));
  }

  outcome(result) {
    if (!result.agreed) {
      const differ = result.reason === "statements_differ";
      return { headline: "No deal", figure: `0 of ${ALL} points`,
        detail: differ ? "The two stated shares do not add up, so nothing was agreed." : "Without a deal nobody gets anything.", rows: [] };
    }
    // The agreement is the agent's own statement: the rest is ours.
    const share = this.counts.map((count, i) => count - Number(result.agreement.arguments[i]));
    return {
      headline: "Deal",
      figure: `${result.points} of ${ALL} points`,
      detail: "That is what the deal was worth to you.",
      rows: [
        ["You get", capitalised(inWords(share))],
        ["The agent gets", capitalised(inWords(this.counts.map((count, i) => count - share[i])))],
        ["Room for more", result.pareto_optimal ? "None" : "Some",
          result.pareto_optimal ? "no other split is better for one and as good for the other"
            : "another split is better for one and as good for the other"],
      ],
    };
  }

  #state(words, chip, terms) {
    this.stating = true;
    return { words, chip, terms };
  }

  #worth(share) {
    return share.reduce((sum, count, i) => sum + count * this.values[i], 0);
  }

  // The person's own share that a move names, or null if it does not fit the pool.
  #shareOf(by, move) {
    const named = move.arguments.map((argument) => (/^\d{1,2}$/.test(argument) ? Number(argument) : NaN));
    if (named.length !== ITEMS.length || !named.every((count, i) => count <= this.counts[i])) return null;
    const others = (move.kind === "yours") !== (by === "agent");
    return others ? named.map((count, i) => this.counts[i] - count) : named;
  }
}

const plural = (item, count) => (count === 1 ? item : `${item}s`);

function inWords(share) {
  const parts = ITEMS.map((item, i) => (share[i] ? `${share[i]} ${plural(item, share[i])}` : "")).filter(Boolean);
  return parts.length ? parts.join(" and ") : "nothing";
}
