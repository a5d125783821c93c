// One answer: its text with a colour per forward, and its figures.

import { drawHistogram } from "./histogram.js";

const COLOURS = 6;
const NEAR_END = 60; // pixels from the end within which the text is kept in view

export class Pane {
  /** @param {HTMLElement} host where the pane goes  @param {string} name shown as its title */
  constructor(host, name) {
    this.element = document.getElementById("pane-template").content.firstElementChild.cloneNode(true);
    this.output = this.element.querySelector(".output");
    this.bars = this.element.querySelector(".bars");
    host.append(this.element);
    this.rename(name);
    this.clear();
  }

  rename(name) {
    this.name = name;
    this.element.dataset.method = name;
    this.element.querySelector(".name").textContent = name;
    this.output.setAttribute("aria-label", `Answer of ${name}`);
  }

  clear() {
    this.text = "";
    this.tokens = this.steps = this.decoded = 0;
    this.spans = new Map();
    this.firstAt = this.lastAt = this.timings = null;
    this.finishReason = null;
    this.output.textContent = "";
    this.output.dataset.placeholder = "The answer appears here.";
    this.state("idle", "");
    this.#show();
  }

  start() {
    this.clear();
    this.output.dataset.placeholder = "Reading the prompt…";
    this.output.setAttribute("aria-busy", "true");
    this.state("running", "running");
  }

  /** Take in one choice of a chunk. */
  add(choice) {
    const text = choice.delta?.content ?? choice.text ?? "";
    for (const span of choice.spans ?? []) this.#count(span);
    if (text) this.#append(text, choice.spans?.at(-1) ?? 0);
    this.timings = choice.timings ?? this.timings;
    this.finishReason = choice.finish_reason ?? this.finishReason;
    this.#show();
  }

  finish() {
    const reasons = { stop: "finished", length: "out of tokens" };
    this.state("done", reasons[this.finishReason] ?? "finished");
    this.#settle("No text.");
  }

  stopped() {
    this.state("stopped", "stopped");
    this.#settle("Stopped.");
  }

  fail(message) {
    this.state("failed", "failed");
    this.#settle("");
    const line = document.createElement("span");
    line.className = "error";
    line.textContent = message;
    this.output.append(line);
  }

  state(name, label) {
    this.element.dataset.state = name;
    this.element.querySelector(".state").textContent = label;
  }

  /** Tokens per decode forward; the prefill's token counts in neither. */
  get tau() {
    return this.steps > 1 ? this.decoded / (this.steps - 1) : null;
  }

  /** Tokens per second: the server's figure at the end, the page's own clock until then. */
  get speed() {
    if (this.timings) return this.timings.tokens_per_second || null;
    const seconds = (this.lastAt - this.firstAt) / 1000;
    return this.decoded && seconds > 0 ? this.decoded / seconds : null;
  }

  #settle(placeholder) {
    this.output.removeAttribute("aria-busy");
    this.output.dataset.placeholder = placeholder;
  }

  #count(span) {
    const now = performance.now();
    this.firstAt ??= now;
    this.lastAt = now;
    this.tokens += span;
    this.steps += 1;
    if (this.steps === 1) return;
    this.decoded += span;
    this.spans.set(span, (this.spans.get(span) ?? 0) + 1);
  }

  #append(text, span) {
    this.text += text;
    const follow = this.output.scrollHeight - this.output.scrollTop - this.output.clientHeight < NEAR_END;
    const piece = document.createElement("span");
    piece.className = "span";
    piece.textContent = text;
    piece.dataset.colour = this.steps % COLOURS;
    piece.dataset.tip = `${span} ${span === 1 ? "token" : "tokens"} · ${this.steps === 1 ? "prefill" : `forward ${this.steps - 1}`}`;
    this.output.append(piece);
    if (follow) this.output.scrollTop = this.output.scrollHeight;
  }

  #show() {
    const figures = {
      tau: this.tau?.toFixed(2),
      speed: this.speed?.toFixed(1),
      tokens: this.tokens || null,
      forwards: this.steps > 0 ? this.steps - 1 : null,
    };
    for (const [name, value] of Object.entries(figures)) {
      this.element.querySelector(`[data-figure="${name}"]`).textContent = value ?? "–";
    }
    drawHistogram(this.bars, this.spans);
  }
}
