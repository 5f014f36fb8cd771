// "Why this reply?": what the model was shown in a turn, what was left out and why, and what changed since the turn before.

import { ask } from "./api.js";
import { codeBlock } from "./markdown.js";
import { counted, el, short, shownJson } from "./dom.js";

const REASONS = {
  DEFINES_INTENT: "states the goal",
  OPEN_WO: "work that is not finished",
  FAILED_WO: "work that failed",
  GLOBAL_INVARIANT: "a rule that always holds",
  REACHABLE_FROM_INTENT: "belongs to the goal of this turn",
  HO3_BIAS: "learned from earlier conversations",
  TOOL_RESULT: "the result of a tool",
  RECALLED: "matches the message",
  RECENT: "said recently",
};
const CAUSES = {
  DEFERRED: "deferred, so it is only mentioned",
  BUDGET_EVICTION: "no room was left within the budget",
  LOW_URGENCY: "other items mattered more",
  ERASED: "its text was erased",
  UNSUPPORTED: "the model does not take such content",
};

const MOST_OTHERS = 8;

/** The explanation of a turn, as elements. */
export async function whyPanel(conversation, view) {
  const path = `v1/sessions/${conversation.sessionId}/turns`;
  const before = conversation.before(view);
  const [found, changes] = await Promise.all([
    ask("GET", `${path}/${view.id}/why`),
    before ? ask("GET", `${path}/${view.id}/diff?before=${before.id}`) : null,
  ]);
  const learned = found.explanations.some((each) => each.reasons.includes("HO3_BIAS"))
    ? await ask("GET", `v1/memory?agent=${encodeURIComponent(conversation.agent)}`).catch(() => null) : null;
  const told = found.explanations.filter((each) => ["visible", "suppressed"].includes(each.verdict));
  const name = namer(conversation, learned, await saidElsewhere(conversation, [...told, ...(changes?.came_in ?? []), ...(changes?.went_out ?? [])]));
  const of = (...verdicts) => found.explanations.filter((each) => verdicts.includes(each.verdict));
  // Where the Context Authority does not choose, the newest turns and learned lines are shown, without reasons.
  const gathered = (id) => (id.startsWith("T-") ? ["Earlier turn", conversation.turns.get(id)?.message ?? ""] : name(id));
  const unexplained = found.gathered.map((id) => row(gathered, { entity_id: id }, "shown because it is recent or learned"));
  const shown = of("visible"), leftOut = of("suppressed");
  const others = found.explanations.filter((each) => !["visible", "suppressed"].includes(each.verdict));
  return [
    summary(found, shown, leftOut),
    section(`Shown to the model (${shown.length + unexplained.length})`, "No item of the past is on record as shown.", [
      ...shown.map((each) => row(name, each, because(each))), ...unexplained,
    ]),
    section(`Left out (${leftOut.length})`, "Nothing that belongs to this turn was left out.", leftOut.map((each) => row(name, each, cause(each)))),
    changed(name, before, changes),
    section("Models asked", "No model was asked.", found.calls.map(call)),
    folded(`Not eligible (${others.length})`, others.map((each) => row(name, each, each.text))),
    el("details", {}, el("summary", {}, "The whole record as JSON"), codeBlock(shownJson({ why: found, diff: changes }), "json")),
  ];
}

function summary(found, shown, leftOut) {
  const notes = [found.why_nothing, found.unreadable && `Not readable: ${found.unreadable}`].filter(Boolean);
  if (!found.is_exact) notes.push("Settings have changed since. What was shown is as recorded; sizes are those of today.");
  const budget = found.token_budget && found.mode === "enforce"
    ? [
        el("p", {}, `The model was shown ${counted(shown.length, "item")} of the past. Left out or shortened: ${leftOut.length}. This took ${counted(found.tokens_used, "token")} of a budget of ${found.token_budget.toLocaleString("en")}.`),
        el("progress", { max: found.token_budget, value: found.tokens_used, "aria-label": "Budget used" }),
      ]
    : el("p", {}, found.mode === "enforce" ? "" : `The Context Authority is in mode “${found.mode ?? "off"}”: it does not decide what the model is shown.`);
  return el("div", {}, el("p", { class: "pale" }, el("code", {}, found.turn_id), `, ${found.outcome}`), budget, notes.map((each) => el("p", { class: "note", dir: "auto" }, each)));
}

const sessionOf = (id) => /^T-([0-9a-f]+)-/.test(id) ? `SES-${id.split("-")[1]}` : null;

/** What was said in other conversations, by the id of the turn. What cannot be read is left out. */
async function saidElsewhere(conversation, items) {
  const others = new Set(items.map((each) => sessionOf(each.entity_id)).filter((id) => id && id !== conversation.sessionId));
  const asked = [...others].slice(0, MOST_OTHERS).map((id) => ask("GET", `v1/sessions/${id}/messages`).catch(() => ({ turns: [] })));
  return new Map((await Promise.all(asked)).flatMap(({ turns }) => turns.map((each) => [each.turn_id, each])));
}

/** Tells what an id stands for, from what the page knows. */
function namer(conversation, memory, elsewhere) {
  const lines = new Map((memory?.learned ?? []).flatMap((each) => [[each.artifact_id, each.line], [each.overlay_id, each.line]]));
  return (id) => {
    const isMessage = id.endsWith(".message"), turnId = isMessage ? id.slice(0, -".message".length) : id;
    const turn = conversation.turns.get(turnId), other = elsewhere.get(turnId), sessionId = sessionOf(id);
    if (turn && isMessage) return ["Message", turn.message];
    if (turn) return ["Reply", turn.response ?? ""];
    if (other && isMessage) return ["Message", other.user_message, sessionId];
    if (other) return ["Reply", other.response, sessionId];
    if (sessionId && sessionId !== conversation.sessionId) return ["Turn", "", sessionId];
    if (conversation.goals.has(id)) return ["Goal", conversation.goals.get(id)];
    if (lines.has(id)) return ["Learned", lines.get(id)];
    return [id.startsWith("WO-") ? "Step of work" : id.startsWith("T-") ? "Turn" : id.startsWith("INT-") ? "Goal" : "Item", ""];
  };
}

const because = (each) => {
  const reasons = each.reasons.map((reason) => REASONS[reason] ?? reason).join("; ");
  return [reasons || "shown", each.tokens ? counted(each.tokens, "token") : "", each.form === "FULL" ? "" : "shortened"].filter(Boolean).join(" · ");
};

const cause = (each) =>
  [CAUSES[each.suppressed_by] ?? each.suppressed_by, each.form === "STUB" ? "shown as a stub" : "", each.short_by ? `${counted(each.short_by, "token")} were missing` : ""].filter(Boolean).join(" · ");

function row(name, each, why) {
  const [kind, text, sessionId] = name(each.entity_id);
  const where = sessionId ? [" · ", el("a", { href: `#${sessionId}` }, "in another conversation")] : "";
  return el("li", {}, el("p", { dir: "auto" }, el("b", {}, kind), text ? ` ${short(text, 160)}` : ""), el("p", { class: "pale", title: each.text ?? null }, why, where, " · ", el("code", { class: "id" }, each.entity_id)));
}

function call(each) {
  const { input_tokens: input = 0, output_tokens: output = 0 } = each.usage ?? {};
  return el("li", {}, el("p", {}, el("b", {}, each.model_id ?? "a model"), each.provider_id ? ` of ${each.provider_id}` : ""), el("p", { class: "pale" }, `${counted(input, "token")} in, ${counted(output, "token")} out`));
}

function changed(name, before, changes) {
  if (!changes) return section("Changed since the reply before", "This is the first reply of the conversation.", []);
  const rows = (found, sign, kind) => found.map((each) => {
    const made = row(name, each, each.why);
    made.classList.add(kind);
    made.firstChild.prepend(el("span", { class: "sign" }, `${sign} `));
    return made;
  });
  const all = [...rows(changes.came_in, "+", "added"), ...rows(changes.went_out, "−", "removed")];
  const made = section("Changed since the reply before", "The model was shown the same items.", all);
  made.append(...changes.notes.map((each) => el("p", { class: "note" }, each)));
  return made;
}

function section(title, nothing, rows) {
  return el("section", {}, el("h3", {}, title), rows.length ? el("ul", { class: "rows" }, rows) : el("p", { class: "pale" }, nothing));
}

function folded(title, rows) {
  return rows.length ? el("details", {}, el("summary", {}, title), el("ul", { class: "rows" }, rows)) : null;
}
