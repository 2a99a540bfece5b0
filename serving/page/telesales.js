// The vehicle scenario as the customer sees it: the card, the stock, offers in words, and what a deal was worth.

import { capitalised, el, facts, number } from "./dom.js";
import { parse, write } from "./moves.js";

const MINOR = 100;
const GRID = 250;
// For the eye only: messages keep to the terms that the agent was trained on.
const called = (name) => name.replace("suv", "SUV");

export class Telesales {
  stating = false;
  offerLabel = "Make an offer";
  #standing = null;
  #lastBid = null;

  constructor(publicPart, card) {
    this.vehicles = publicPart.vehicles;
    this.card = card;
    this.budget = card.budget / MINOR;
  }

  get brief() {
    return `${capitalised(called(this.#need))}, at most ${number(this.budget)}`;
  }

  get #need() {
    return [this.card.fuel, this.card.body].filter(Boolean).join(" ");
  }

  renderCard() {
    const wishes = [
      ["You need", capitalised(called(this.#need)), this.card.fuel ? "" : "any fuel"],
      ["Your budget", number(this.budget), "unknown to the agent"],
    ];
    if (this.card.objection) wishes.push(["Ask about", capitalised(this.card.objection)]);
    wishes.push(["Your patience", `${this.card.patience} replies`, "then you would leave"]);
    const rows = this.vehicles.map((vehicle) =>
      el("tr", { class: this.#suits(vehicle) ? "suits" : "" },
        el("th", { scope: "row" }, capitalised(called(vehicle.id)),
          el("small", {}, vehicle.body === vehicle.id ? vehicle.fuel : `${vehicle.fuel} ${called(vehicle.body)}`)),
        el("td", {}, number(vehicle.list_price / MINOR))));
    const table = el("table", { class: "stock" },
      el("caption", {}, "On offer, list price"), el("tbody", {}, ...rows));
    return [facts(wishes), table];
  }

  suggestions() {
    const said = [`I need ${/^[aeiou]/.test(this.#need) ? "an" : "a"} ${this.#need}.`];
    if (this.card.objection) said.push(`What about the ${this.card.objection}?`);
    return [...said, "That is too much for me."];
  }

  // Takes a message into account. Whether a move of the agent counts is what the service says (`binding`).
  hear(by, text, binding) {
    const { words, move, attempted } = parse(text);
    const counts = by === "agent" ? binding : move && this.#legal(move) ? move : null;
    if (!counts) return { words, voided: attempted };
    if (counts.kind === "offer") {
      const [id, price] = [counts.arguments[0], Number(counts.arguments[1])];
      this.#standing = { by, id, price };
      if (by === "me") this.#lastBid = price;
      const verb = by === "agent" ? "Offer" : "Your offer";
      return { words, chip: verb, terms: this.#terms(), note: by === "agent" ? this.#against(id, price) : "" };
    }
    if (counts.kind === "accept") return { words, chip: by === "agent" ? "The agent accepts" : "You accept", terms: this.#terms() };
    return { words, chip: by === "agent" ? "The agent walked away" : "You walked away" };
  }

  get acceptLabel() {
    return this.#standing?.by === "agent" ? `Accept ${this.#terms()}` : null;
  }

  accept = (words) => write(words || "Good, I take it.", "accept");
  quit = (words) => write(words || "No, thank you. Goodbye.", "quit");

  // The form for an offer. `send(message)` is called with words and move; `words()` are what the person typed.
  renderOffer(words, send) {
    const wanted = this.#standing?.id ?? (this.vehicles.find((vehicle) => this.#suits(vehicle)) ?? this.vehicles[0]).id;
    const choices = this.vehicles.map((vehicle) =>
      el("label", { class: "choice" },
        el("input", { type: "radio", name: "vehicle", value: vehicle.id, checked: vehicle.id === wanted }),
        el("span", {}, capitalised(called(vehicle.id)))));
    const price = el("input", {
      id: "price", type: "text", inputmode: "numeric", autocomplete: "off", "aria-describedby": "price-note",
    });
    price.value = String(this.#opening(wanted));
    const note = el("output", { id: "price-note", class: "note", for: "price" });
    const chosen = () => form.querySelector("input[name=vehicle]:checked").value;
    const amount = () => (/^\d{1,7}$/.test(price.value.trim()) ? Number(price.value) : 0);
    const say = () => (note.textContent = amount() ? this.#against(chosen(), amount()) : "A whole number, please.");
    const step = (by) => () => {
      price.value = String(Math.max(GRID, amount() + by));
      say();
    };
    const form = el("form", { class: "offer-form", oninput: say, onsubmit: (event) => {
      event.preventDefault();
      if (!amount()) return price.focus();
      send(write(words() || `I could pay ${amount()} for the ${chosen()}.`, "offer", chosen(), amount()));
    } },
      el("fieldset", {}, el("legend", {}, "Vehicle"), el("div", { class: "choices" }, ...choices)),
      el("div", { class: "price" }, el("label", { for: "price" }, "Your price"),
        el("div", { class: "stepper" },
          el("button", { type: "button", class: "secondary", "aria-label": `${GRID} less`, onclick: step(-GRID) }, "−"),
          price,
          el("button", { type: "button", class: "secondary", "aria-label": `${GRID} more`, onclick: step(GRID) }, "+"))),
      note,
      el("button", { class: "primary", type: "submit" }, "Send offer"));
    say();
    return form;
  }

  outcome(result) {
    if (!result.agreed) return { headline: "No deal", figure: "You keep your money", detail: "and still need a vehicle.", rows: [] };
    const [id, price] = [result.agreement.arguments[0], Number(result.agreement.arguments[1])];
    const vehicle = this.vehicles.find((one) => one.id === id);
    const suits = this.#suits(vehicle);
    const saved = this.budget - price;
    const rows = [
      ["You bought", capitalised(called(id))],
      ["You pay", number(price), `list price ${number(vehicle.list_price / MINOR)}`],
      ["Your budget", number(this.budget)],
      ["Meets your needs", suits ? "Yes" : "No"],
    ];
    if (!suits) return { headline: "Deal", figure: `${number(price)} for the wrong vehicle`, detail: `You needed: ${called(this.#need)}.`, rows };
    const figure = saved < 0 ? `${number(-saved)} over your budget` : saved ? `${number(saved)} under your budget` : "Exactly your budget";
    const detail = saved < 0 ? "The deal costs you more than you had to spend." : "That is what the deal was worth to you.";
    return { headline: "Deal", figure, detail, rows };
  }

  #terms() {
    return this.#standing ? `${called(this.#standing.id)} for ${number(this.#standing.price)}` : "the offer";
  }

  #suits(vehicle) {
    return vehicle.body === this.card.body && (!this.card.fuel || vehicle.fuel === this.card.fuel);
  }

  #legal(move) {
    if (move.kind === "offer") {
      const [id, price] = move.arguments;
      return move.arguments.length === 2 && this.vehicles.some((one) => one.id === id) && /^\d{1,7}$/.test(price) && Number(price) > 0;
    }
    if (move.arguments.length) return false;
    return move.kind === "quit" || (move.kind === "accept" && this.#standing?.by === "agent");
  }

  #against(id, price) {
    if (!this.#suits(this.vehicles.find((one) => one.id === id))) return "not what you need";
    const left = this.budget - price;
    return left < 0 ? `${number(-left)} over your budget` : left ? `${number(left)} under your budget` : "exactly your budget";
  }

  #opening(id) {
    if (this.#lastBid) return this.#lastBid + GRID;
    const list = this.vehicles.find((one) => one.id === id).list_price / MINOR;
    return Math.max(GRID, Math.floor((Math.min(this.budget, list) * 0.85) / GRID) * GRID);
  }
}
