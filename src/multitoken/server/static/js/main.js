// The page: a form, and two panes that answer it.

import { ApiError, apiKey, getMethods, stream } from "./api.js";
import { OptionForm } from "./options.js";
import { Pane } from "./pane.js";
import * as settings from "./settings.js";
import { installTip } from "./tip.js";

const byId = (id) => document.getElementById(id);
const form = byId("form");
const stored = settings.load();
const optionsOf = stored.options ?? {}; // by method
const turns = []; // of the conversation, before the prompt
let methods = new Map();
let running = null; // AbortController

const options = new OptionForm(byId("options"), remember);
const panes = { plain: new Pane(byId("panes"), "plain"), chosen: new Pane(byId("panes"), "…") };

// -- form ------------------------------------------------------------------------------------------------------------

function remember() {
  // While another method is being chosen, the fields are still those of the one before.
  if (options.method) optionsOf[options.method] = options.values();
  byId("options-count").textContent = Object.keys(options.values()).length || "";
  settings.save({ form: settings.fromForm(form), options: optionsOf });
}

function showMode() {
  document.body.dataset.mode = form.elements.mode.value;
}

function showMethod() {
  const method = methods.get(form.elements.method.value);
  if (!method) return;
  byId("method-summary").textContent = method.summary;
  options.show(method.name, method.options, optionsOf[method.name]);
  // An answer that is still shown keeps the name of the method that gave it.
  if (panes.chosen.element.dataset.state === "idle") panes.chosen.rename(method.name);
  remember();
}

/** Body of a request, without the method. */
function requestBody() {
  const field = (name) => form.elements[name].value;
  const numbers = {};
  for (const name of ["temperature", "max_tokens", "top_p", "top_k", "min_p", "seed"]) {
    if (field(name) !== "") numbers[name] = Number(field(name));
  }
  // Both panes draw with the same seed, so that they have to agree.
  numbers.seed ??= Math.floor(Math.random() * 2 ** 32);
  const body = { ...numbers, spans: true, timings: true };
  if (field("stop")) body.stop = field("stop");
  if (field("mode") === "text") return { path: "/v1/completions", body: { ...body, prompt: field("prompt") } };
  const system = field("system") ? [{ role: "system", content: field("system") }] : [];
  const messages = [...system, ...turns, { role: "user", content: field("prompt") }];
  return { path: "/v1/chat/completions", body: { ...body, messages } };
}

// -- running ---------------------------------------------------------------------------------------------------------

async function run() {
  if (running) return;
  const prompt = form.elements.prompt;
  if (!prompt.value) {
    prompt.focus();
    return;
  }
  clearFaults();
  const { path, body } = requestBody();
  const name = form.elements.method.value;
  const chosen = { ...body, method: name, method_options: options.values() };
  const plain = { ...body, method: "plain" };
  panes.chosen.rename(name);
  running = new AbortController();
  setRunning(true);
  verdict("Each colour is one forward pass: all tokens in it were committed at once.");
  panes.chosen.clear();
  try {
    if (form.elements.turns.checked) {
      await answer(panes.plain, path, plain);
      if (!running.signal.aborted) await answer(panes.chosen, path, chosen);
    } else {
      await Promise.all([answer(panes.plain, path, plain), answer(panes.chosen, path, chosen)]);
    }
  } finally {
    running = null;
    setRunning(false);
  }
  compare();
}

async function answer(pane, path, body) {
  const { signal } = running;
  pane.start();
  try {
    for await (const chunk of stream(path, body, signal)) {
      for (const choice of chunk.choices) pane.add(choice);
    }
    pane.finish();
  } catch (error) {
    if (signal.aborted) pane.stopped();
    else {
      pane.fail(error.message);
      if (error instanceof ApiError) showFault(error);
    }
  }
}

function stop() {
  running?.abort();
}

function setRunning(on) {
  byId("run").disabled = on;
  byId("stop").disabled = !on;
  byId("keep").disabled = on || panes.chosen.element.dataset.state !== "done";
}

/** Say what the two answers have in common. */
function compare() {
  const { plain, chosen } = panes;
  byId("keep").disabled = chosen.element.dataset.state !== "done";
  if (plain.element.dataset.state !== "done" || chosen.element.dataset.state !== "done") return;
  const lossless = methods.get(chosen.name)?.lossless;
  const same = plain.text === chosen.text;
  const agreement = same ? "The same text, character for character." : lossless
    ? "The texts differ: at half precision a near-tie may fall either way."
    : `The texts differ: ${chosen.name} does not verify every token.`;
  const parts = [strong(agreement)];
  if (chosen.tau) {
    parts.push(` ${chosen.name} took ${chosen.steps - 1} forwards, plain ${plain.steps - 1}`);
    const faster = chosen.speed && plain.speed ? chosen.speed / plain.speed : null;
    const alone = form.elements.turns.checked;
    parts.push(faster && alone ? `, at ${faster.toFixed(2)} times its tokens per second.` : ".");
  }
  verdict(...parts);
}

function strong(text) {
  const element = document.createElement("strong");
  element.textContent = text;
  return element;
}

function verdict(...parts) {
  byId("verdict").replaceChildren(...parts);
}

// -- faults ----------------------------------------------------------------------------------------------------------

function clearFaults() {
  byId("notice").hidden = true;
  for (const field of form.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
}

function showFault(error) {
  if (error.status === 401) askForKey();
  const field = error.param && form.querySelector(`[name="${CSS.escape(error.param)}"]`);
  if (!field) return;
  field.setAttribute("aria-invalid", "true");
  field.closest("details")?.setAttribute("open", "");
}

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = false;
}

// -- conversation ----------------------------------------------------------------------------------------------------

function keepTurn() {
  turns.push({ role: "user", content: form.elements.prompt.value }, { role: "assistant", content: panes.chosen.text });
  form.elements.prompt.value = "";
  panes.plain.clear();
  panes.chosen.clear();
  byId("keep").disabled = true;
  showTurns();
  form.elements.prompt.focus();
}

function forgetTurns() {
  turns.length = 0;
  showTurns();
}

function showTurns() {
  const items = turns.map(({ role, content }) => {
    const item = document.createElement("li");
    item.className = role;
    item.dir = "auto";
    item.textContent = content;
    return item;
  });
  byId("conversation").replaceChildren(...items);
  byId("conversation").hidden = byId("forget").hidden = !turns.length;
  byId("conversation").scrollTop = byId("conversation").scrollHeight;
}

// -- key and theme ---------------------------------------------------------------------------------------------------

function askForKey() {
  byId("key").value = apiKey.get();
  if (!byId("key-dialog").open) byId("key-dialog").showModal();
}

function switchTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("multitoken-theme", theme);
}

// -- start -----------------------------------------------------------------------------------------------------------

async function start() {
  let told;
  try {
    told = await getMethods();
  } catch (error) {
    if (error.status === 401) askForKey();
    notice(`The server's methods cannot be read: ${error.message}.`);
    return;
  }
  byId("notice").hidden = true;
  byId("model").textContent = told.model;
  methods = new Map(told.methods.map((method) => [method.name, method]));
  const select = form.elements.method;
  select.replaceChildren(...told.methods.map(({ name }) => new Option(name, name)));
  // Plain stands on the left anyway.
  select.value = told.default === "plain" ? (told.methods.find(({ name }) => name !== "plain")?.name ?? "plain") : told.default;
  settings.toForm(form, stored.form ?? {});
  if (!methods.has(select.value)) select.value = told.default;
  if (!told.chat) {
    form.elements.mode.value = "text";
    form.querySelector('[name="mode"][value="chat"]').disabled = true;
  }
  byId("system-box").open = Boolean(form.elements.system.value);
  showMode();
  showMethod();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
form.addEventListener("input", remember);
for (const radio of form.querySelectorAll('[name="mode"]')) radio.addEventListener("change", showMode);
form.elements.method.addEventListener("change", showMethod);
byId("stop").addEventListener("click", stop);
byId("keep").addEventListener("click", keepTurn);
byId("forget").addEventListener("click", forgetTurns);
byId("theme-button").addEventListener("click", switchTheme);
byId("key-button").addEventListener("click", askForKey);
byId("key-dialog").addEventListener("close", () => {
  if (byId("key-dialog").returnValue !== "save") return;
  apiKey.set(byId("key").value);
  start();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    run();
  } else if (event.key === "Escape" && running) stop();
});
installTip(byId("tip"));
start();
