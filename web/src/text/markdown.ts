// Markdown to a plain tree; the page draws the tree as elements, so that model text can never become markup.
//
//   parseBlocks("# Hi\n\n- *one*")  // [{t: "h", n: 1, c: [...]}, {t: "list", ...}]
//
// CommonMark's everyday parts and GitHub's tables, task items and strike-through. HTML stays text, images become links,
// links go to http, https and mailto only. Nesting is bounded, and the time is linear but for the depth.

export type Inline =
  | { t: "text"; v: string }
  | { t: "code"; v: string }
  | { t: "br" }
  | { t: "link"; href: string; c: Inline[] }
  | { t: "strong" | "em" | "del"; c: Inline[] };

export interface ListItem {
  task: boolean | null;
  c: Block[];
}

export type Block =
  | { t: "p"; c: Inline[] }
  | { t: "h"; n: number; c: Inline[] }
  | { t: "code"; lang: string; v: string; open: boolean }
  | { t: "quote"; c: Block[] }
  | { t: "list"; ordered: boolean; start: number; items: ListItem[] }
  | { t: "table"; align: ("left" | "center" | "right" | null)[]; head: Inline[][]; rows: Inline[][][] }
  | { t: "hr" };

const DEPTH_MAX = 8;
const INLINE_MAX = 20000; // characters of one paragraph that are searched for emphasis and links
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])([ \t]+|$)/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

export function parseBlocks(text: string): Block[] {
  return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function blocks(lines: string[], depth: number): Block[] {
  const out: Block[] = [];
  let paragraph: string[] = [];
  const flush = () => {
    if (paragraph.length) out.push({ t: "p", c: parseInline(paragraph.join("\n")) });
    paragraph = [];
  };
  let i = 0;
  while (i < lines.length) {
    const line = lines[i]!;
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (fence) {
      flush();
      i = fencedCode(lines, i, fence, out);
    } else if (heading) {
      flush();
      const content = line
        .slice(heading[0].length)
        .replace(/[ \t]+#+[ \t]*$/, "")
        .trim();
      out.push({ t: "h", n: heading[1]!.length, c: parseInline(content) });
      i++;
    } else if (RULE.test(line)) {
      flush();
      out.push({ t: "hr" });
      i++;
    } else if (/^ {0,3}>/.test(line) && depth < DEPTH_MAX) {
      flush();
      const inner: string[] = [];
      while (i < lines.length && /^ {0,3}>/.test(lines[i]!)) inner.push(lines[i++]!.replace(/^ {0,3}> ?/, ""));
      out.push({ t: "quote", c: blocks(inner, depth + 1) });
    } else if (ITEM.test(line) && depth < DEPTH_MAX && startsList(line, paragraph.length > 0)) {
      flush();
      i = list(lines, i, depth, out);
    } else if (line.includes("|") && paragraph.length === 0 && i + 1 < lines.length && isTable(line, lines[i + 1]!)) {
      i = table(lines, i, out);
    } else {
      if (line.trim() === "") flush();
      else paragraph.push(line.replace(/^[ \t]+/, ""));
      i++;
    }
  }
  flush();
  return out;
}

function fencedCode(lines: string[], begin: number, fence: RegExpExecArray, out: Block[]): number {
  const mark = fence[1]!;
  const close = new RegExp(`^ {0,3}${mark[0] === "`" ? "`" : "~"}{${mark.length},}[ \\t]*$`);
  let end = begin + 1;
  while (end < lines.length && !close.test(lines[end]!)) end++;
  out.push({ t: "code", lang: fence[2]!, v: lines.slice(begin + 1, end).join("\n"), open: end >= lines.length });
  return end + 1;
}

// A numbered item interrupts a paragraph only as "1.", so that a year at the beginning of a line stays text.
function startsList(line: string, inParagraph: boolean): boolean {
  const item = ITEM.exec(line)!;
  if (!inParagraph) return true;
  return line.length > item[0].length && (!/\d/.test(item[2]!) || /^1[.)]$/.test(item[2]!));
}

function list(lines: string[], begin: number, depth: number, out: Block[]): number {
  const first = ITEM.exec(lines[begin]!)!;
  const kind = first[2]!.slice(-1);
  const ordered = /\d/.test(first[2]!);
  const items: ListItem[] = [];
  let i = begin;
  while (i < lines.length) {
    const item = ITEM.exec(lines[i]!);
    if (!item || item[2]!.slice(-1) !== kind || RULE.test(lines[i]!)) break;
    const indent = item[1]!.length + item[2]!.length + Math.min(Math.max(item[3]!.length, 1), 4);
    const inner = [lines[i]!.slice(item[0].length)];
    i++;
    while (i < lines.length) {
      const line = lines[i]!;
      const space = line.length - line.trimStart().length;
      if (line.trim() === "") {
        const next = lines[i + 1];
        if (next === undefined || next.trim() === "" || next.length - next.trimStart().length < Math.min(indent, 2))
          break;
        inner.push("");
      } else if (space >= Math.min(indent, 2)) {
        inner.push(line.slice(Math.min(space, indent)));
      } else if (
        ITEM.test(line) ||
        FENCE.test(line) ||
        HEADING.test(line) ||
        RULE.test(line) ||
        /^ {0,3}>/.test(line)
      ) {
        break;
      } else {
        inner.push(line);
      }
      i++;
    }
    items.push(listItem(inner, depth));
    if (i + 1 < lines.length && lines[i]!.trim() === "" && ITEM.test(lines[i + 1]!)) i++;
  }
  out.push({ t: "list", ordered, start: ordered ? parseInt(first[2]!, 10) : 1, items });
  return i;
}

function listItem(inner: string[], depth: number): ListItem {
  const task = /^\[([ xX])\][ \t]+/.exec(inner[0]!);
  if (task) inner[0] = inner[0]!.slice(task[0].length);
  return { task: task ? task[1] !== " " : null, c: blocks(inner, depth + 1) };
}

function cells(line: string): string[] {
  const out: string[] = [];
  let cell = "";
  const body = line.trim().replace(/^\|/, "");
  for (let i = 0; i < body.length; i++) {
    if (body[i] === "\\" && body[i + 1] === "|") {
      cell += "|";
      i++;
    } else if (body[i] === "|") {
      out.push(cell.trim());
      cell = "";
    } else {
      cell += body[i];
    }
  }
  if (cell.trim() !== "" || !body.endsWith("|")) out.push(cell.trim());
  return out;
}

function isTable(head: string, rule: string): boolean {
  return TABLE_RULE.test(rule) && rule.includes("-") && cells(head).length === cells(rule).length;
}

function table(lines: string[], begin: number, out: Block[]): number {
  const head = cells(lines[begin]!);
  const align = cells(lines[begin + 1]!).map((c) =>
    c.startsWith(":") && c.endsWith(":") ? "center" : c.endsWith(":") ? "right" : c.startsWith(":") ? "left" : null,
  );
  const rows: Inline[][][] = [];
  let i = begin + 2;
  for (; i < lines.length && lines[i]!.includes("|") && lines[i]!.trim() !== ""; i++) {
    const row = cells(lines[i]!);
    rows.push(head.map((_, k) => parseInline(row[k] ?? "")));
  }
  out.push({ t: "table", align, head: head.map((c) => parseInline(c)), rows });
  return i;
}

// The address if it may be followed, else null.
export function safeHref(raw: string): string | null {
  const href = raw.trim();
  return /^(?:https?:\/\/|mailto:)[^\s<>"]+$/i.test(href) ? href : null;
}

interface Run {
  char: string;
  count: number;
  opens: boolean;
  closes: boolean;
}
type Piece = { node: Inline } | { run: Run };

export function parseInline(text: string): Inline[] {
  if (text.length > INLINE_MAX) return breaks(text);
  return emphasis(pieces(text, 0));
}

function breaks(text: string): Inline[] {
  const out: Inline[] = [];
  text.split("\n").forEach((line, i) => {
    if (i) out.push({ t: "br" });
    if (line) out.push({ t: "text", v: line });
  });
  return out;
}

function pieces(text: string, depth: number): Piece[] {
  const out: Piece[] = [];
  let plain = "";
  const flush = () => {
    for (const node of plain ? breaks(plain) : []) out.push({ node });
    plain = "";
  };
  const push = (node: Inline) => {
    flush();
    out.push({ node });
  };
  const unclosed = new Set<number>(); // lengths of back-tick runs that have no partner further on
  let i = 0;
  while (i < text.length) {
    const c = text[i]!;
    if (c === "\\" && i + 1 < text.length && /[!-/:-@[-`{-~]/.test(text[i + 1]!)) {
      plain += text[i + 1];
      i += 2;
    } else if (c === "`") {
      const count = runLength(text, i);
      const end = unclosed.has(count) ? -1 : closingTicks(text, i + count, count);
      if (end < 0) {
        unclosed.add(count);
        plain += text.slice(i, i + count);
        i += count;
      } else {
        const v = text.slice(i + count, end).replace(/\n/g, " ");
        push({ t: "code", v: /^ .*[^ ].* $/.test(v) ? v.slice(1, -1) : v });
        i = end + count;
      }
    } else if (c === "*" || c === "_" || c === "~") {
      const count = runLength(text, i);
      flush();
      out.push({ run: delimiter(text, i, count) });
      i += count;
    } else if ((c === "[" || (c === "!" && text[i + 1] === "[")) && depth < 2) {
      const found = link(text, c === "!" ? i + 1 : i, depth);
      if (found) {
        push(found.node);
        i = found.end;
      } else {
        plain += c;
        i++;
      }
    } else if (c === "<" || c === "h") {
      const found = depth === 0 ? address(text, i) : null;
      if (found) push(found.node);
      else plain += c;
      i = found ? found.end : i + 1;
    } else {
      plain += c;
      i++;
    }
  }
  flush();
  return out;
}

function runLength(text: string, at: number): number {
  let end = at;
  while (text[end] === text[at]) end++;
  return end - at;
}

function closingTicks(text: string, from: number, count: number): number {
  let i = text.indexOf("`", from);
  while (i >= 0) {
    const n = runLength(text, i);
    if (n === count) return i;
    i = text.indexOf("`", i + n);
  }
  return -1;
}

function delimiter(text: string, at: number, count: number): Run {
  const before = at === 0 ? " " : text[at - 1]!;
  const after = text[at + count] ?? " ";
  const space = /\s/;
  const mark = /[\p{P}\p{S}]/u;
  const left = !space.test(after) && (!mark.test(after) || space.test(before) || mark.test(before));
  const right = !space.test(before) && (!mark.test(before) || space.test(after) || mark.test(after));
  const char = text[at]!;
  if (char === "_")
    return { char, count, opens: left && (!right || mark.test(before)), closes: right && (!left || mark.test(after)) };
  return { char, count, opens: left, closes: right };
}

const LINK =
  /^\[((?:[^[\]\\\n]|\\.|\[[^[\]\n]{0,200}\]){0,1000})\]\(\s*<?([^\s()<>]{0,2000}(?:\([^\s()<>]{0,500}\)[^\s()<>]{0,500})?)>?(?:\s+"[^"\n]{0,500}")?\s*\)/;

function link(text: string, at: number, depth: number): { node: Inline; end: number } | null {
  const found = LINK.exec(text.slice(at, at + 4200));
  const href = found && safeHref(found[2]!);
  if (!href) return null;
  return { node: { t: "link", href, c: emphasis(pieces(found[1]! || href, depth + 2)) }, end: at + found[0].length };
}

function address(text: string, at: number): { node: Inline; end: number } | null {
  if (!text.startsWith("http", text[at] === "<" ? at + 1 : at)) return null;
  if (text[at] === "h" && at > 0 && /[\p{L}\p{N}]/u.test(text[at - 1]!)) return null;
  const found = /^(?:<(https?:\/\/[^\s<>]{1,2000})>|(https?:\/\/[^\s<>"`]{1,2000}))/.exec(text.slice(at, at + 2010));
  if (!found) return null;
  const bare = found[2]?.replace(/[.,;:!?'*_~]+$/, "").replace(/\)+$/, (tail) => (found[2]!.includes("(") ? tail : ""));
  const href = safeHref(found[1] ?? bare!);
  if (!href) return null;
  return {
    node: { t: "link", href, c: [{ t: "text", v: href }] },
    end: at + (found[1] ? found[0].length : bare!.length),
  };
}

// Pairs delimiter runs, innermost first; a run that finds no partner stays text.
function emphasis(input: Piece[]): Inline[] {
  const done: Piece[] = [];
  const floor: Record<string, number> = {}; // below this index no opener of the character is left
  for (const piece of input) {
    if (!("run" in piece) || !piece.run.closes) {
      done.push(piece);
      continue;
    }
    const run = { ...piece.run };
    while (run.count > 0) {
      const key = run.char + (run.opens ? "b" : "c");
      let k = done.length - 1;
      const least = floor[key] ?? 0;
      while (k >= least && !pairs(done[k]!, run)) k--;
      if (k < least) {
        floor[key] = done.length;
        break;
      }
      const opener = (done[k] as { run: Run }).run;
      const used = run.char === "~" ? 2 : Math.min(2, opener.count, run.count);
      const node: Inline = {
        t: run.char === "~" ? "del" : used === 2 ? "strong" : "em",
        c: done.splice(k + 1).flatMap(asInline),
      };
      opener.count -= used;
      run.count -= used;
      if (opener.count === 0) done.pop();
      done.push({ node });
      for (const other of Object.keys(floor)) floor[other] = Math.min(floor[other]!, done.length);
    }
    if (run.count > 0) done.push({ run });
  }
  return done.flatMap(asInline);
}

function pairs(piece: Piece, run: Run): boolean {
  if (!("run" in piece) || piece.run.char !== run.char || !piece.run.opens) return false;
  if (run.char === "~") return piece.run.count === 2 && run.count === 2;
  const both = (piece.run.closes || run.opens) && (piece.run.count + run.count) % 3 === 0;
  return !both || (piece.run.count % 3 === 0 && run.count % 3 === 0);
}

function asInline(piece: Piece): Inline[] {
  if ("node" in piece) return [piece.node];
  return piece.run.count > 0 ? [{ t: "text", v: piece.run.char.repeat(piece.run.count) }] : [];
}

// Cuts a text where blocks end for certain (an empty line outside of fences, lists and quotes), so that while an answer
// grows only its last part is parsed again. Joined with empty lines the parts give the text back.
export function splitStable(text: string): string[] {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const parts: string[] = [];
  let begin = 0;
  let fence: { mark: string; length: number } | null = null;
  let nested = false;
  lines.forEach((line, i) => {
    const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1];
    if (mark && !fence) fence = { mark: mark[0]!, length: mark.length };
    else if (mark && fence && mark[0] === fence.mark && mark.length >= fence.length && /^ {0,3}[`~]+[ \t]*$/.test(line))
      fence = null;
    if (!fence && (ITEM.test(line) || /^ {0,3}>/.test(line) || /^ {2,}\S/.test(line))) nested = true;
    const next = lines[i + 1];
    if (!fence && line.trim() === "" && i > begin && next !== undefined && next.trim() !== "") {
      if (nested && (/^\s/.test(next) || ITEM.test(next))) return;
      parts.push(lines.slice(begin, i).join("\n"));
      begin = i + 1;
      nested = false;
    }
  });
  parts.push(lines.slice(begin).join("\n"));
  return parts;
}
