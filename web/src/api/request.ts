// The body of a chat request for a conversation: what the page sends and what the snippets show.
import { wholeCalls } from "../state/tree.ts";
import type { Message, Settings } from "../state/types.ts";

export const TOP_LOGPROBS = 5;

export interface WireMessage {
  role: string;
  content: string;
  reasoning_content?: string;
  tool_calls?: { id: string; type: "function"; function: { name: string; arguments: string } }[];
  tool_call_id?: string;
}

export type Body = Record<string, unknown> & { model: string; messages: WireMessage[] };

export function wireMessages(settings: Settings, path: Message[]): WireMessage[] {
  const out: WireMessage[] = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  for (const m of path) {
    if (m.role === "assistant") {
      const calls = wholeCalls(m);
      if (!m.content && !calls.length) continue;
      const wire: WireMessage = { role: "assistant", content: m.content };
      if (m.reasoning) wire.reasoning_content = m.reasoning;
      if (calls.length)
        wire.tool_calls = calls.map((c) => ({
          id: c.id,
          type: "function",
          function: { name: c.name, arguments: c.arguments },
        }));
      out.push(wire);
    } else if (m.role === "tool") {
      out.push({ role: "tool", content: m.content, tool_call_id: m.callId ?? "" });
    } else {
      out.push({ role: "user", content: m.content });
    }
  }
  return out;
}

// A fault in what the reader typed is thrown as an Error with a sentence.
export function chatBody(model: string, settings: Settings, path: Message[], withTokens: boolean): Body {
  const body: Body = { model, messages: wireMessages(settings, path) };
  if (settings.thinking !== null) body["thinking"] = { type: settings.thinking ? "enabled" : "disabled" };
  if (settings.effort !== null && settings.thinking !== false) body["reasoning_effort"] = effortValue(settings.effort);
  const plain: [string, number | null][] = [
    ["temperature", settings.temperature],
    ["top_p", settings.topP],
    ["top_k", settings.topK],
    ["min_p", settings.minP],
    ["frequency_penalty", settings.frequencyPenalty],
    ["presence_penalty", settings.presencePenalty],
    ["repetition_penalty", settings.repetitionPenalty],
    ["max_tokens", settings.maxTokens],
    ["seed", settings.seed],
  ];
  for (const [key, value] of plain) if (value !== null) body[key] = value;
  if (settings.stop.length) body["stop"] = settings.stop;
  const format = responseFormat(settings);
  if (format) body["response_format"] = format;
  const tools = toolList(settings);
  if (tools.length) {
    body["tools"] = tools;
    const choice = settings.toolChoice;
    if (choice === "none" || choice === "required") body["tool_choice"] = choice;
    else if (settings.tools.some((t) => t.on && toolName(t.text) === choice))
      body["tool_choice"] = { type: "function", function: { name: choice } };
    if (!settings.parallel) body["parallel_tool_calls"] = false;
  }
  if (withTokens) {
    body["logprobs"] = true;
    body["top_logprobs"] = TOP_LOGPROBS;
  }
  return body;
}

function effortValue(effort: string): string | number {
  return /^\d+$/.test(effort) ? Number(effort) : effort;
}

export function responseFormat(settings: Settings): unknown {
  if (settings.format === "json") return { type: "json_object" };
  if (settings.format !== "schema") return null;
  return {
    type: "json_schema",
    json_schema: {
      name: settings.schemaName || "answer",
      strict: settings.schemaStrict,
      schema: parse(settings.schema, "The JSON schema"),
    },
  };
}

export function toolList(settings: Settings): unknown[] {
  return settings.tools.flatMap((tool, i) => (tool.on && tool.text.trim() ? [parse(tool.text, `Tool ${i + 1}`)] : []));
}

export function toolName(text: string): string | null {
  try {
    const tool = JSON.parse(text) as { function?: { name?: unknown } } | null;
    const name = tool?.function?.name;
    return typeof name === "string" ? name : null;
  } catch {
    return null;
  }
}

// What is wrong with a JSON text, with its line; null if nothing is.
export function jsonFault(text: string): string | null {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    const said = error instanceof Error ? error.message : "";
    const at = /position (\d+)/.exec(said);
    const line = at ? text.slice(0, Number(at[1])).split("\n").length : text.split("\n").length;
    const what = /end of JSON|Unexpected end/i.test(said) ? "it ends too early" : "it is not valid there";
    return `JSON, line ${line}: ${what}.`;
  }
}

function parse(text: string, what: string): unknown {
  const fault = text.trim() ? jsonFault(text) : "it is empty.";
  if (fault) throw new Error(`${what} cannot be sent: ${fault}`);
  return JSON.parse(text);
}
