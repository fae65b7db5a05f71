// Reads a chat stream into a message. DeepSeek's shape: reasoning_content beside content, usage on the last chunk, errors
// as a frame.
import { readTokenList } from "../state/exchange.ts";
import type { Message, ToolCall, Usage } from "../state/types.ts";
import { ApiError, faultOf } from "./fault.ts";
import { events } from "./sse.ts";

interface Chunk {
  model?: string;
  error?: unknown;
  usage?: Record<string, unknown> | null;
  choices?: {
    delta?: {
      content?: string | null;
      reasoning_content?: string | null;
      tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
    };
    logprobs?: { content?: unknown; reasoning_content?: unknown } | null;
    finish_reason?: string | null;
  }[];
}

export type Answer = Pick<
  Message,
  "content" | "reasoning" | "calls" | "model" | "finish" | "usage" | "timing" | "tokens"
>;

const count = (value: unknown) => (typeof value === "number" && Number.isFinite(value) ? value : 0);

function usageOf(u: Record<string, unknown>): Usage {
  const inner = (key: string, name: string) => count((u[key] as Record<string, unknown> | null | undefined)?.[name]);
  return {
    prompt: count(u["prompt_tokens"]),
    completion: count(u["completion_tokens"]),
    cached: inner("prompt_tokens_details", "cached_tokens"),
    reasoning: inner("completion_tokens_details", "reasoning_tokens"),
  };
}

// Calls `show` after each event; its argument gives a copy of all that has come so far. Ends with finish set, or throws.
export async function readAnswer(
  body: ReadableStream<Uint8Array>,
  sentAt: number,
  show: (copy: () => Answer) => void,
): Promise<void> {
  const calls: ToolCall[] = [];
  const content: ReturnType<typeof readTokenList> = [];
  const reasoning: ReturnType<typeof readTokenList> = [];
  const answer: Answer = {
    content: "",
    reasoning: "",
    calls: [],
    model: null,
    finish: null,
    usage: null,
    timing: null,
    tokens: null,
  };
  const copy = (): Answer => ({
    ...answer,
    calls: calls.filter(Boolean).map((c) => ({ ...c })),
    tokens: content.length || reasoning.length ? { content: [...content], reasoning: [...reasoning] } : null,
  });
  let firstMs = 0;
  let done = false;
  for await (const data of events(body)) {
    if (data === "[DONE]") {
      done = true;
      break;
    }
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error !== undefined) throw new ApiError(faultOf(500, chunk));
    const now = performance.now();
    const choice = chunk.choices?.[0];
    const delta = choice?.delta;
    answer.model = chunk.model ?? answer.model;
    answer.content += delta?.content ?? "";
    answer.reasoning += delta?.reasoning_content ?? "";
    for (const part of delta?.tool_calls ?? []) {
      const call = (calls[part.index] ??= { id: "", name: "", arguments: "" });
      call.id = part.id ?? call.id;
      call.name += part.function?.name ?? "";
      call.arguments += part.function?.arguments ?? "";
    }
    content.push(...readTokenList(choice?.logprobs?.content));
    reasoning.push(...readTokenList(choice?.logprobs?.reasoning_content));
    if (chunk.usage) answer.usage = usageOf(chunk.usage);
    answer.finish = choice?.finish_reason ?? answer.finish;
    if (!firstMs && (delta?.content || delta?.reasoning_content || delta?.tool_calls)) firstMs = now - sentAt;
    answer.timing = { firstMs, totalMs: now - sentAt };
    show(copy);
  }
  if (!done && answer.finish === null)
    throw new ApiError({ sentence: "The connection ended before the answer did.", param: null, status: 0 });
}
