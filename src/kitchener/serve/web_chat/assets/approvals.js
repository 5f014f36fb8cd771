// A tool call that waits: for a person, with what it would do and the answers that there are, or for the client that makes it.

import { ask, inWords } from "./api.js";
import { button, el, harmless, shownJson, when } from "./dom.js";

const DECISIONS = { approved: "Approved", denied: "Denied", cancelled: "Cancelled", expired: "Expired" };
const CLIENT_DECISIONS = { returned: "The client gave the output", failed: "Failed at the client" };
let cards = 0;

/** The card of a request, as the event stream tells it. */
export class ApprovalCard {
  constructor(sessionId, request, { mayAnswer }) {
    Object.assign(this, { request, isOpen: true, number: (cards += 1) });
    this.path = `v1/sessions/${sessionId}/approvals/${encodeURIComponent(request.approval_id)}`;
    this.problem = el("p", { class: "problem", role: "alert" });
    this.body = el("div", { class: "answers" });
    const title = `approval-${this.number}`;
    this.element = el(
      "section",
      { class: "approval", "aria-labelledby": title },
      el("h3", { id: title }, request.reason === "input_required" ? "The tool " : "May I use ", el("code", {}, request.tool ?? "a tool"), request.reason === "input_required" ? " asks" : "?"),
      request.message && el("p", { dir: "auto" }, request.message),
      argumentTable(request.arguments ?? {}),
      this.problem,
      this.body,
    );
    if (request.expires_at) this.body.append(el("p", { class: "pale" }, "Waits until ", when(request.expires_at)));
    if (mayAnswer) this.offer();
    else this.body.append(el("p", { class: "pale" }, "Your key may not answer this. Somebody with the right “approve” can."));
  }

  offer() {
    const { request, number } = this;
    const given = shownJson(request.arguments ?? {});
    const edited = el("textarea", { id: `arguments-${number}`, rows: Math.min(12, given.split("\n").length + 1), spellcheck: "false" });
    edited.value = given;
    const reason = el("input", { id: `reason-${number}`, autocomplete: "off" });
    const always = el("input", { type: "checkbox", id: `always-${number}` });
    const question = request.response_schema ? answerFields(request.response_schema, number) : null;
    const approve = () => this.answer("approve", () => {
      const body = { scope: always.checked ? "session" : "once" };
      if (edited.value !== given) body.arguments = parsedObject(edited.value);
      if (question) body.answer = question.read();
      if (reason.value.trim()) body.message = reason.value.trim();
      return body;
    });
    const deny = () => this.answer("deny", () => ({ message: reason.value.trim() || null }));
    this.body.append(
      ...[
        question?.element,
        el("details", {}, el("summary", {}, "Change the arguments"), el("label", { for: edited.id }, "Arguments as JSON"), edited),
        el("label", { for: reason.id }, "Reason or remark, which the model is told (optional)"),
        reason,
        el("label", { class: "check" }, always, "Also allow later calls of this tool in this conversation"),
        el("div", { class: "row" }, button(question ? "Answer" : "Approve", approve, { class: "primary" }), button("Deny", deny, { class: "danger" })),
      ].filter(Boolean),
    );
  }

  async answer(what, bodyOf) {
    this.problem.textContent = "";
    const buttons = this.body.querySelectorAll("button");
    buttons.forEach((each) => { each.disabled = true; });
    try {
      await ask("POST", `${this.path}/${what}`, bodyOf(), { patient: true });
    } catch (problem) {
      // Whether a lost answer arrived is told by the event stream. To give the same one again does no harm.
      if (this.isOpen) this.problem.textContent = problem instanceof SyntaxError ? problem.message : `${inWords(problem)} You can answer again.`;
    } finally {
      buttons.forEach((each) => { each.disabled = false; });
    }
  }

  /** Shows what was decided. */
  resolve({ decision, message, scope, answered_by: by }) {
    this.isOpen = false;
    const words = DECISIONS[decision] ?? decision;
    const how = [words, scope === "session" && "for this conversation", by && `by ${by}`, message && `“${message}”`];
    this.element.classList.add("resolved", decision);
    this.problem.textContent = "";
    this.body.replaceChildren(el("p", { class: "badge" }, how.filter(Boolean).join(", ")));
  }
}

/** The card of a call that the client of the conversation makes. Nobody answers it here. */
export class ClientCallCard {
  constructor(request) {
    this.state = el("p", { class: "badge" });
    this.element = el(
      "section",
      { class: "approval client", "aria-label": `Function of the client: ${harmless(request.tool)}` },
      el("h3", {}, "The client runs ", el("code", {}, request.tool)),
      argumentTable(request.arguments ?? {}),
      this.state,
    );
    const isOver = Date.parse(request.expires_at) < Date.now();
    this.state.append(isOver ? "The client gave no output until " : "Waits for the client until ", when(request.expires_at));
  }

  /** Shows what the client gave. */
  resolve({ decision, message }) {
    this.element.classList.add("resolved", decision);
    const how = CLIENT_DECISIONS[decision] ?? DECISIONS[decision] ?? decision;
    this.state.replaceChildren(harmless(message ? `${how}: ${message}` : how));
  }
}

function argumentTable(found) {
  const rows = Object.entries(found);
  if (!rows.length) return el("p", { class: "pale" }, "Without arguments.");
  return el("dl", { class: "arguments" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("pre", { dir: "auto" }, shownJson(value))))));
}

function parsedObject(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new SyntaxError("The arguments are not valid JSON. Check quotes, commas and braces.");
  }
  if (typeof found !== "object" || found === null || Array.isArray(found)) throw new SyntaxError("The arguments must be a JSON object: {…}.");
  return found;
}

/** Fields for a question whose answer is a flat object; otherwise one field for JSON. */
function answerFields(schema, number) {
  const properties = Object.entries(schema.properties ?? {});
  const isFlat = properties.length > 0 && properties.every(([, each]) => each.enum || ["string", "number", "integer", "boolean"].includes(each.type));
  if (!isFlat) {
    const field = el("textarea", { id: `answer-${number}`, rows: 3, spellcheck: "false" });
    const read = () => {
      try {
        return field.value.trim() ? JSON.parse(field.value) : null;
      } catch {
        throw new SyntaxError("The answer is not valid JSON.");
      }
    };
    return { element: el("div", {}, el("label", { for: field.id }, "Answer as JSON (empty: yes)"), field), read };
  }
  const fields = properties.map(([name, each], at) => ({ name, each, control: control(each, `answer-${number}-${at}`) }));
  const rows = fields.map(({ name, each, control: made }) => el("p", {}, el("label", { for: made.id }, each.title ?? name), made));
  const read = () => {
    const given = fields.map(({ name, each, control: made }) => [name, each.type === "boolean" ? made.checked : made.value === "" ? undefined : valueOf(each, made.value)]);
    return Object.fromEntries(given.filter(([, value]) => value !== undefined));
  };
  return { element: el("div", {}, rows), read };
}

const valueOf = (schema, text) =>
  schema.enum ? schema.enum.find((each) => String(each) === text) : schema.type === "string" ? text : Number(text);

function control(schema, id) {
  if (schema.enum) return el("select", { id }, schema.enum.map((each) => el("option", { value: each }, harmless(String(each)))));
  return el("input", { id, type: { boolean: "checkbox", string: "text" }[schema.type] ?? "number", step: schema.type === "integer" ? 1 : "any" });
}
