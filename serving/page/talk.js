// One negotiation on the screen: the conversation, the moves, and the outcome. Typed text is never lost: a message that
// the service refused goes back into the field, one whose fate is unknown can only be sent again as it was.

import { Problem, freshKey } from "./api.js";
import { DealOrNoDeal } from "./deal.js";
import { byId, el, facts } from "./dom.js";
import { Log } from "./log.js";
import { parse, preview } from "./moves.js";
import { Telesales } from "./telesales.js";

const TABLES = { telesales: Telesales, "deal-or-no-deal": DealOrNoDeal };
const ENDED = {
  agreed: "Both sides agreed",
  walked_away: "A side walked away",
  turn_limit: "The talk ran out of turns",
  statements_differ: "The stated shares differ",
  abandoned: "Nobody spoke for too long",
};

const LOOK_AGAIN_MS = 3000;

export const known = (scenario) => Object.hasOwn(TABLES, scenario);

export class Talk {
  #busy = false;
  #closed = false;
  #stopped = false;
  #table = null;
  #used = new Set();
  #log = new Log(byId("log"));

  // `saved` is {drawn, draft, pending}; `hooks` are save(saved), unauthorised(problem), again(scenario), leave().
  constructor(api, saved, hooks) {
    this.api = api;
    this.saved = saved;
    this.hooks = hooks;
    this.id = saved.drawn.conversation.id;
    this.#begin();
    this.#wire();
  }

  // Shows a conversation that was just drawn.
  start() {
    const { conversation } = this.saved.drawn;
    if (conversation.message) this.#agentSays(conversation.message);
    this.#settle(conversation.state);
  }

  // Shows a conversation as the service keeps it: after a reload, or when it is unclear what was taken.
  async resume() {
    // Nothing may be sent meanwhile: it would be drawn over.
    this.#working(true);
    try {
      const record = await this.api.show(this.id);
      if (this.#stopped) return;
      this.#begin();
      for (const turn of record.turns) {
        if (turn.role === "agent") this.#agentSays(turn);
        else this.#iSay(turn.text, true);
      }
      this.#settle(record.state);
    } finally {
      this.#working(false);
    }
    if (this.saved.pending && !this.#closed) {
      this.#hold(new Problem({ code: "no_answer", detail: "The page was closed before the answer came." }));
    }
  }

  // From here on another talk has the screen.
  stop() {
    this.#stopped = true;
    clearInterval(this.countdown);
    clearTimeout(this.glance);
  }

  #begin() {
    const { scenario, public: publicPart, card, conversation, first_speaker: first } = this.saved.drawn;
    this.#table = new TABLES[scenario](publicPart, card);
    this.#log.clear();
    if (first === "counterpart") this.#log.remark("You speak first. Say what you are looking for.");
    byId("card-body").replaceChildren(...this.#table.renderCard());
    byId("card-brief").textContent = this.#table.brief;
    byId("adapter").textContent = conversation.adapter;
    byId("version").hidden = false;
    byId("text").value = this.saved.draft ?? "";
    byId("outcome").hidden = true;
    byId("outcome").replaceChildren();
    byId("dock").hidden = false;
    this.#calm();
    this.#closeOffer();
  }

  #wire() {
    const text = byId("text");
    byId("composer").onsubmit = (event) => {
      event.preventDefault();
      if (text.value.trim()) this.#send(text.value.trim());
      else text.focus();
    };
    text.onkeydown = (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("composer").requestSubmit();
    };
    text.oninput = () => this.#keep({ draft: text.value });
    byId("accept").onclick = () => this.#send(this.#table.accept(this.#words()));
    byId("offer-toggle").onclick = () => (byId("offer").hidden ? this.#openOffer() : (this.#closeOffer(), this.#update()));
    byId("walk").onclick = () => {
      const dialog = byId("walk-dialog");
      dialog.returnValue = "stay";
      dialog.onclose = () => dialog.returnValue === "leave" && this.#send(this.#table.quit(this.#words()));
      dialog.showModal();
    };
  }

  #words = () => byId("text").value.trim();

  #keep(change) {
    Object.assign(this.saved, change);
    this.hooks.save(this.saved);
  }

  #send(message) {
    if (this.#busy) return;
    if (this.saved.pending?.uncertain) return byId("again")?.focus();
    // The same words again are the same message: a retry, which counts once.
    const key = this.saved.pending?.message === message ? this.saved.pending.key : freshKey();
    this.#keep({ pending: { message, key, typed: this.#words() }, draft: "" });
    byId("text").value = "";
    this.#deliver();
  }

  async #deliver() {
    const { pending } = this.saved;
    const again = pending.uncertain;
    // Until the answer is here it is unknown whether the message was taken; a reload must then repeat it.
    this.#keep({ pending: { ...pending, uncertain: true } });
    this.#working(true);
    this.#calm();
    this.#closeOffer();
    const mine = this.#log.provisional("me", parse(pending.message).words || "…");
    const theirs = this.#log.provisional("agent", "");
    try {
      const answer = await this.api.send(this.id, pending.message, pending.key, (written) => theirs.show(preview(written)));
      if (this.#stopped) return;
      this.#keep({ pending: null });
      this.#working(false);
      if (again) return this.#reload();
      mine.remove();
      theirs.remove();
      this.#iSay(pending.message);
      if (answer.reply) this.#agentSays(answer.reply);
      else if (answer.state === "open") this.#log.remark("The agent has not answered yet.");
      this.#settle(answer.state);
      this.#refocus();
    } catch (error) {
      if (this.#stopped) return;
      theirs.remove();
      this.#working(false);
      const problem = error instanceof Problem ? error : new Problem({ detail: String(error) });
      // A retry that is refused for now says nothing about the first try: only a refusal for good does.
      if (problem.refused && (!again || problem.forGood)) {
        mine.remove();
        this.#giveBack(pending);
      }
      if (problem.status === 401 || problem.status === 403) return this.hooks.unauthorised(problem);
      if (problem.code === "conversation_closed") {
        this.#keep({ pending: null });
        return this.#reload();
      }
      this.#hold(problem);
    }
  }

  #reload() {
    this.resume().catch((problem) => this.#warn(problem, { label: "Show the talk", act: () => this.#reload() }));
  }

  // The service did not take it: what was typed goes back into the field, before anything typed since.
  #giveBack(pending) {
    const text = byId("text");
    text.value = [pending.typed, text.value].filter(Boolean).join("\n");
    this.#keep({ pending: { ...pending, uncertain: false }, draft: text.value });
  }

  #hold(problem) {
    if (!this.saved.pending) return this.#warn(problem, { label: "Show the talk", act: () => this.#reload() });
    const resend = () => {
      if (byId("text").value.trim() === this.saved.pending.typed) {
        byId("text").value = "";
        this.#keep({ draft: "" });
      }
      this.#deliver();
    };
    this.#warn(problem, problem.code === "conversation_not_found" ? null : { label: "Send again", act: resend });
    this.#update();
  }

  #warn(problem, remedy = null) {
    clearInterval(this.countdown);
    const parts = [el("b", {}, problem.title ?? "Something went wrong."), el("span", {}, problem.advice ?? "")];
    if (problem.detail) parts.push(el("small", {}, problem.detail));
    if (remedy) parts.push(this.#waiting(remedy, problem.retryAfter));
    if (problem.code === "conversation_not_found") {
      parts.push(el("button", { class: "secondary", type: "button", onclick: () => this.hooks.leave() }, "Start a new one"));
    }
    byId("alert").replaceChildren(...parts);
    byId("alert").hidden = false;
  }

  // A button that opens when the time that the service asked for has passed.
  #waiting({ label, act }, seconds) {
    const button = el("button", { class: "secondary", type: "button", id: "again", onclick: act }, label);
    const until = Date.now() + seconds * 1000;
    const tick = () => {
      const left = Math.ceil((until - Date.now()) / 1000);
      button.disabled = left > 0;
      button.textContent = left > 0 ? `${label} in ${left} s` : label;
      if (left <= 0) clearInterval(this.countdown);
    };
    this.countdown = setInterval(tick, 250);
    tick();
    return button;
  }

  #calm() {
    clearInterval(this.countdown);
    byId("alert").hidden = true;
    byId("alert").replaceChildren();
  }

  #iSay(text, recorded = false) {
    this.#used.add(parse(text).words);
    this.#log.add("me", this.#table.hear("me", text, null, recorded));
  }

  #agentSays(reply) {
    this.#log.add("agent", this.#table.hear("agent", reply.text, reply.move, false));
  }

  #working(busy) {
    this.#busy = busy;
    this.#update();
  }

  #update() {
    const stating = this.#table.stating;
    const label = this.#table.acceptLabel;
    byId("log").setAttribute("aria-busy", String(this.#busy));
    byId("accept").hidden = !label;
    byId("accept").textContent = label ?? "";
    byId("offer-toggle").hidden = byId("composer").hidden = stating;
    byId("offer-toggle").textContent = this.#table.offerLabel;
    byId("walk").textContent = stating ? "No deal" : "Walk away";
    for (const id of ["accept", "offer-toggle", "walk", "send"]) byId(id).setAttribute("aria-disabled", String(this.#busy));
    const open = stating || this.#busy || !byId("offer").hidden ? [] : this.#table.suggestions().filter((said) => !this.#used.has(said));
    byId("suggestions").replaceChildren(...open.map((said) => el("button", { type: "button", onclick: () => this.#suggest(said) }, said)));
    if (stating && !this.#busy && byId("offer").hidden) this.#openOffer(false);
  }

  #suggest(said) {
    const text = byId("text");
    text.value = [text.value.trim(), said].filter(Boolean).join(" ");
    this.#keep({ draft: text.value });
    text.focus();
  }

  #openOffer(focus = true) {
    if (this.#busy) return;
    byId("offer").replaceChildren(this.#table.renderOffer(this.#words, (message) => this.#send(message)));
    byId("offer").hidden = false;
    byId("offer-toggle").setAttribute("aria-expanded", "true");
    byId("suggestions").replaceChildren();
    if (focus) byId("offer").querySelector("input:checked, button").focus();
    this.#log.toEnd();
  }

  #closeOffer() {
    byId("offer").hidden = true;
    byId("offer").replaceChildren();
    byId("offer-toggle").setAttribute("aria-expanded", "false");
  }

  // After a move its button may be gone: the keyboard goes on where the next thing is to be done.
  #refocus() {
    if (this.#closed) return;
    if (this.#table.stating) byId("offer").querySelector("button").focus();
    else if (matchMedia("(pointer: fine)").matches) byId("text").focus();
    else byId("log").focus({ preventScroll: true });
  }

  #settle(state) {
    this.#closed = state === "closed";
    this.#update();
    if (state === "awaiting_approval") {
      this.#log.remark("A colleague looks at the offer. The answer appears here by itself.");
      this.#lookAgain();
    }
    if (this.#closed) this.#finish();
  }

  // Until the colleague has decided; what was decided is then shown like after a reload.
  #lookAgain() {
    clearTimeout(this.glance);
    this.glance = setTimeout(async () => {
      const record = await this.api.show(this.id).catch(() => null);
      if (this.#stopped) return;
      if (record && record.state !== "awaiting_approval") this.#reload();
      else this.#lookAgain();
    }, LOOK_AGAIN_MS);
  }

  async #finish() {
    byId("dock").hidden = true;
    const section = byId("outcome");
    section.hidden = false;
    try {
      this.#showOutcome(section, await this.api.outcome(this.id));
    } catch (problem) {
      if (problem.status === 401) return this.hooks.unauthorised(problem);
      section.replaceChildren(
        el("h2", { id: "outcome-title" }, "The talk has ended."),
        el("p", {}, `${problem.title} The result is safe with the service.`),
        this.#waiting({ label: "Show the result", act: () => this.#finish() }, problem.retryAfter));
    }
  }

  #showOutcome(section, result) {
    const { headline, figure, detail, rows } = this.#table.outcome(result);
    const title = el("h2", { id: "outcome-title", tabindex: "-1" }, headline);
    section.classList.toggle("agreed", result.agreed);
    section.replaceChildren(
      title,
      el("p", { class: "figure" }, figure),
      el("p", { class: "detail" }, detail),
      facts([...rows, ["How it ended", ENDED[result.reason] ?? result.reason], ["Agent version", result.adapter]]),
      el("div", { class: "outcome-actions" },
        el("button", { class: "primary", type: "button", onclick: () => this.hooks.again(result.scenario) }, "Negotiate again"),
        el("button", { class: "secondary", type: "button", onclick: () => this.hooks.leave() }, "Choose another")));
    title.focus({ preventScroll: true });
    section.scrollIntoView({ block: "nearest" });
    this.#log.toEnd();
  }
}
