// One turn on the page: the message, what happens meanwhile, the provisional text, and the reply as it is on record.

import { announce, copy, counted, el, harmless, shownJson, when } from "./dom.js";
import { inWords } from "./api.js";
import { codeBlock, markdown, settled } from "./markdown.js";

const STEPS = {
  classify: "Reading your message",
  synthesize: "Writing",
  verify: "Checking the reply",
  tool_call: "Using a tool",
  consolidate: "Learning",
};

export class TurnView {
  /**
   * message: what the user said, "" where the turn continues after an answer about a tool
   * onWhy, onAgain: called with this view
   */
  constructor({ message, at, isResumed = false, onWhy = null, onAgain = null }) {
    Object.assign(this, { id: null, message, isResumed, onWhy, onAgain });
    this.response = null;
    this.isDone = false;
    this.isStopping = false;
    this.tools = new Map();
    this.clientCalls = [];
    this.withdrawals = el("div");
    this.steps = el("ul", { class: "steps", "aria-label": "What was done" });
    this.text = el("div", { class: "text", dir: "auto" });
    this.approvals = el("div", { class: "approvals" });
    this.state = el("p", { class: "state" });
    this.foot = el("footer");
    this.reply = el("div", { class: "reply" }, this.withdrawals, this.steps, this.text, this.approvals, this.state, this.foot);
    this.element = el(
      "article",
      { class: "turn", "aria-label": isResumed ? "Reply after a tool call" : "Message and reply" },
      !isResumed && el("div", { class: "said" }, el("span", { class: "unseen" }, "You said"), el("p", { class: "bubble", dir: "auto" }, message), at && when(at)),
      this.reply,
    );
    this.restart();
  }

  bind(turnId) {
    this.id = turnId;
    this.element.dataset.turn = turnId;
  }

  /** Drops provisional text, because a stream begins from the start. */
  restart() {
    if (this.isDone) return;
    this.provisional = "";
    this.settled = 0;
    this.text.replaceChildren();
    this.text.classList.remove("provisional");
    this.tools.clear();
    this.steps.replaceChildren();
    this.say("Sending");
  }

  /** Says what happens now. */
  say(words) {
    if (this.isDone || this.state.dataset.words === words) return;
    this.state.dataset.words = words;
    this.state.replaceChildren(el("span", { class: "dots", "aria-hidden": "true" }), words);
  }

  step(kind) {
    if (!this.isStopping) this.say(STEPS[kind] ?? "Working");
  }

  /** Takes an update of the message's own stream. */
  update({ name, data }) {
    // The events of the session may tell the reply before this stream has told all that led to it.
    if (name.startsWith("tool_")) this.tool(name, data);
    else if (this.isDone) return;
    else if (name === "work_order_planned") this.step(data.wo_type);
    else if (name === "text") this.write(data.text);
    else if (name === "text_retracted") this.withdraw();
  }

  write(text) {
    if (!this.provisional) this.hasTool = false;
    this.provisional += text;
    this.text.classList.add("provisional");
    if (this.isDue) return;
    this.isDue = true;
    requestAnimationFrame(() => {
      this.isDue = false;
      if (!this.isDone) this.draw();
    });
  }

  /** Draws the provisional text: what is settled stays as it is, so that a selection in it stays too. */
  draw() {
    this.tail?.forEach((each) => each.remove());
    const rest = this.provisional.slice(this.settled), end = settled(rest);
    if (end) this.text.append(markdown(rest.slice(0, end)));
    this.settled += end;
    const made = markdown(rest.slice(end));
    this.tail = [...made.childNodes];
    this.text.append(made);
  }

  withdraw() {
    if (!this.provisional) return;
    const text = this.provisional, before = this.hasTool;
    Object.assign(this, { provisional: "", settled: 0, tail: null });
    this.text.replaceChildren();
    this.text.classList.remove("provisional");
    this.withdrawals.append(
      el("details", { class: "withdrawn" }, el("summary", {}, before ? "Said on the way, no part of the reply" : "A draft was withdrawn and does not count"), el(before ? "p" : "del", { dir: "auto" }, text)),
    );
    if (!before) this.say("Writing again");
  }

  tool(name, data) {
    this.hasTool = true;
    const key = `${data.wo_id} ${data.call}`;
    const line = this.tools.get(key) ?? this.toolLine(key, data);
    if (name === "tool_progress") {
      if (this.isDone) return;
      line.progress.hidden = false;
      if (data.total > 0) Object.assign(line.progress, { max: data.total, value: data.value ?? 0 });
      if (data.message) line.words.textContent = harmless(`: ${data.message}`);
      return;
    }
    if (name !== "tool_ran") return;
    line.element.classList.add(data.error === null ? "done" : "failed");
    line.verb.textContent = data.error === null ? "Used " : "Could not use ";
    line.progress.hidden = true;
    line.words.textContent = "";
    line.more.append(codeBlock(shownJson(data.arguments), "arguments"), codeBlock(shownJson(data.error ?? data.result), data.error ? "error" : "result"));
    line.more.hidden = false;
  }

  toolLine(key, data) {
    const verb = el("span", {}, "Using "), words = el("span", { dir: "auto" });
    const progress = el("progress", { hidden: true, "aria-label": `Progress of ${data.tool_id}` });
    const more = el("details", { hidden: true }, el("summary", {}, "Details"));
    const element = el("li", {}, el("span", { class: "tool-words" }, verb, el("code", {}, data.tool_id), words), progress, more);
    this.steps.append(element);
    const line = { element, verb, words, progress, more };
    this.tools.set(key, line);
    return line;
  }

  /** Says that the connection was lost, or the server is busy, and that this is tried again. */
  wait(problem) {
    this.say(`${inWords(problem)} Trying again`);
  }

  /** Shows the reply as it is on record. */
  complete(result, { isLive }) {
    if (this.isDone) return;
    this.end();
    this.response = result.response || this.wordless();
    if (!result.pending_approval?.length) this.text.replaceChildren(result.response ? markdown(result.response) : el("p", { class: "pale" }, this.response));
    else this.text.replaceChildren(el("p", {}, "I need your approval before I continue. You can send other messages in the meantime."));
    if (result.degraded && result.error) this.state.replaceChildren(el("span", { class: "badge warn" }, `Not done as asked: ${result.error.message}`));
    const told = el("button", { type: "button", class: "quiet", "aria-label": "Copy the reply" }, "Copy");
    told.addEventListener("click", () => copy(result.response, this.text, told));
    if (result.response) this.foot.append(told);
    if (this.onWhy && this.id) this.foot.append(el("button", { type: "button", class: "quiet", on: { click: () => this.onWhy(this) } }, "Why this reply?"));
    const cost = result.cost_summary;
    if (cost) this.foot.append(el("span", { class: "cost" }, counted((cost.input_tokens ?? 0) + (cost.output_tokens ?? 0), "token")));
    if (isLive) announce(`Reply: ${this.text.textContent}`);
  }

  /** What stands in the place of a reply without text. */
  wordless() {
    return this.clientCalls.length ? `Asked the client to run ${this.clientCalls.join(", ")}.` : "This reply has no text.";
  }

  /** Shows that there is no reply, and why. */
  abort(words, { isLive }) {
    if (this.isDone) return;
    this.end();
    this.text.replaceChildren();
    this.state.replaceChildren(el("span", { class: "badge" }, words));
    if (this.onAgain && !this.isResumed) this.foot.append(el("button", { type: "button", class: "quiet", on: { click: () => this.onAgain(this) } }, "Try again"));
    if (isLive) announce(words);
  }

  fail(problem) {
    this.abort(inWords(problem), { isLive: true });
  }

  end() {
    this.isDone = true;
    this.text.classList.remove("provisional");
    this.state.replaceChildren();
    for (const line of this.steps.querySelectorAll("progress")) line.hidden = true;
  }
}

/** A message or a reply of a conversation that another program had. */
export function importedLine({ role, text, speaker, said_at: at }) {
  const isReply = role === "assistant", body = el("div", { class: isReply ? "text" : "bubble", dir: "auto" });
  body.append(isReply ? markdown(text ?? "") : harmless(text ?? ""));
  const note = el("p", { class: "pale" }, `Imported${speaker ? `, ${speaker}` : ""}`, at && ", ", at && when(at));
  return el("article", { class: "turn" }, el("div", { class: isReply ? "reply" : "said" }, body, note));
}
