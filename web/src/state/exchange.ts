// Conversations as a file: what is written, and the check of what is read. A file is untrusted: every field is checked
// and copied, unknown fields are dropped, and a fault says where it is.
import { DEFAULTS } from "./types.ts";
import type { Alternative, Conversation, Message, Settings, TokenProb, ToolCall } from "./types.ts";

export const FILE_BYTES_MAX = 64 << 20;
const FORMAT = "deepinfer.conversations";
const CONVERSATIONS_MAX = 5000;
const MESSAGES_MAX = 20000;

export function toFile(conversations: Conversation[]): string {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

// Throws an Error with a sentence.
export function fromFile(text: string): Conversation[] {
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  const file = data as { format?: unknown; version?: unknown; conversations?: unknown };
  if (typeof data !== "object" || data === null || file.format !== FORMAT || !Array.isArray(file.conversations))
    throw new Error("This file was not exported by this page.");
  if (file.version !== 1) throw new Error(`This file has version ${String(file.version)}; this page reads version 1.`);
  if (file.conversations.length > CONVERSATIONS_MAX)
    throw new Error(`This file has more than ${CONVERSATIONS_MAX} conversations.`);
  return file.conversations.map((c, i) => readConversation(c, `conversations[${i}]`));
}

type Fields = Record<string, unknown>;

function fields(value: unknown, where: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw new Error(`${where} is not an object.`);
  return value as Fields;
}

function text(value: unknown, where: string): string {
  if (typeof value !== "string") throw new Error(`${where} is not a text.`);
  return value;
}

function textOr<T>(value: unknown, fallback: T): string | T {
  return typeof value === "string" ? value : fallback;
}

function numberOr<T>(value: unknown, fallback: T): number | T {
  return typeof value === "number" && Number.isFinite(value) ? value : fallback;
}

function boolOr<T>(value: unknown, fallback: T): boolean | T {
  return typeof value === "boolean" ? value : fallback;
}

const isId = (value: string) => /^[0-9a-z]{1,64}$/.test(value); // as newId() makes them; never __proto__

export function readConversation(value: unknown, where: string): Conversation {
  const c = fields(value, where);
  const id = text(c["id"], `${where}.id`);
  if (!isId(id)) throw new Error(`${where}.id is not an id.`);
  const given = Object.values(fields(c["messages"], `${where}.messages`));
  if (given.length > MESSAGES_MAX) throw new Error(`${where} has more than ${MESSAGES_MAX} messages.`);
  const messages: Record<string, Message> = {};
  for (const [i, m] of given.entries()) {
    const message = readMessage(m, `${where}.messages[${i}]`);
    messages[message.id] = message;
  }
  for (const m of Object.values(messages))
    if (m.parent !== null && !Object.hasOwn(messages, m.parent))
      throw new Error(`${where}: message ${m.id} follows one that is not there.`);
  const chosen: Record<string, string> = {};
  for (const [parent, child] of Object.entries(fields(c["chosen"] ?? {}, `${where}.chosen`)))
    if ((parent === "" || isId(parent)) && typeof child === "string" && Object.hasOwn(messages, child))
      chosen[parent] = child;
  return {
    id,
    title: textOr(c["title"], "Untitled").slice(0, 200),
    named: boolOr(c["named"], false),
    created: numberOr(c["created"], 0),
    updated: numberOr(c["updated"], 0),
    settings: readSettings(c["settings"]),
    messages,
    chosen,
  };
}

function readMessage(value: unknown, where: string): Message {
  const m = fields(value, where);
  const id = text(m["id"], `${where}.id`);
  const role = text(m["role"], `${where}.role`);
  if (!isId(id)) throw new Error(`${where}.id is not an id.`);
  if (role !== "user" && role !== "assistant" && role !== "tool")
    throw new Error(`${where}.role is none of user, assistant, tool.`);
  const usage = m["usage"] as Fields | null | undefined;
  const timing = m["timing"] as Fields | null | undefined;
  const error = m["error"] as Fields | null | undefined;
  return {
    id,
    role,
    parent: textOr(m["parent"], null),
    created: numberOr(m["created"], 0),
    content: text(m["content"], `${where}.content`),
    reasoning: textOr(m["reasoning"], ""),
    calls: Array.isArray(m["calls"]) ? m["calls"].map((c, i) => readCall(c, `${where}.calls[${i}]`)) : [],
    callId: textOr(m["callId"], null),
    model: textOr(m["model"], null),
    finish: textOr(m["finish"], role === "assistant" ? "stopped" : "stop"),
    usage: usage
      ? {
          prompt: numberOr(usage["prompt"], 0),
          completion: numberOr(usage["completion"], 0),
          cached: numberOr(usage["cached"], 0),
          reasoning: numberOr(usage["reasoning"], 0),
        }
      : null,
    timing: timing ? { firstMs: numberOr(timing["firstMs"], 0), totalMs: numberOr(timing["totalMs"], 0) } : null,
    tokens: readTokens(m["tokens"]),
    json: boolOr(m["json"], false),
    error: error
      ? {
          sentence: textOr(error["sentence"], "The answer failed."),
          param: textOr(error["param"], null),
          status: numberOr(error["status"], 0),
        }
      : null,
  };
}

function readCall(value: unknown, where: string): ToolCall {
  const c = fields(value, where);
  return {
    id: text(c["id"], `${where}.id`),
    name: text(c["name"], `${where}.name`),
    arguments: text(c["arguments"], `${where}.arguments`),
  };
}

function readTokens(value: unknown): Message["tokens"] {
  if (typeof value !== "object" || value === null) return null;
  const t = value as Fields;
  return { content: readTokenList(t["content"]), reasoning: readTokenList(t["reasoning"]) };
}

// The entries of logprobs as the API sends them and as the page keeps them.
export function readTokenList(value: unknown): TokenProb[] {
  if (!Array.isArray(value)) return [];
  return value
    .filter((v) => typeof v === "object" && v !== null)
    .map((v: Fields) => {
      const top = v["top_logprobs"] ?? v["top"];
      return {
        ...readAlternative(v),
        top: Array.isArray(top) ? top.filter((a) => typeof a === "object" && a !== null).map(readAlternative) : [],
      };
    });
}

function readAlternative(v: Fields): Alternative {
  const bytes = v["bytes"];
  return {
    text: textOr(v["token"] ?? v["text"], ""),
    bytes:
      Array.isArray(bytes) && bytes.every((b) => Number.isInteger(b) && b >= 0 && b < 256) ? (bytes as number[]) : null,
    logprob: numberOr(v["logprob"], -9999),
  };
}

export function readSettings(value: unknown): Settings {
  if (typeof value !== "object" || value === null) return { ...DEFAULTS };
  const s = value as Fields;
  const format = s["format"];
  return {
    model: textOr(s["model"], null),
    system: textOr(s["system"], ""),
    thinking: boolOr(s["thinking"], null),
    effort: textOr(s["effort"], null),
    temperature: numberOr(s["temperature"], null),
    topP: numberOr(s["topP"], null),
    topK: numberOr(s["topK"], null),
    minP: numberOr(s["minP"], null),
    frequencyPenalty: numberOr(s["frequencyPenalty"], null),
    presencePenalty: numberOr(s["presencePenalty"], null),
    repetitionPenalty: numberOr(s["repetitionPenalty"], null),
    maxTokens: numberOr(s["maxTokens"], null),
    seed: numberOr(s["seed"], null),
    stop: Array.isArray(s["stop"]) ? s["stop"].filter((v) => typeof v === "string") : [],
    format: format === "json" || format === "schema" ? format : "text",
    schemaName: textOr(s["schemaName"], DEFAULTS.schemaName),
    schema: textOr(s["schema"], ""),
    schemaStrict: boolOr(s["schemaStrict"], true),
    tools: Array.isArray(s["tools"])
      ? s["tools"]
          .filter((t) => typeof t === "object" && t !== null)
          .map((t: Fields) => ({ on: boolOr(t["on"], true), text: textOr(t["text"], "") }))
      : [],
    toolChoice: textOr(s["toolChoice"], "auto"),
    parallel: boolOr(s["parallel"], true),
  };
}
