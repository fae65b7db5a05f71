// What serves: its models, and how tokens of a text are numbered.
import { Store } from "../state/store.ts";
import { json } from "./client.ts";
import { faultFrom } from "./fault.ts";

export interface ServedModel {
  id: string;
  context: number | null;
  bundled: boolean;
}

export interface Server {
  models: ServedModel[];
  version: string | null;
  fault: string | null; // why the server could not be asked
}

export const server = new Store<Server>({ models: [], version: null, fault: null });

type Fields = Record<string, unknown>;

export async function askServer(): Promise<void> {
  try {
    const list = await json<{ data?: Fields[] }>("v1/models");
    const models = (list.data ?? []).map((m) => ({
      id: String(m["id"]),
      context: typeof m["context_length"] === "number" ? m["context_length"] : null,
      bundled: m["bundled"] === true,
    }));
    server.update((s) => ({ ...s, models, fault: null }));
    const version = await json<Fields>("version");
    if (typeof version["version"] === "string") server.update((s) => ({ ...s, version: version["version"] as string }));
  } catch (error) {
    server.update((s) => ({ ...s, fault: s.models.length ? null : faultFrom(error).sentence }));
  }
}

export interface Piece {
  id: number;
  text: string;
  begin: number; // bytes of the text
  end: number;
}

interface Tokenized {
  tokens: number[];
  offsets?: [number, number][];
}

const CACHE_MAX = 200;
const cache = new Map<string, Promise<Piece[]>>();

// The tokens of a text as the server's tokenizer cuts it.
export function tokenize(text: string, model: string): Promise<Piece[]> {
  const key = model + "\n" + text;
  let found = cache.get(key);
  if (!found) {
    found = json<Tokenized>("v1/tokenize", {
      model,
      prompt: text,
      add_special_tokens: false,
      return_offsets: true,
    }).then((answer) => piecesOf(text, answer));
    found.catch(() => cache.delete(key));
    cache.set(key, found);
    if (cache.size > CACHE_MAX) cache.delete(cache.keys().next().value!);
  }
  return found;
}

function piecesOf(text: string, answer: Tokenized): Piece[] {
  const bytes = new TextEncoder().encode(text);
  return answer.tokens.map((id, i) => {
    const [begin, end] = answer.offsets?.[i] ?? [-1, -1];
    return { id, begin, end, text: begin < 0 ? "" : new TextDecoder().decode(bytes.subarray(begin, end)) };
  });
}
