// Marks comments, strings, numbers, keywords and names of calls in code. One scanner for the common families; a language
// that it does not know is left plain.

export type CodeKind = "comment" | "string" | "number" | "keyword" | "call" | "key" | "";
export interface CodePart {
  kind: CodeKind;
  v: string;
}

const C_WORDS =
  "auto bool break case catch char class const constexpr continue default delete do double else enum export extern false final float for friend goto if import in inline instanceof int interface let long namespace new null nullptr of operator package private protected public return short signed sizeof static struct super switch template this throw true try typedef typename typeof undefined union unsigned using var virtual void volatile while yield async await function extends implements type as from fn impl match mod mut pub ref self trait use where func go defer chan map range select string i32 u32 i64 u64 usize f32 f64 override readonly declare abstract";
const PY_WORDS =
  "and as assert async await break class continue def del elif else except False finally for from global if import in is lambda None nonlocal not or pass raise return self True try while with yield match case";
const SH_WORDS =
  "case do done elif else esac exit export fi for function if in local read return set then until while echo cd";
const SQL_WORDS =
  "add all alter and as asc between by case create delete desc distinct drop else end exists from full group having in index inner insert into is join left like limit not null on or order outer primary references right select set table then union unique update values view when where with";

interface Family {
  words: Set<string>;
  comment: string; // a regular expression's source
  triple?: boolean;
  fold?: boolean; // keywords in any case
}

const set = (words: string) => new Set(words.split(" "));
const C: Family = { words: set(C_WORDS), comment: "//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)" };
const PY: Family = { words: set(PY_WORDS), comment: "#[^\\n]*", triple: true };
const SH: Family = { words: set(SH_WORDS), comment: "(?<![^\\s])#[^\\n]*" };
const SQL: Family = { words: set(SQL_WORDS), comment: "--[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)", fold: true };
const JSON_LIKE: Family = { words: set("true false null yes no"), comment: "#[^\\n]*" };

const FAMILIES: Record<string, Family> = {};
for (const name of "c cc cpp c++ h hpp java js javascript jsx ts typescript tsx go rust rs cs csharp kotlin swift php scala cuda dart css".split(
  " ",
))
  FAMILIES[name] = C;
for (const name of "py python ruby rb".split(" ")) FAMILIES[name] = PY;
for (const name of "sh bash shell zsh console".split(" ")) FAMILIES[name] = SH;
for (const name of "json jsonc yaml yml toml".split(" ")) FAMILIES[name] = JSON_LIKE;
FAMILIES["sql"] = SQL;

const CODE_MAX = 100000; // characters; longer code stays plain

export function highlight(code: string, lang: string): CodePart[] {
  const family = FAMILIES[lang.toLowerCase()];
  if (!family || code.length > CODE_MAX) return [{ kind: "", v: code }];
  const triple = family.triple ? `"""[\\s\\S]*?(?:"""|$)|'''[\\s\\S]*?(?:'''|$)|` : "";
  const scan = new RegExp(
    `(${family.comment})|(${triple}"(?:[^"\\\\\\n]|\\\\.)*"?|'(?:[^'\\\\\\n]|\\\\.)*'?|\`(?:[^\`\\\\]|\\\\.)*\`?)|(\\b(?:0x[0-9a-fA-F]+|\\d[\\d_]*(?:\\.\\d+)?(?:[eE][+-]?\\d+)?)\\b)|([A-Za-z_$][\\w$]*)`,
    "g",
  );
  const out: CodePart[] = [];
  let last = 0;
  for (const m of code.matchAll(scan)) {
    const end = m.index + m[0].length;
    let kind: CodeKind = "";
    if (m[1] !== undefined) kind = "comment";
    else if (m[2] !== undefined)
      kind = family === JSON_LIKE && /^\s*:/.test(code.slice(end, end + 20)) ? "key" : "string";
    else if (m[3] !== undefined) kind = "number";
    else if (family.words.has(family.fold ? m[0].toLowerCase() : m[0])) kind = "keyword";
    else if (code[end] === "(") kind = "call";
    if (!kind) continue;
    if (m.index > last) out.push({ kind: "", v: code.slice(last, m.index) });
    out.push({ kind, v: m[0] });
    last = end;
  }
  if (last < code.length) out.push({ kind: "", v: code.slice(last) });
  return out;
}
