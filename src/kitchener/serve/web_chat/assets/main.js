// Connects the page: who asks, the list of conversations, the open one, the message box, the panels and the theme.

import { ask, credentials, inWords, pause, Problem, tryNow } from "./api.js";
import { Conversation } from "./conversation.js";
import { announce, button, el, find, harmless, short } from "./dom.js";
import { goalsPanel, memoryPanel } from "./memory.js";
import { whyPanel } from "./why.js";

const LISTED = 100;
const NEAR_PX = 80;
const SESSION = /^SES-[0-9a-f]{8,32}$/;
let me = null;
let open = null;

// Notices

function notice(words, action = null, kind = "") {
  const box = find("notice");
  if (box.dataset.words === words) return;
  box.dataset.words = words;
  box.hidden = !words;
  box.className = kind;
  box.replaceChildren(...(words ? [el("span", {}, words), action].filter(Boolean) : []));
}

function fail(problem) {
  if (problem.status === 401) return signIn(inWords(problem));
  if (problem.code === "subject_missing") return signIn("This key acts for others. Say for whom.", true);
  notice(inWords(problem), button("Dismiss", () => notice("")), "bad");
}

const disconnected = (problem) =>
  notice(`${navigator.onLine ? inWords(problem) : "You are offline."} Trying again by itself.`, button("Try now", tryNow), "warn");
const connected = () => { if (find("notice").className === "warn") notice(""); };

/** Asks until the server answers; any other error ends it. */
async function askPatiently(path) {
  for (let attempt = 0; ; attempt += 1) {
    try {
      const found = await ask("GET", path);
      connected();
      return found;
    } catch (problem) {
      if (!problem.passes) throw problem;
      disconnected(problem);
      await pause(attempt, problem);
    }
  }
}

// Who asks

function signIn(words, withSubject = false) {
  find("key-problem").textContent = credentials.key ? words : "";
  find("subject-row").hidden = !withSubject && !credentials.subject;
  find("key").value = withSubject ? credentials.key : "";
  if (!find("sign-in").open) find("sign-in").showModal();
  find(withSubject ? "subject" : "key").focus();
}

find("sign-in").addEventListener("cancel", (event) => event.preventDefault());
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = find("key").value.trim(), subject = find("subject").value.trim();
  if (!/^[\x21-\x7e]+$/.test(key + subject)) {
    find("key-problem").textContent = "Letters without accents, digits and signs only, and no spaces.";
    return;
  }
  credentials.keep(key, subject);
  start();
});
find("sign-out").addEventListener("click", () => {
  credentials.forget();
  location.hash = "";
  location.reload();
});

async function start() {
  try {
    me = await askPatiently("v1/me");
  } catch (problem) {
    return fail(problem);
  }
  if (find("sign-in").open) find("sign-in").close();
  find("key").value = "";
  const agents = find("agent");
  agents.replaceChildren(...me.agents.map((each) => el("option", { value: each }, each)));
  agents.value = me.default_agent ?? me.agents[0] ?? "";
  find("agent-row").hidden = me.agents.length < 2;
  find("who").textContent = harmless(`Signed in as ${me.subject_id}`);
  find("sign-out").hidden = !me.needs_key;
  find("memory").hidden = !may("read");
  if (!may("chat")) find("hint").textContent = "Your key allows reading only.";
  if (!me.agents.length) notice("Your key reaches no agent. Whoever runs the server can change that.", null, "bad");
  await openNamed();
  find("message").disabled = find("send").disabled = !may("chat");
  if (document.activeElement === document.body) find("message").focus();
}

const may = (right) => me.rights.includes(right);

// The open conversation

const hooks = () => ({
  mayRead: may("read"),
  mayAnswer: may("approve"),
  silenceMs: me.keep_alive_s * 2000 + 5000,
  connected,
  disconnected,
  failed: fail,
  why: (conversation, view) => panel("Why this reply?", () => whyPanel(conversation, view)),
  again: (message) => send(message),
});

function show(sessionId, agent) {
  open?.close();
  const made = new Conversation(sessionId, agent, { ...hooks(), changed: (what) => { if (made === open) changed(what); } });
  open = made;
  find("conversation").replaceChildren(made.element);
  find("agent").disabled = sessionId !== null;
  find("goals").hidden = sessionId === null || !may("read");
  setTitle("New conversation");
  refresh();
  if (sessionId !== null && may("read")) made.follow();
  markOpen();
}

function changed(what) {
  const isAtEnd = stays;
  if (what === "began") {
    history.pushState(null, "", `#${open.sessionId}`);
    find("agent").disabled = true;
    find("goals").hidden = !may("read");
  }
  if (["began", "turn_started", "turn_completed", "session_ended", "loaded"].includes(what) && (open.isLive || what === "loaded")) listSoon();
  if (what === "session_ended") notice("This conversation has ended. Start a new one.", null, "");
  refresh();
  if (what === "loaded" || what === "sent" || isAtEnd) toEnd();
}

/** Shows what the state of the conversation allows. */
function refresh() {
  const isRunning = open.running.length > 0;
  find("stop").hidden = !isRunning;
  find("send").hidden = isRunning;
  find("welcome").hidden = open.element.childElementCount > 0 || (open.sessionId !== null && !open.isLive);
  const first = open.element.querySelector(".bubble");
  if (first) setTitle(short(first.textContent, 60));
}

function setTitle(words) {
  find("title").textContent = words;
  document.title = words === "New conversation" ? "Kitchener" : `${words} – Kitchener`;
}

async function openNamed() {
  const named = location.hash.slice(1);
  if (!SESSION.test(named)) {
    show(null, find("agent").value);
    listSoon();
    return;
  }
  if (open?.sessionId === named) return;
  try {
    const found = await askPatiently(`v1/sessions/${named}`);
    find("agent").value = found.agent;
    show(named, found.agent);
    if (found.is_ended) notice("This conversation has ended. Start a new one.");
  } catch (problem) {
    show(null, find("agent").value);
    fail(problem);
  }
  listSoon();
}

addEventListener("hashchange", () => { if (me) { find("panel").close(); notice(""); openNamed(); } });

// The list of conversations

let listing = null;
function listSoon() {
  if (listing || !may("read")) return;
  listing = setTimeout(async () => {
    listing = null;
    try {
      const found = await ask("GET", `v1/sessions?limit=${LISTED}&agent=${encodeURIComponent(find("agent").value)}`);
      list(found.sessions);
    } catch (problem) {
      if (!problem.passes) fail(problem);
    }
  }, 100);
}

function list(sessions) {
  const rows = sessions.filter((each) => each.turns > 0).sort((one, other) => (one.last_at < other.last_at ? 1 : -1));
  const row = (each) => el("li", {}, el("a", { href: `#${each.session_id}`, on: { click: closeMenu } },
    el("span", { class: "name", dir: "auto" }, each.title ?? each.external_id ?? "Untitled"),
    el("time", { datetime: each.last_at }, `${ago(each.last_at)}${each.is_ended ? ", ended" : ""}`)));
  const active = document.activeElement?.closest?.("#sessions a")?.getAttribute("href");
  find("sessions").replaceChildren(...(rows.length ? rows.map(row) : [el("li", { class: "pale" }, "None yet.")]));
  if (active) find("sessions").querySelector(`a[href="${active}"]`)?.focus();
  markOpen();
}

function markOpen() {
  for (const each of find("sessions").querySelectorAll("a")) {
    if (each.getAttribute("href") === `#${open?.sessionId}`) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
}

function ago(iso) {
  const minutes = Math.round((Date.now() - Date.parse(iso)) / 60_000);
  if (minutes < 1) return "just now";
  if (minutes < 60) return `${minutes} min ago`;
  return minutes < 1440 ? `${Math.round(minutes / 60)} h ago` : new Date(iso).toLocaleDateString();
}

find("new").addEventListener("click", () => {
  closeMenu();
  notice("");
  history.pushState(null, "", location.pathname + location.search);
  show(null, find("agent").value);
  find("message").focus();
});
find("agent").addEventListener("change", () => {
  show(null, find("agent").value);
  listSoon();
});
addEventListener("visibilitychange", () => {
  if (!me) return;
  open?.rest(document.hidden);
  if (!document.hidden) listSoon();
});

// The message box

const box = find("message");
function grow() {
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight, innerHeight / 3)}px`;
}

function submit() {
  const message = box.value.trim();
  if (!message || !open) return;
  if (message.length > me.max_message_chars) {
    notice(`The message has ${message.length.toLocaleString("en")} characters; the server takes ${me.max_message_chars.toLocaleString("en")}. Shorten it.`, null, "bad");
    return;
  }
  if (open.running.length) {
    announce("A reply is on its way. Wait for it, or press Escape to stop it.");
    return;
  }
  box.value = "";
  grow();
  send(message);
}

function send(message) {
  if (open.isEnded) return notice("This conversation has ended. Start a new one.");
  if (find("notice").className === "bad") notice("");
  announce("Sent");
  open.send(message);
}

async function stop() {
  if (!open?.running.length) return;
  try {
    await open.stop();
  } catch (problem) {
    fail(problem);
  }
  box.focus();
}

box.addEventListener("input", grow);
box.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
find("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
find("stop").addEventListener("click", stop);
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (document.body.classList.contains("menu")) closeMenu();
  else stop();
});
find("skip").addEventListener("click", () => box.focus());

// Scrolling: the newest text stays in sight unless the reader looks at something else.

const area = find("scroll");
let stays = true;
area.addEventListener("scroll", () => {
  stays = area.scrollHeight - area.scrollTop - area.clientHeight < NEAR_PX;
  find("newest").hidden = stays;
});
const toEnd = () => { area.scrollTop = area.scrollHeight; };
find("newest").addEventListener("click", toEnd);
new ResizeObserver(() => { if (stays) toEnd(); }).observe(find("conversation"));

// Panels

async function panel(title, draw) {
  const dialog = find("panel"), body = find("panel-body");
  find("panel-title").textContent = title;
  body.replaceChildren(el("p", { class: "pale" }, "Reading the record"));
  if (!dialog.open) dialog.showModal();
  try {
    body.replaceChildren(...(await draw()).filter(Boolean));
  } catch (problem) {
    if (problem.status === 401) dialog.close();
    if (!(problem instanceof Problem)) console.error(problem);
    body.replaceChildren(el("p", { class: "problem", role: "alert" }, inWords(problem)), button("Try again", () => panel(title, draw)));
  }
  body.focus();
}

find("close-panel").addEventListener("click", () => find("panel").close());
find("panel").addEventListener("click", (event) => { if (event.target === find("panel")) find("panel").close(); });

async function showMemory(what) {
  if (what === "erased") {
    find("panel").close();
    history.pushState(null, "", location.pathname + location.search);
    show(null, find("agent").value);
    list([]);
    listSoon();
    return notice("Everything about this subject was erased.");
  }
  return panel("Memory", () => memoryPanel(find("agent").value, me, showMemory));
}
find("memory").addEventListener("click", () => { closeMenu(); showMemory(); });
const showGoals = () => panel("Goals", () => goalsPanel(open.sessionId, me, showGoals));
find("goals").addEventListener("click", showGoals);

// The list on a phone, and the theme

function closeMenu() {
  if (!document.body.classList.contains("menu")) return;
  document.body.classList.remove("menu");
  document.querySelector("main").inert = false;
  find("menu").setAttribute("aria-expanded", "false");
  find("menu").focus();
}
find("menu").addEventListener("click", () => {
  document.body.classList.add("menu");
  document.querySelector("main").inert = true;
  find("menu").setAttribute("aria-expanded", "true");
  find("close-menu").focus();
});
find("close-menu").addEventListener("click", closeMenu);
document.body.addEventListener("click", (event) => { if (event.target === document.body) closeMenu(); });

const THEMES = { "": "automatic", light: "light", dark: "dark" };
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  find("theme").textContent = `Theme: ${THEMES[name]}`;
}
find("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES), now = names.indexOf(document.documentElement.dataset.theme);
  const next = names[(now + 1) % names.length];
  localStorage.setItem("kitchener.theme", next);
  setTheme(next);
});
const kept = localStorage.getItem("kitchener.theme") ?? "";
setTheme(kept in THEMES ? kept : "");

start();
