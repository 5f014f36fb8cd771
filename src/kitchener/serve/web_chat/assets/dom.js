// Builds elements. Text becomes text nodes only: nothing in this page makes markup from text.

/** An element: attributes by name, `on` for listeners; children are nodes, texts, lists of them, or nothing. */
export function el(name, options = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(options)) {
    if (key === "on") for (const [kind, listener] of Object.entries(value)) made.addEventListener(kind, listener);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, String(value));
  }
  add(made, children);
  return made;
}

function add(parent, children) {
  for (const each of children) {
    if (Array.isArray(each)) add(parent, each);
    else if (each instanceof Node) parent.append(each);
    else if (each !== null && each !== undefined && each !== false) parent.append(harmless(String(each)));
  }
}

export const find = (id) => document.getElementById(id);

/** A button that cannot be pressed twice while its work runs. `work` gets the button. */
export function button(label, work, options = {}) {
  const made = el("button", { type: "button", ...options }, label);
  made.addEventListener("click", async () => {
    made.disabled = true;
    try {
      await work(made);
    } finally {
      made.disabled = false;
    }
  });
  return made;
}

// Control characters, and those that are invisible or reorder what follows: two different names must not look alike.
const HARMFUL = /[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u180e\u200b\u2060-\u206f\u202a-\u202e\u2028\u2029\ufeff\ufff9-\ufffb]/g;

/** The text with a � for each character that a reader cannot see. */
export const harmless = (text) => text.replaceAll("\r\n", "\n").replace(HARMFUL, "\ufffd");

/** The text on one line of at most `most` characters. */
export function short(text, most = 80) {
  const flat = text.slice(0, 4 * most).split(/\s+/).join(" ").trim();
  return flat.length <= most ? flat : `${flat.slice(0, most - 1)}…`;
}

/** A number with its noun. */
export const counted = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

/** A JSON value as lines of text. */
export const shownJson = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");

/** When something was: the time of today, else the day too. */
export function when(iso) {
  const at = new Date(iso), isToday = at.toDateString() === new Date().toDateString();
  const words = at.toLocaleString([], isToday ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
  return el("time", { datetime: iso, title: at.toLocaleString() }, words);
}

/** Tells a screen reader something that sighted readers see. */
export function announce(text) {
  find("announcer").textContent = harmless(text.slice(0, 2000));
}

/** Copies a text, also where the browser has no clipboard for this page: then the element is selected. */
export async function copy(text, element, told) {
  try {
    await navigator.clipboard.writeText(text);
    told.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(element);
    told.textContent = "Press Ctrl+C";
  }
  setTimeout(() => { told.textContent = "Copy"; }, 2000);
}
