// One conversation: its turns are what its event stream tells, which is resumed by number, so nothing is lost or doubled.
// The stream of a message's own request only adds what is not on record: provisional text, and the progress of tools.

import { ask, events, pause, Problem, uniqueKey } from "./api.js";
import { ApprovalCard, ClientCallCard } from "./approvals.js";
import { el } from "./dom.js";
import { importedLine, TurnView } from "./turn.js";

const MOST_TRIES = 12;

export class Conversation {
  /**
   * sessionId: the session; null: it begins with the first message
   * agent: the agent class of a new session
   * hooks: {mayRead, mayAnswer, silenceMs, changed, connected, disconnected, failed, why}
   */
  constructor(sessionId, agent, hooks) {
    Object.assign(this, { sessionId, agent, hooks });
    this.element = el("div", { class: "turns" });
    this.turns = new Map();
    this.cards = new Map();
    this.goals = new Map();
    this.drafts = new Set();
    this.last = 0;
    this.isLive = false;
    this.isEnded = false;
    this.closing = new AbortController();
    this.resting = null;
  }

  /** Stops following. What was sent continues at the server. */
  close() {
    this.closing.abort();
  }

  /** The turns that have no reply yet. */
  get running() {
    return [...this.turns.values(), ...[...this.drafts].map((each) => each.view)].filter((each) => !each.isDone);
  }

  /** Follows only while somebody looks or waits for a reply: a browser has few connections for all tabs together. */
  rest(isHidden) {
    if (!isHidden) this.resting?.end();
    else if (!this.resting && this.isLive && !this.running.length) {
      this.resting = {};
      this.resting.over = new Promise((resolve) => { this.resting.end = resolve; }).then(() => { this.resting = null; });
      this.reading?.abort();
    }
  }

  /** Shows what was said, and continues with what happens, until it is closed. */
  async follow() {
    const { signal } = this.closing;
    for (let attempt = 0; !signal.aborted; attempt += 1) {
      await this.resting?.over;
      this.reading = new AbortController();
      try {
        const follow = this.isLive ? "true" : "false";
        const path = `v1/sessions/${this.sessionId}/events?after=${this.last}&follow=${follow}`;
        const opened = () => this.hooks.connected();
        for await (const each of events("GET", path, { signal: AbortSignal.any([signal, this.reading.signal]), silenceMs: this.hooks.silenceMs, opened })) {
          attempt = 0;
          this.last = each.id;
          this.take(each.name, each.data);
        }
        if (!this.isLive) {
          this.isLive = true;
          this.hooks.changed("loaded");
          continue;
        }
      } catch (problem) {
        if (signal.aborted) return;
        if (this.reading.signal.aborted) continue;
        if (!problem.passes) return this.hooks.failed(problem);
        this.hooks.disconnected(problem);
        await pause(attempt, problem, signal);
        continue;
      }
      await pause(attempt, null, signal); // the server ended the stream: it shuts down
    }
  }

  take(name, data) {
    const turn = this.turns.get(data.turn_id);
    if (name === "turn_started") this.begin(data);
    else if (name === "turn_completed") turn?.complete(data, this);
    else if (name === "turn_aborted") turn?.abort(aborted(data.reason), this);
    else if (name === "work_order_planned") turn?.step(data.wo_type);
    else if (name === "message_imported") this.element.append(importedLine(data));
    else if (name === "approval_requested") this.request(data, turn);
    else if (name === "approval_resolved") this.cards.get(data.approval_id)?.resolve(data);
    else if (name === "intent_declared") this.goals.set(data.intent_id, data.objective);
    else if (name === "session_ended" || name === "subject_erased") this.isEnded = true;
    this.hooks.changed(name);
  }

  begin({ turn_id: id, user_message: message, turn_ts: at, resumes }) {
    if (this.turns.has(id)) return;
    const draft = resumes ? null : [...this.drafts].find((each) => each.view.id === null && each.view.message === message);
    const view = draft?.view ?? this.show(message, at, Boolean(resumes));
    view.bind(id);
    this.turns.set(id, view);
    if (draft) this.drafts.delete(draft);
    else view.say("Working");
  }

  show(message, at, isResumed) {
    const onAgain = (view) => this.hooks.again(view.message);
    const onWhy = this.hooks.mayRead ? (view) => this.hooks.why(this, view) : null;
    const view = new TurnView({ message, at, isResumed, onWhy, onAgain });
    this.element.append(view.element);
    return view;
  }

  request(data, turn) {
    const isOfClient = data.reason === "client_tool";
    const card = isOfClient ? new ClientCallCard(data) : new ApprovalCard(this.sessionId, data, { mayAnswer: this.hooks.mayAnswer });
    if (isOfClient) turn?.clientCalls.push(data.tool);
    this.cards.set(data.approval_id, card);
    (turn?.approvals ?? this.element).append(card.element);
  }

  /** The turn before this one that has a reply; undefined: there is none. */
  before(view) {
    const done = [...this.turns.values()];
    return done.slice(0, done.indexOf(view)).findLast((each) => each.response !== null);
  }

  /** Sends a message, and tries again until it is known to have arrived. Its key keeps it from being answered twice. */
  async send(message) {
    const view = this.show(message, new Date().toISOString(), false);
    view.leaving = new AbortController();
    const draft = { view, key: uniqueKey(), leaving: view.leaving };
    this.drafts.add(draft);
    this.hooks.changed("sent");
    try {
      await this.begun();
      await this.deliver(draft);
    } catch (problem) {
      if (!view.isDone) view.fail(problem.name === "AbortError" ? new Problem(0, "turn_stopped", "") : problem);
      // A turn that began is told by the event stream, maybe later, and must find its message.
      if (problem instanceof Problem && problem.status >= 400 && !problem.isFinal) this.drafts.delete(draft);
    } finally {
      this.hooks.changed("answered");
    }
  }

  /** Begins the session, if it has not begun. */
  async begun() {
    if (this.sessionId !== null) return;
    this.sessionId = (await ask("POST", "v1/sessions", { agent: this.agent })).session_id;
    this.isLive = true;
    this.hooks.changed("began");
    if (this.hooks.mayRead) this.follow();
  }

  async deliver(draft) {
    const { view, leaving } = draft;
    for (let attempt = 0; !view.isDone; attempt += 1) {
      try {
        await this.stream(draft);
        return;
      } catch (problem) {
        if (view.isDone) return;
        if (leaving.signal.aborted || !problem.passes || problem.isFinal || attempt >= MOST_TRIES) throw problem;
        view.wait(problem);
        if (problem.status === 0 || problem.status === 503) this.hooks.disconnected(problem);
        await pause(attempt, problem, leaving.signal);
        if (leaving.signal.aborted) throw new Problem(0, "turn_stopped", "");
      }
    }
  }

  async stream({ view, key, leaving }) {
    const path = `v1/sessions/${this.sessionId}/messages`;
    const body = { message: view.message, stream: true };
    const opened = () => { this.hooks.connected(); view.restart(); };
    const told = { body, signal: leaving.signal, silenceMs: this.hooks.silenceMs, idempotencyKey: key, opened };
    let isComplete = false;
    for await (const { name, data } of events("POST", path, told)) {
      if (name === "turn_completed") {
        this.complete(view, data);
        isComplete = true;
      } else if (name !== "error") view.update({ name, data });
      // The stream itself says why it has no reply, so the turn is over: the same request would begin another one.
      else throw Object.assign(new Problem(data.error.code === "shutting_down" ? 503 : 500, data.error.code, data.error.message), { isFinal: true });
      this.hooks.changed("update");
    }
    if (!isComplete) throw new Problem(0, "lost", "");
  }

  complete(view, result) {
    if (view.id === null && !this.turns.has(result.turn_id)) {
      view.bind(result.turn_id);
      this.turns.set(result.turn_id, view);
      for (const each of this.drafts) if (each.view === view) this.drafts.delete(each);
    }
    // A turn of another number is that of a repeated message, and stands elsewhere.
    if (view.id === result.turn_id) view.complete(result, this);
    else if (!view.isDone) view.element.remove();
    this.hooks.changed("turn_completed");
  }

  /** Stops the replies that run. */
  async stop() {
    const running = this.running;
    for (const view of running) {
      view.isStopping = true;
      view.say("Stopping");
    }
    if (this.sessionId !== null) await ask("POST", `v1/sessions/${this.sessionId}/stop`, undefined, { patient: true });
    for (const view of running) view.leaving?.abort();
  }
}

const ABORTED = {
  cancelled: "Stopped. Nothing of this reply was kept.",
  timeout: "This took too long and was stopped.",
  overloaded: "The server was too busy for this message. Try again.",
  crash: "The server stopped before it had a reply. Nothing of it was kept.",
  shutdown: "The server shut down before it had a reply. Nothing of it was kept.",
};
const aborted = (reason) => ABORTED[reason] ?? `There is no reply: ${reason ?? "the turn was aborted"}.`;
