// The page's three views: the key, the choice of a scenario, the talk. The key and the talk in progress live in this
// tab's session storage and nowhere else.

import { Api, Problem, freshKey } from "./api.js";
import { byId, el } from "./dom.js";
import { Talk, known } from "./talk.js";

const KEY = "sparring.key";
const TALK = "sparring.talk";
const wide = matchMedia("(min-width: 60rem)");

let api = null;
let talk = null;
let drawing = null;

function show(view) {
  for (const id of ["welcome", "choose", "talk"]) byId(id).hidden = id !== view;
  document.body.dataset.view = view;
  byId("version").hidden = view !== "talk";
  byId("change-key").hidden = view === "welcome";
}

function askForKey(problem = null) {
  show("welcome");
  byId("key-problem").textContent = problem ? `${problem.title} ${problem.advice}` : "";
  byId("key").setAttribute("aria-invalid", String(problem !== null));
  byId("key").focus();
}

async function enter(key) {
  api = new Api(key);
  const { scenarios } = await api.scenarios();
  sessionStorage.setItem(KEY, key);
  byId("key").value = "";
  const saved = JSON.parse(sessionStorage.getItem(TALK) ?? "null");
  if (saved && known(saved.drawn?.scenario)) return takeUp(saved, (one) => one.resume(), scenarios);
  choose(scenarios);
}

function choose(scenarios) {
  const cards = scenarios.filter((scenario) => known(scenario.name)).map(({ name, title, about }) =>
    el("li", {},
      el("button", { class: "scenario", type: "button", "data-scenario": name, onclick: () => begin(name) },
        el("img", { src: `/page/${name}.svg`, width: 96, height: 56, alt: "" }),
        el("span", { class: "scenario-title" }, title), el("span", { class: "scenario-about" }, about),
        el("span", { class: "scenario-go", "aria-hidden": "true" }, "Draw a card"))));
  byId("scenarios").replaceChildren(...cards);
  byId("choose-problem").textContent = "";
  show("choose");
  byId("choose-title").focus({ preventScroll: true });
}

async function toChoice() {
  talk?.stop();
  talk = null;
  sessionStorage.removeItem(TALK);
  try {
    choose((await api.scenarios()).scenarios);
  } catch (problem) {
    failed(problem);
  }
}

async function begin(name) {
  // One draw at a time, and the same key until it is answered: a second click is the same request.
  if (drawing?.running) return;
  drawing = drawing?.name === name ? drawing : { name, key: freshKey() };
  drawing.running = true;
  byId("choose-problem").textContent = "";
  try {
    const drawn = await api.draw(name, drawing.key);
    drawing = null;
    await takeUp({ drawn, draft: "", pending: null }, (one) => one.start());
  } catch (problem) {
    if (drawing) drawing.running = false;
    failed(problem);
  }
}

async function takeUp(saved, open, scenarios = null) {
  talk?.stop();
  sessionStorage.setItem(TALK, JSON.stringify(saved));
  talk = new Talk(api, saved, {
    save: (changed) => sessionStorage.setItem(TALK, JSON.stringify(changed)),
    unauthorised: askForKey,
    again: begin,
    leave: toChoice,
  });
  byId("card").open = wide.matches;
  show("talk");
  byId("talk-title").focus({ preventScroll: true });
  try {
    await open(talk);
  } catch (problem) {
    if (problem.code !== "conversation_not_found" || !scenarios) throw problem;
    sessionStorage.removeItem(TALK);
    choose(scenarios);
  }
}

function failed(problem) {
  if (!(problem instanceof Problem)) throw problem;
  if (problem.status === 401 || problem.status === 403) return askForKey(problem);
  if (byId("choose").hidden) show("choose");
  byId("choose-problem").textContent = `${problem.title} Try again in a moment. ${problem.detail}`;
}

byId("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const key = byId("key").value.trim();
  if (!key) return askForKey({ title: "An API key is needed.", advice: "" });
  try {
    await enter(key);
  } catch (problem) {
    askForKey(problem instanceof Problem ? problem : new Problem({}));
  }
});
byId("change-key").addEventListener("click", () => {
  sessionStorage.removeItem(KEY);
  askForKey();
});
wide.addEventListener("change", () => (byId("card").open = wide.matches));

const kept = sessionStorage.getItem(KEY);
if (kept === null) askForKey();
else enter(kept).catch((problem) => askForKey(problem instanceof Problem ? problem : new Problem({})));
