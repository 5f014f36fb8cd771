// Requests to the server, its event streams, and its errors in words. Addresses are relative, so a proxy may add a path.

const KEY = "kitchener.key";
const SUBJECT = "kitchener.subject";
const TIMEOUT_MS = 30_000;
const LONGEST_PAUSE_MS = 10_000;

/** Who asks. Kept for this tab only. */
export const credentials = {
  get key() { return sessionStorage.getItem(KEY) ?? ""; },
  get subject() { return sessionStorage.getItem(SUBJECT) ?? ""; },
  keep(key, subject) {
    sessionStorage.setItem(KEY, key);
    sessionStorage.setItem(SUBJECT, subject);
  },
  forget() {
    sessionStorage.removeItem(KEY);
    sessionStorage.removeItem(SUBJECT);
  },
};

/** An answer that is an error, or no answer: then `status` is 0. */
export class Problem extends Error {
  constructor(status, code, message, retryAfterMs = null) {
    super(message);
    Object.assign(this, { status, code, retryAfterMs });
  }
  /** Whether the same request may succeed later without anybody's help. */
  get passes() { return this.status === 0 || this.status === 429 || this.status === 503; }
}

const WORDS = {
  lost: "The connection to the server was lost.",
  invalid_api_key: "The server does not know this key. Enter another one.",
  right_missing: "Your key does not allow this. Whoever runs the server can give it the right.",
  session_not_found: "There is no such conversation for your key. It may belong to somebody else.",
  session_ended: "This conversation has ended. Start a new one.",
  subject_erased: "Everything of this subject was erased. Nothing can be added.",
  rate_limited: "Too many requests in a short time.",
  too_many_requests: "Too many requests run at the same time.",
  spending_limit: "The spending limit is reached. Try again later, or ask whoever runs the server to raise it.",
  overloaded: "The server is busy.",
  shutting_down: "The server is shutting down or restarting.",
  turn_stopped: "Stopped. Nothing of this reply was kept.",
  turn_timeout: "The reply took too long and was stopped. Try again, or ask for less at a time.",
  session_busy: "Another message of this conversation is being answered. Wait for its reply.",
  outcome_unknown: "The server stopped while it answered, so it is not known what was done. Check before you send it again.",
  idempotency_conflict: "This message was changed while it was sent. Send it again.",
  approval_closed: "This was already answered, or it is no longer valid.",
  request_too_large: "This is too large for the server. Send less.",
  internal_error: "The server could not do this. Its log says why.",
};

/** What to tell a person. */
export const inWords = (problem) =>
  WORDS[problem.code] ?? (problem instanceof Problem ? problem.message : "The page could not do this. Reload it.");

function headers(more) {
  const sent = { ...more };
  if (credentials.key) sent.authorization = `Bearer ${credentials.key}`;
  if (credentials.subject) sent["x-kitchener-subject"] = credentials.subject;
  return sent;
}

async function answered(method, path, body, signal, more = {}) {
  const sent = body === undefined ? more : { ...more, "content-type": "application/json" };
  let response;
  try {
    response = await fetch(path, {
      method, signal, headers: headers(sent), body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store", redirect: "error",
    });
  } catch (error) {
    throw lost(error);
  }
  if (response.ok) return response;
  const found = (await response.json().catch(() => null))?.error;
  const after = Number(response.headers.get("retry-after"));
  const told = found?.message ?? `The server answered with status ${response.status}.`;
  throw new Problem(response.status, found?.code ?? "", told, after > 0 ? after * 1000 : null);
}

const lost = (error) => (error.name === "AbortError" ? error : new Problem(0, "lost", WORDS.lost));

/** The JSON value of an answer. `patient`: it may take as long as a reply. */
export async function ask(method, path, body, { patient = false } = {}) {
  const response = await answered(method, path, body, patient ? undefined : AbortSignal.timeout(TIMEOUT_MS));
  return response.json().catch((error) => { throw lost(error); });
}

/** The events of an answer, as `{name, id, data}`; raises a Problem if the connection is lost or silent for `silenceMs`. */
export async function* events(method, path, { body, signal, silenceMs, idempotencyKey, opened }) {
  const more = idempotencyKey ? { "idempotency-key": idempotencyKey } : {};
  const response = await answered(method, path, body, signal, more);
  opened?.();
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  try {
    while (true) {
      const { value, done } = await inTime(reader.read(), silenceMs);
      if (done) return;
      let from = Math.max(0, buffer.length - 1);
      buffer += decoder.decode(value, { stream: true });
      for (let end; (end = buffer.indexOf("\n\n", from)) >= 0; from = 0) {
        const found = parsed(buffer.slice(0, end));
        buffer = buffer.slice(end + 2);
        if (found) yield found;
      }
    }
  } catch (error) {
    throw error instanceof Problem ? error : lost(error);
  } finally {
    reader.cancel().catch(() => {});
  }
}

function parsed(block) {
  const found = { name: "message", id: null, data: null };
  for (const line of block.split("\n")) {
    if (line.startsWith("data: ")) found.data = JSON.parse(line.slice(6));
    else if (line.startsWith("event: ")) found.name = line.slice(7);
    else if (line.startsWith("id: ")) found.id = Number(line.slice(4));
  }
  return found.data === null ? null : found;
}

function inTime(promise, limitMs) {
  let timer;
  const silent = new Promise((_, refuse) => {
    timer = setTimeout(() => refuse(new Problem(0, "lost", WORDS.lost)), limitMs);
  });
  return Promise.race([promise, silent]).finally(() => clearTimeout(timer));
}

const pauses = new Set();
/** Ends every pause now, because somebody asks for it or the browser is online again. */
export const tryNow = () => pauses.forEach((end) => end());
addEventListener("online", tryNow);

/** Waits before a request is repeated: longer each time, or as long as the server asks. */
export function pause(attempt, problem, signal) {
  const own = Math.min(LONGEST_PAUSE_MS, 300 * 2 ** Math.min(attempt, 8)) * (0.75 + Math.random() / 2);
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      pauses.delete(end);
      resolve();
    };
    const timer = setTimeout(end, Math.max(own, problem?.retryAfterMs ?? 0));
    pauses.add(end);
    signal?.addEventListener("abort", end, { once: true });
  });
}

/** A name for a request that nobody else chooses, also where the page came without TLS. */
export const uniqueKey = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
