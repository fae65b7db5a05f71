// Live numbers from /metrics (Prometheus text), asked for while someone looks.
import { Store } from "../state/store.ts";
import { send } from "./client.ts";
import { ApiError } from "./fault.ts";

export interface Live {
  at: number;
  generated: number | null; // tokens since the start
  prompt: number | null;
  running: number | null;
  waiting: number | null;
  kvUsed: number | null; // 0..1
  cacheHit: number | null; // share of prompt tokens found in the cache, 0..1
  tiers: TierRow[]; // KV below device memory; empty: the server has none
  drafts: Drafts | null; // null: none so far
  firstTokenMs: number | null; // mean
  tokensPerS: number | null; // over the last interval
  promptPerS: number | null;
  tokensPerStep: number | null; // of an answer; above 1 where guesses come true
}

// What one tier did for one tenant's traffic since the start.
export interface TierRow {
  tier: string;
  traffic: string;
  tenant: string;
  asked: number; // blocks
  found: number;
  readBytes: number;
  writtenBytes: number;
}

// Tokens guessed ahead since the start.
export interface Drafts {
  guessed: number;
  saved: number; // not worth a row of a step
  places: { checked: number; right: number }[]; // first guess, second, ..; a place is checked when all before it are right
}

export const live = new Store<Live | null>(null);
export const history = new Store<number[]>([]); // tokens/s, oldest first
const HISTORY_MAX = 60;

export type Samples = Map<string, number>; // name -> sum over its label sets

export function parseMetrics(text: string): Samples {
  const samples: Samples = new Map();
  for (const line of text.split("\n")) {
    const m = /^([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+(\S+)/.exec(line);
    const value = m ? Number(m[2]) : NaN;
    if (m && Number.isFinite(value)) samples.set(m[1]!, (samples.get(m[1]!) ?? 0) + value);
  }
  return samples;
}

const TIER_FIGURES = {
  reads_total: "asked",
  hits_total: "found",
  read_bytes_total: "readBytes",
  written_bytes_total: "writtenBytes",
} as const;

// Rows that nothing was asked of or written for are left out.
export function parseTiers(text: string): TierRow[] {
  const rows = new Map<string, TierRow>();
  for (const [, name, labels, value] of text.matchAll(/^deepinfer_kv_tier_(\w+)\{(.*)\} (\S+)$/gm)) {
    const figure = TIER_FIGURES[name as keyof typeof TIER_FIGURES];
    if (!figure) continue;
    const label: Record<string, string> = {};
    for (const [, key, quoted] of labels!.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      label[key!] = quoted!.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    const { tier = "", traffic = "", tenant = "" } = label;
    const id = JSON.stringify([tier, traffic, tenant]);
    const row = rows.get(id) ?? { tier, traffic, tenant, asked: 0, found: 0, readBytes: 0, writtenBytes: 0 };
    row[figure] += Number(value);
    rows.set(id, row);
  }
  return [...rows.values()].filter((r) => r.asked || r.writtenBytes);
}

export function parseDrafts(text: string): Drafts | null {
  const value = (name: string, labels = "") =>
    Number(text.match(new RegExp(`^deepinfer_${name}${labels} (\\S+)$`, "m"))?.[1] ?? 0);
  const drafts: Drafts = { guessed: value("draft_tokens_total"), saved: value("draft_rows_saved_total"), places: [] };
  for (let place = 1; ; ++place) {
    const label = `\\{place="${place}"\\}`;
    const checked = value("draft_rows_total", label);
    if (!checked) break;
    drafts.places.push({ checked, right: value("draft_accepted_total", label) });
  }
  return drafts.guessed ? drafts : null;
}

export function liveOf(
  samples: Samples,
  tiers: TierRow[],
  drafts: Drafts | null,
  at: number,
  last: Live | null,
): Live {
  const get = (name: string) => samples.get("deepinfer_" + name) ?? null;
  const share = (part: number | null, whole: number | null) => (part === null || !whole ? null : part / whole);
  const generated = get("engine_output_tokens_total");
  const prompt = get("prompt_tokens_total");
  const first = share(get("time_to_first_token_seconds_sum"), get("time_to_first_token_seconds_count"));
  const seconds = last ? (at - last.at) / 1000 : 0;
  const rate = (now: number | null, before: number | null | undefined) =>
    now === null || before === null || before === undefined || seconds <= 0
      ? null
      : Math.max(0, now - before) / seconds;
  return {
    at,
    generated,
    prompt,
    running: get("requests_running"),
    waiting: get("requests_waiting"),
    kvUsed: get("kv_usage_ratio"),
    cacheHit: share(get("cached_prompt_tokens_total"), prompt),
    tiers,
    drafts,
    firstTokenMs: first === null ? null : first * 1000,
    tokensPerS: rate(generated, last?.generated),
    promptPerS: rate(prompt, last?.prompt),
    tokensPerStep: share(generated, get("engine_answer_steps_total")),
  };
}

let timer: ReturnType<typeof setTimeout> | undefined;
let wantedMs = 0;
let refused = false; // this server does not show them to us; not asked again

async function ask(): Promise<void> {
  try {
    const text = await (await send("metrics", undefined, undefined, true)).text();
    const now = liveOf(parseMetrics(text), parseTiers(text), parseDrafts(text), performance.now(), live.value);
    live.set(now);
    if (now.tokensPerS !== null) history.update((h) => [...h, now.tokensPerS!].slice(-HISTORY_MAX));
  } catch (error) {
    live.set(null);
    if (error instanceof ApiError && [401, 403, 404].includes(error.fault.status)) refused = true;
  }
}

// Asks every `ms`; 0 stops. Nothing is asked while the page is hidden.
export function watchMetrics(ms: number): void {
  wantedMs = ms;
  clearTimeout(timer);
  if (ms === 0 || refused) return;
  const tick = async () => {
    if (!document.hidden) await ask();
    if (wantedMs && !refused) timer = setTimeout(tick, wantedMs);
  };
  void tick();
}
