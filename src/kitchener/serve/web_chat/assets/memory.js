// What was learned about the subject, with what makes the agent forget it; and the goals of a conversation.

import { ask, inWords } from "./api.js";
import { announce, button, counted, el } from "./dom.js";

const STATES = { speaks: "in use", deactivated: "forgotten", expired: "expired", faded: "faded: too old to count" };
const GATES = {
  crossed: "enough to learn from",
  already_consolidated: "learned from lately",
  excluded: "counted, never learned from",
  blocked: "never learned from again",
  quarantined: "does not count any more",
};

/** The memory of an agent about the subject, as elements; `again` draws it anew. */
export async function memoryPanel(agent, me, again) {
  const found = await ask("GET", `v1/memory?agent=${encodeURIComponent(agent)}`);
  const mayForget = me.rights.includes("chat");
  const change = (path, body, told) => changed(path, { agent, ...body }, told, again);
  if (!found.enabled) return [el("p", {}, `Agent ${agent} learns nothing: its long-term memory is off.`), erasure(me, again)];
  const [inUse, others] = [true, false].map((speaks) => found.learned.filter((each) => (each.state === "speaks") === speaks));
  return [
    el("p", { class: "pale" }, `What agent ${agent} has learned about “${found.subject_id}”. The model is shown the lines that are in use where they fit.`),
    el("section", {}, el("h3", {}, `Learned (${inUse.length})`), inUse.length ? el("ul", { class: "rows" }, inUse.map((each) => line(each, mayForget && change))) : el("p", { class: "pale" }, "Nothing yet.")),
    el("section", {}, el("h3", {}, `Counted (${found.signals.length})`), el("p", { class: "pale" }, "What happens often is counted, and learned from once it is enough."), found.signals.length ? el("ul", { class: "rows" }, found.signals.map((each) => signal(each, mayForget && change))) : el("p", { class: "pale" }, "Nothing yet.")),
    others.length ? el("details", {}, el("summary", {}, `No longer in use (${others.length})`), el("ul", { class: "rows" }, others.map((each) => line(each, null)))) : null,
    erasure(me, again),
  ];
}

function line(each, change) {
  const path = `v1/memory/${encodeURIComponent(each.artifact_id ?? each.overlay_id)}/deactivate`;
  const state = el("p", { class: "pale" }, `${STATES[each.state] ?? each.state}, from `, el("code", {}, each.signal_id), each.learned_at ? `, learned ${new Date(each.learned_at).toLocaleDateString()}` : "", each.why ? `: ${each.why}` : "");
  const made = el("li", { class: "side" }, el("div", {}, el("p", { dir: "auto" }, each.line || "(its text cannot be read)"), state));
  if (change && each.artifact_id) {
    made.append(confirmed("Forget", each.line ?? "", "Forget this line?", [
      ["Forget", () => change(path, {}, "Forgotten.")],
      ["Forget and never learn it again", () => change(path, { block: true }, "Forgotten for good.")],
    ]));
  }
  return made;
}

function signal(each, change) {
  const { gate } = each;
  const words = GATES[gate.state] ?? `${each.count} of ${counted(gate.count_threshold, "time")}, in ${each.sessions} of ${counted(gate.session_threshold, "conversation")}`;
  const made = el("li", { class: "side" }, el("div", {}, el("p", {}, el("code", {}, each.signal_id)), el("p", { class: "pale" }, words)));
  if (change && gate.state !== "quarantined") {
    made.append(confirmed("Do not count", each.signal_id, "Stop counting this? Lines that were learned from it are forgotten too.", [
      ["Stop counting", () => change("v1/memory/quarantine", { target: each.signal_id }, "It does not count any more.")],
    ]));
  }
  return made;
}

/** A button that asks before it does something. */
function confirmed(label, what, question, answers) {
  const made = el("div", { class: "row" });
  const first = el("button", { type: "button", "aria-label": `${label}: ${what}` }, label);
  const close = () => { made.classList.remove("asks"); made.replaceChildren(first); first.focus(); };
  const cancel = el("button", { type: "button", on: { click: close } }, "Keep");
  first.addEventListener("click", () => {
    const problem = el("p", { class: "problem", role: "alert" });
    const choices = answers.map(([words, work]) => button(words, () => work().catch((error) => { problem.textContent = inWords(error); }), { class: "danger" }));
    made.classList.add("asks");
    made.replaceChildren(el("span", {}, question), ...choices, cancel, problem);
    choices[0].focus();
  });
  made.append(first);
  return made;
}

async function changed(path, body, told, again) {
  await ask("POST", path, { reason: "asked for on the page", ...body });
  announce(told);
  await again();
}

/** Erasure of the subject, for keys that allow it. */
function erasure(me, again) {
  if (!me.rights.includes("erase")) return null;
  const typed = el("input", { id: "erase-subject", autocomplete: "off", spellcheck: "false" });
  const problem = el("p", { class: "problem", role: "alert" });
  const erase = button("Erase everything for good", async () => {
    problem.textContent = "";
    if (typed.value !== me.subject_id) {
      problem.textContent = `Type “${me.subject_id}” to confirm.`;
      return;
    }
    try {
      await ask("POST", "v1/subject/erase", { subject_id: me.subject_id }, { patient: true });
      announce("Everything was erased.");
      await again("erased");
    } catch (error) {
      problem.textContent = inWords(error);
    }
  }, { class: "danger" });
  return el("details", { class: "erasure" }, el("summary", {}, "Erase everything about this subject"), el("p", {}, `Destroys the key by which everything that “${me.subject_id}” said can be read, with all agents. Nobody can undo this.`), el("label", { for: typed.id }, `Type “${me.subject_id}” to confirm`), typed, erase, problem);
}

/** The goals of a conversation, with what changes them; `again` draws them anew. */
export async function goalsPanel(sessionId, me, again) {
  const { intents } = await ask("GET", `v1/sessions/${sessionId}/intents`);
  const problem = el("p", { class: "problem", role: "alert" });
  const change = (each, what) => button({ close: "Done", abandon: "Give up", reopen: "Take up again" }[what], async () => {
    try {
      await ask("POST", `v1/sessions/${sessionId}/intents/${each.intent_id}`, { change: what });
      await again();
    } catch (error) {
      problem.textContent = inWords(error);
    }
  });
  const row = (each) => el("li", {},
    el("p", { dir: "auto" }, each.is_active && el("b", {}, "Now: "), each.objective ?? "(its text cannot be read)"),
    el("p", { class: "pale" }, `${each.status.toLowerCase()}, since ${new Date(each.declared_at).toLocaleString()}`),
    me.rights.includes("chat") && el("div", { class: "row" }, (each.status === "live" ? ["close", "abandon"] : each.status === "closed" || each.status === "abandoned" ? ["reopen"] : []).map((what) => change(each, what))));
  const nothing = el("p", { class: "pale" }, "This conversation has no goals: its agent does not keep any.");
  return [el("p", { class: "pale" }, "The agent shows the model what belongs to the goal of a message."), intents.length ? el("ul", { class: "rows" }, intents.map(row)) : nothing, problem];
}
