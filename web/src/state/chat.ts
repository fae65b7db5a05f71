// What the reader does in a chat: send, stop, answer again, edit, give a tool's result, change the branch.
import { send as sendRequest } from "../api/client.ts";
import { faultFrom } from "../api/fault.ts";
import { chatBody } from "../api/request.ts";
import { server } from "../api/server.ts";
import { readAnswer } from "../api/stream.ts";
import type { Answer } from "../api/stream.ts";
import {
  busy,
  change,
  currentId,
  currentSettings,
  draftSettings,
  find,
  put,
  sortByTime,
  start,
  titleOf,
} from "./conversations.ts";
import { announce, showTokens } from "./view.ts";
import { blankMessage, childrenOf, openCalls, pathTo, shownPath, withMessage, without } from "./tree.ts";
import type { Conversation, Message } from "./types.ts";

const DRAW_MS = 40; // a growing answer is drawn at most so often

export function modelOf(conversation?: Conversation): string {
  const wanted = (conversation?.settings ?? currentSettings()).model;
  const served = server.value.models;
  return served.find((m) => m.id === wanted)?.id ?? served[0]?.id ?? wanted ?? "default";
}

export function say(text: string): void {
  let conversation = find(currentId.value) ?? start({ ...draftSettings.value }, titleOf(text));
  if (busy.value[conversation.id]) return;
  const parent = shownPath(conversation).at(-1)?.id ?? null;
  const message = blankMessage(parent, "user", text);
  if (parent === null && !conversation.named) conversation = { ...conversation, title: titleOf(text) };
  put(withMessage(conversation, message));
  sortByTime();
  void answer(conversation.id, message.id);
}

// The reader's message again with another text, as a new branch.
export function edit(id: string, text: string): void {
  const conversation = find(currentId.value);
  const old = conversation?.messages[id];
  if (!conversation || !old || busy.value[conversation.id]) return;
  const message = { ...blankMessage(old.parent, old.role, text), callId: old.callId };
  put(withMessage(conversation, message));
  continueFrom(conversation.id, message.id);
}

// After a tool's result the answer goes on only when no other result is missing.
function continueFrom(id: string, messageId: string): void {
  const conversation = find(id);
  if (!conversation || openCalls(pathTo(conversation, messageId))) return;
  void answer(id, messageId);
}

export function giveResults(results: { callId: string; content: string }[]): void {
  let conversation = find(currentId.value);
  if (!conversation || busy.value[conversation.id]) return;
  let parent = shownPath(conversation).at(-1)?.id ?? null;
  for (const { callId, content } of results) {
    const message = { ...blankMessage(parent, "tool", content), callId };
    conversation = withMessage(conversation, message);
    parent = message.id;
  }
  put(conversation);
  if (parent) continueFrom(conversation.id, parent);
}

// Another answer beside this one.
export function again(id: string): void {
  const conversation = find(currentId.value);
  const parent = conversation?.messages[id]?.parent;
  if (conversation && parent && !busy.value[conversation.id]) void answer(conversation.id, parent);
}

export function stop(): void {
  const id = currentId.value;
  if (id !== null) busy.value[id]?.abort();
}

export function turnTo(id: string, step: number): void {
  const conversation = find(currentId.value);
  const message = conversation?.messages[id];
  if (!conversation || !message) return;
  const siblings = childrenOf(conversation, message.parent);
  const next = siblings[siblings.findIndex((m) => m.id === id) + step];
  if (next) put({ ...conversation, chosen: { ...conversation.chosen, [message.parent ?? ""]: next.id } });
}

export function drop(id: string): void {
  const conversation = find(currentId.value);
  if (conversation && !busy.value[conversation.id]) put(without(conversation, id));
}

function setBusy(id: string, controller: AbortController | null): void {
  const next = { ...busy.value };
  if (controller) next[id] = controller;
  else delete next[id];
  busy.set(next);
}

async function answer(conversationId: string, parent: string): Promise<void> {
  const conversation = find(conversationId)!;
  const path = pathTo(conversation, parent);
  const settings = conversation.settings;
  const model = modelOf(conversation);
  const message: Message = { ...blankMessage(parent, "assistant", ""), model, json: settings.format !== "text" };
  const merge = (fields: Partial<Message>, soon: boolean) =>
    change(
      conversationId,
      (c) =>
        c.messages[message.id]
          ? {
              ...c,
              updated: Date.now(),
              messages: { ...c.messages, [message.id]: { ...c.messages[message.id]!, ...fields } },
            }
          : c,
      soon,
    );

  put(withMessage(conversation, message));
  const controller = new AbortController();
  setBusy(conversationId, controller);
  announce("The model is answering.");
  let latest: (() => Answer) | null = null;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const draw = () => {
    timer = undefined;
    if (latest) merge({ ...latest(), model: latest().model ?? model, finish: null }, true);
  };
  const sentAt = performance.now();
  let ending: Partial<Message>;
  try {
    const body = { ...chatBody(model, settings, path, showTokens.value), stream: true };
    const response = await sendRequest("v1/chat/completions", body, controller.signal);
    await readAnswer(response.body!, sentAt, (copy) => {
      latest = copy;
      timer ??= setTimeout(draw, DRAW_MS);
    });
    ending = { finish: latest ? ((latest as () => Answer)().finish ?? "stop") : "stop" };
  } catch (error) {
    ending = controller.signal.aborted ? { finish: "stopped" } : { finish: "error", error: faultFrom(error) };
  }
  clearTimeout(timer);
  merge(
    {
      ...(latest ? { ...(latest as () => Answer)(), model: (latest as () => Answer)().model ?? model } : {}),
      ...ending,
    },
    false,
  );
  setBusy(conversationId, null);
  announce(ending.error ? ending.error.sentence : ending.finish === "stopped" ? "Stopped." : "The answer is complete.");
}
