// Draws a safe part of Markdown: paragraphs, headings, lists, quotes, tables, code, emphasis, links. It makes text nodes and
// a fixed set of elements, loads nothing, and shows an image as a link. Each scan is linear in the text, however hostile.

import { copy, el, harmless } from "./dom.js";

const DEEPEST = 6;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]{0,40})/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^( {0,8})(?:([-*+])|(\d{1,9})[.)])\s+(?=\S)/;
const QUOTE = /^ {0,3}> ?/;
const DIVIDER = /^[\s:|-]*$/;

/** The elements of a text. */
export const markdown = (text) => blocks(harmless(text).split("\n"), 0);

/** Where the last part begins that more text may still change: before it stands a blank line outside of code. */
export function settled(text) {
  let fence = "", at = 0, end = 0;
  for (const line of text.split("\n")) {
    const found = FENCE.exec(line);
    if (fence) fence = closes(line, fence) ? "" : fence;
    else if (found) fence = found[1];
    at += line.length + 1;
    // An indented line, or another item, may continue a list.
    if (!fence && line.trim() === "" && at < text.length && !/^[\s\d*+>|-]/.test(text[at])) end = at;
  }
  return Math.min(end, text.length);
}

const closes = (line, fence) => line.trim().startsWith(fence) && line.trim().split(fence[0]).join("") === "";

function blocks(lines, depth) {
  const made = document.createDocumentFragment();
  for (let at = 0; at < lines.length;) {
    if (lines[at].trim() === "") { at += 1; continue; }
    const [node, next] = block(lines, at, depth);
    made.append(node);
    at = next;
  }
  return made;
}

function block(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [inline(heading[2], el(`h${Math.min(6, heading[1].length + 2)}`)), at + 1];
  if (RULE.test(line)) return [el("hr"), at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return quoted(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return listed(lines, at, depth);
  if (line.includes("|") && isDivider(lines[at + 1] ?? "")) return table(lines, at);
  let end = at + 1;
  while (end < lines.length && !begins(lines[end])) end += 1;
  return [inline(lines.slice(at, end).map((each) => each.trim()).join("\n"), el("p")), end];
}

const isDivider = (line) => DIVIDER.test(line) && line.includes("-") && line.includes("|");

const begins = (line) =>
  line.trim() === "" || FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line);

function fenced(lines, at, [, fence, language]) {
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], fence)) end += 1;
  return [codeBlock(lines.slice(at + 1, end).join("\n"), language), end + 1];
}

/** A block of code with its language and a button that copies it. */
export function codeBlock(text, language = "") {
  const code = el("code", {}, text);
  const told = el("button", { type: "button", "aria-label": `Copy ${language || "code"}` }, "Copy");
  told.addEventListener("click", () => copy(text, code, told));
  return el("figure", { class: "code" }, el("figcaption", {}, el("span", {}, language || "text"), told), el("pre", { tabindex: 0 }, code));
}

function quoted(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const made = el("blockquote");
  made.append(blocks(lines.slice(at, end).map((each) => each.replace(QUOTE, "")), depth + 1));
  return [made, end];
}

function listed(lines, at, depth) {
  const [, margin, bullet, number] = ITEM.exec(lines[at]);
  const made = bullet ? el("ul") : el("ol", { start: Number(number) });
  let end = at;
  while (end < lines.length) {
    const found = ITEM.exec(lines[end]);
    if (!found || found[1].length > margin.length + 1 || Boolean(found[2]) !== Boolean(bullet)) break;
    const content = [lines[end].slice(found[0].length)];
    for (end += 1; end < lines.length; end += 1) {
      const line = lines[end], indent = line.length - line.trimStart().length;
      if (line.trim() === "") {
        const next = lines[end + 1] ?? "";
        if (next.trim() === "" || (!ITEM.test(next) && next.length - next.trimStart().length <= margin.length)) break;
        content.push("");
      } else if (indent > margin.length + 1) content.push(line.slice(Math.min(indent, found[0].length)));
      else if (begins(line)) break;
      else content.push(line.trim());
    }
    const item = el("li");
    item.append(blocks(content, depth + 1));
    made.append(item);
    while (end < lines.length && lines[end].trim() === "" && ITEM.test(lines[end + 1] ?? "")) end += 1;
  }
  return [made, end];
}

function table(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim() !== "") end += 1;
  const row = (line, name) => el("tr", {}, cells(line).map((each) => inline(each, el(name))));
  const body = lines.slice(at + 2, end).map((line) => row(line, "td"));
  return [el("div", { class: "wide-table", tabindex: 0 }, el("table", {}, el("thead", {}, row(lines[at], "th")), el("tbody", {}, body))), end];
}

function cells(line) {
  const plain = line.trim();
  const inner = plain.slice(plain.startsWith("|") ? 1 : 0, plain.endsWith("|") && plain.length > 1 ? -1 : undefined);
  return inner.split("|").slice(0, 40).map((each) => each.trim());
}

const MARKS = { "**": "strong", __: "strong", "*": "em", _: "em", "~~": "del" };
const WORD = /[\p{L}\p{N}]/u;
const SPECIAL = /[\\`*_~[!<h]/g;
const LONGEST_RUN = 8;
const URL_RUN = /https?:\/\/[^\s<>"'`]{1,2000}/y;

/** Adds the text to a parent, with its emphasis, code and links. */
function inline(text, parent) {
  new Inline(text, parent).read();
  return parent;
}

class Inline {
  constructor(text, parent) {
    this.text = text;
    this.open = [{ node: parent, mark: "" }];
    this.from = 0; // what is not added yet begins here
    this.noRun = new Set(); // lengths of backticks that nothing closes from here on
    this.bracket = 0; // the next `](`, found once for all brackets before it
  }

  read() {
    for (let at = 0; at < this.text.length;) {
      SPECIAL.lastIndex = at;
      const found = SPECIAL.exec(this.text);
      if (!found) break;
      const next = this.special(found.index);
      at = next ?? found.index + 1;
      if (next !== null) this.from = next;
    }
    this.plain(this.text.length);
    while (this.open.length > 1) this.unwrap();
  }

  /** Reads what begins here; null: it is plain text. */
  special(at) {
    const sign = this.text[at];
    if (sign === "\\") return this.escaped(at);
    if (sign === "`") return this.code(at);
    if (sign === "[") return this.link(at, at);
    if (sign === "!") return this.text[at + 1] === "[" ? this.link(at, at + 1) : null;
    if (sign === "<") return this.bare(at, at + 1);
    if (sign === "h") return WORD.test(this.text[at - 1] ?? "") ? null : this.bare(at, at);
    return this.mark(at);
  }

  get top() { return this.open[this.open.length - 1]; }

  plain(to) {
    if (to > this.from) this.top.node.append(this.text.slice(this.from, to));
    this.from = to;
  }

  put(at, node, next) {
    this.plain(at);
    this.top.node.append(node);
    return next;
  }

  escaped(at) {
    return /[!-/:-@[-`{-~]/.test(this.text[at + 1] ?? "") ? this.put(at, this.text[at + 1], at + 2) : null;
  }

  code(at) {
    let length = 1;
    while (this.text[at + length] === "`") length += 1;
    const run = this.text.slice(at, at + length);
    let end = length > LONGEST_RUN || this.noRun.has(length) ? -1 : this.text.indexOf(run, at + length);
    while (end >= 0 && this.text[end + length] === "`") {
      let past = end;
      while (this.text[past] === "`") past += 1;
      end = this.text.indexOf(run, past);
    }
    if (end < 0) {
      this.noRun.add(length);
      return this.put(at, run, at + length);
    }
    return this.put(at, el("code", {}, this.text.slice(at + length, end)), end + length);
  }

  link(at, bracket) {
    if (this.bracket >= 0 && this.bracket <= bracket) this.bracket = this.text.indexOf("](", bracket);
    if (this.bracket < 0 || this.bracket > bracket + 500) return null;
    const label = this.text.slice(bracket + 1, this.bracket);
    const end = this.text.slice(this.bracket + 2, this.bracket + 2002).indexOf(")");
    if (label.includes("[") || end < 0) return null;
    const target = this.text.slice(this.bracket + 2, this.bracket + 2 + end).trim().split(/\s/)[0];
    const made = anchor(target, bracket > at ? `Image: ${label || target}` : label || target);
    return made ? this.put(at, made, this.bracket + 3 + end) : null;
  }

  bare(at, from) {
    URL_RUN.lastIndex = from;
    const found = URL_RUN.exec(this.text);
    if (!found) return null;
    const isBracketed = from > at;
    if (isBracketed && this.text[from + found[0].length] !== ">") return null;
    const target = isBracketed ? found[0] : found[0].replace(/[.,;:!?)\]*_~]{1,20}$/, "");
    const made = anchor(target, target);
    return made ? this.put(at, made, from + target.length + (isBracketed ? 1 : 0)) : null;
  }

  mark(at) {
    const sign = this.text[at], double = this.text[at + 1] === sign;
    const mark = double ? sign + sign : sign;
    if (!(mark in MARKS)) return null;
    const next = at + mark.length, before = this.text[at - 1] ?? " ", after = this.text[next] ?? " ";
    const isInWord = sign === "_" && WORD.test(before) && WORD.test(after);
    if (this.top.mark === mark && before.trim() !== "" && !isInWord) {
      this.plain(at);
      this.open.pop();
      return next;
    }
    if (after.trim() === "" || isInWord || this.open.length > DEEPEST) return double ? this.put(at, mark, next) : null;
    const node = el(MARKS[mark]);
    this.put(at, node, next);
    this.open.push({ node, mark });
    return next;
  }

  /** Turns emphasis that nothing closed back into text. */
  unwrap() {
    const { node, mark } = this.open.pop();
    node.before(mark);
    while (node.firstChild) node.before(node.firstChild);
    node.remove();
  }
}

/** A link that leaves the page and says where it leads; null: the address is none for a link. */
function anchor(target, label) {
  let url;
  try {
    url = new URL(target);
  } catch {
    return null;
  }
  if (!["http:", "https:", "mailto:"].includes(url.protocol)) return null;
  return el("a", { href: url.href, target: "_blank", rel: "noopener noreferrer nofollow", title: url.href }, label);
}
