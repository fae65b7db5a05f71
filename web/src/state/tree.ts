// A conversation as a tree: an edit or another answer is a sibling, and `chosen` says which branch is shown.
import type { Conversation, Message } from "./types.ts";

export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return Array.from(bytes, (b) => (b % 36).toString(36)).join("") + Date.now().toString(36);
}

export function childrenOf(conversation: Conversation, parent: string | null): Message[] {
  return Object.values(conversation.messages)
    .filter((m) => m.parent === parent)
    .sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1));
}

// The messages that are shown, first to last.
export function shownPath(conversation: Conversation): Message[] {
  const groups = new Map<string | null, Message[]>();
  for (const m of Object.values(conversation.messages)) {
    const group = groups.get(m.parent);
    if (group) group.push(m);
    else groups.set(m.parent, [m]);
  }
  const path: Message[] = [];
  let parent: string | null = null;
  for (;;) {
    const group = groups.get(parent);
    if (!group) return path;
    const chosen = group.find((m) => m.id === conversation.chosen[parent ?? ""]);
    const next: Message = chosen ?? group.reduce((a, b) => (b.created >= a.created ? b : a));
    groups.delete(parent);
    path.push(next);
    parent = next.id;
  }
}

// From the root to `id`, both included.
export function pathTo(conversation: Conversation, id: string | null): Message[] {
  const path: Message[] = [];
  const seen = new Set<string>();
  let at = id;
  while (at !== null && !seen.has(at)) {
    seen.add(at);
    const message: Message | undefined = conversation.messages[at];
    if (!message) break;
    path.push(message);
    at = message.parent;
  }
  return path.reverse();
}

export function withMessage(conversation: Conversation, message: Message): Conversation {
  return {
    ...conversation,
    updated: Date.now(),
    messages: { ...conversation.messages, [message.id]: message },
    chosen: { ...conversation.chosen, [message.parent ?? ""]: message.id },
  };
}

// Takes a message and all that follows it away.
export function without(conversation: Conversation, id: string): Conversation {
  const gone = new Set([id]);
  for (let grew = true; grew;) {
    grew = false;
    for (const m of Object.values(conversation.messages)) {
      if (m.parent !== null && gone.has(m.parent) && !gone.has(m.id)) {
        gone.add(m.id);
        grew = true;
      }
    }
  }
  const keep = <V>(record: Record<string, V>, dead: (key: string, value: V) => boolean) =>
    Object.fromEntries(Object.entries(record).filter(([key, value]) => !dead(key, value)));
  return {
    ...conversation,
    updated: Date.now(),
    messages: keep(conversation.messages, (key) => gone.has(key)),
    chosen: keep(conversation.chosen, (key, value) => gone.has(key) || gone.has(value)),
  };
}

export function blankMessage(parent: string | null, role: Message["role"], content: string): Message {
  return {
    id: newId(),
    parent,
    role,
    created: Date.now(),
    content,
    reasoning: "",
    calls: [],
    callId: null,
    model: null,
    finish: role === "assistant" ? null : "stop",
    usage: null,
    timing: null,
    tokens: null,
    json: false,
    error: null,
  };
}

// The calls of an answer; one that was cut short may hold half a call, which counts for nothing.
export function wholeCalls(message: Message): Message["calls"] {
  return message.finish === "tool_calls" || message.finish === "stop" ? message.calls : [];
}

// The calls of an answer that have no result on the shown path yet.
export function openCalls(path: Message[]): { answer: Message; calls: Message["calls"] } | null {
  let i = path.length - 1;
  const answered = new Set<string>();
  for (; i >= 0 && path[i]!.role === "tool"; i--) answered.add(path[i]!.callId ?? "");
  const answer = path[i];
  if (!answer || answer.role !== "assistant") return null;
  const calls = wholeCalls(answer).filter((c) => !answered.has(c.id));
  return calls.length ? { answer, calls } : null;
}
