// The request that the page would send, as a program for each client. Every value is quoted for its language, and the key
// is named, never written out.
import type { Body, WireMessage } from "../api/request.ts";

export type SnippetKind = "curl" | "python" | "node" | "anthropic";

export const SNIPPETS: { id: SnippetKind; name: string; lang: string }[] = [
  { id: "curl", name: "curl", lang: "sh" },
  { id: "python", name: "Python (openai)", lang: "python" },
  { id: "node", name: "Node (openai)", lang: "js" },
  { id: "anthropic", name: "Python (anthropic)", lang: "python" },
];

export function snippet(kind: SnippetKind, origin: string, body: Body, withKey: boolean): string {
  switch (kind) {
    case "curl":
      return curl(origin, body, withKey);
    case "python":
      return python(origin, body, withKey);
    case "node":
      return node(origin, body, withKey);
    case "anthropic":
      return anthropic(origin, body, withKey);
  }
}

function shell(text: string): string {
  return "'" + text.replace(/'/g, `'\\''`) + "'";
}

// JSON is Python but for three words; strings are quoted alike.
function py(value: unknown, indent: string): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = indent + "    ";
  const items = Array.isArray(value)
    ? value.map((v) => py(v, inner))
    : Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${py(v, inner)}`);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  const line = open + items.join(", ") + close;
  return line.length <= 76 && !line.includes("\n")
    ? line
    : `${open}\n${items.map((i) => inner + i + ",\n").join("")}${indent}${close}`;
}

function curl(origin: string, body: Body, withKey: boolean): string {
  return [
    `curl ${origin}/v1/chat/completions \\`,
    `  -H 'Content-Type: application/json' \\`,
    ...(withKey ? [`  -H "Authorization: Bearer $DEEPINFER_API_KEY" \\`] : []),
    `  -d ${shell(JSON.stringify(body, null, 2))}`,
  ].join("\n");
}

// What the openai package has as arguments of its own; the rest goes through extra_body.
const OPENAI_FIELDS = new Set(
  "model messages temperature top_p frequency_penalty presence_penalty max_tokens seed stop response_format tools tool_choice parallel_tool_calls logprobs top_logprobs reasoning_effort".split(
    " ",
  ),
);

function python(origin: string, body: Body, withKey: boolean): string {
  const own = Object.entries(body).filter(
    ([k, v]) =>
      OPENAI_FIELDS.has(k) && typeof v !== "undefined" && !(k === "reasoning_effort" && typeof v === "number"),
  );
  const extra = Object.entries(body).filter(([k]) => !own.some(([o]) => o === k));
  const args = own.map(([k, v]) => `    ${k}=${py(v, "    ")},`);
  if (extra.length) args.push(`    extra_body=${py(Object.fromEntries(extra), "    ")},`);
  return [
    ...(withKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(origin + "/v1")}, api_key=${withKey ? 'os.environ["DEEPINFER_API_KEY"]' : '"none"'})`,
    "stream = client.chat.completions.create(",
    ...args,
    "    stream=True,",
    ")",
    "for chunk in stream:",
    "    if chunk.choices:",
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
    "print()",
  ].join("\n");
}

function node(origin: string, body: Body, withKey: boolean): string {
  const args = JSON.stringify({ ...body, stream: true }, null, 2);
  return [
    'import OpenAI from "openai";',
    "",
    `const client = new OpenAI({ baseURL: ${JSON.stringify(origin + "/v1")}, apiKey: ${withKey ? "process.env.DEEPINFER_API_KEY" : '"none"'} });`,
    `const stream = await client.chat.completions.create(${args});`,
    'for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");',
    'process.stdout.write("\\n");',
  ].join("\n");
}

const DEFAULT_MAX_TOKENS = 1024; // the anthropic package wants a number

interface Block {
  type: string;
  [field: string]: unknown;
}

// The same conversation as the Messages API has it: results in the next user message, the system text apart.
function blocksOf(messages: WireMessage[]): { role: "user" | "assistant"; content: string | Block[] }[] {
  const out: { role: "user" | "assistant"; content: string | Block[] }[] = [];
  for (const m of messages) {
    if (m.role === "system") continue;
    if (m.role === "tool") {
      const result = { type: "tool_result", tool_use_id: m.tool_call_id, content: m.content };
      const last = out.at(-1);
      if (last?.role === "user" && Array.isArray(last.content)) last.content.push(result);
      else out.push({ role: "user", content: [result] });
    } else if (m.role === "assistant" && m.tool_calls) {
      const calls = m.tool_calls.map((c) => ({
        type: "tool_use",
        id: c.id,
        name: c.function.name,
        input: JSON.parse(c.function.arguments || "{}") as unknown,
      }));
      out.push({ role: "assistant", content: [...(m.content ? [{ type: "text", text: m.content }] : []), ...calls] });
    } else {
      out.push({ role: m.role as "user" | "assistant", content: m.content });
    }
  }
  return out;
}

interface WireTool {
  function: { name: string; description?: string; parameters?: unknown };
}

function anthropic(origin: string, body: Body, withKey: boolean): string {
  const system = body.messages.find((m) => m.role === "system")?.content;
  const args: [string, unknown][] = [
    ["model", body.model],
    ["max_tokens", body["max_tokens"] ?? DEFAULT_MAX_TOKENS],
    ...(system ? [["system", system] as [string, unknown]] : []),
    ["messages", blocksOf(body.messages)],
  ];
  if (body["stop"]) args.push(["stop_sequences", body["stop"]]);
  const tools = body["tools"] as WireTool[] | undefined;
  if (tools)
    args.push([
      "tools",
      tools.map((t) => ({
        name: t.function.name,
        description: t.function.description ?? "",
        input_schema: t.function.parameters ?? { type: "object" },
      })),
    ]);
  const extra: Record<string, unknown> = {}; // newer versions of the package have no sampling parameters of their own
  for (const key of ["temperature", "top_p", "top_k"]) if (body[key] !== undefined) extra[key] = body[key];
  if (body["thinking"]) extra["thinking"] = body["thinking"];
  const format = body["response_format"] as { json_schema?: { schema: unknown } } | undefined;
  const output: Record<string, unknown> = {};
  if (format?.json_schema) output["format"] = { type: "json_schema", schema: format.json_schema.schema };
  if (typeof body["reasoning_effort"] === "string") output["effort"] = body["reasoning_effort"];
  if (Object.keys(output).length) extra["output_config"] = output;
  const lines = args.map(([k, v]) => `    ${k}=${py(v, "    ")},`);
  if (Object.keys(extra).length) lines.push(`    extra_body=${py(extra, "    ")},`);
  return [
    ...(withKey ? ["import os", ""] : []),
    "from anthropic import Anthropic",
    "",
    `client = Anthropic(base_url=${JSON.stringify(origin)}, api_key=${withKey ? 'os.environ["DEEPINFER_API_KEY"]' : '"none"'})`,
    "message = client.messages.create(",
    ...lines,
    ")",
    "for block in message.content:",
    '    print(block.text if block.type == "text" else block)',
  ].join("\n");
}
