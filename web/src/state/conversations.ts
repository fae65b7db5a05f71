// The reader's conversations, kept in the browser.
import { server } from "../api/server.ts";
import { Store } from "./store.ts";
import { shownPath, newId } from "./tree.ts";
import { DEFAULTS } from "./types.ts";
import type { Conversation, Settings } from "./types.ts";
import * as database from "./database.ts";
import { readConversation, readSettings } from "./exchange.ts";

export const conversations = new Store<Conversation[]>([]); // newest first
export const currentId = new Store<string | null>(null); // null: the page of a new chat
export const draftSettings = new Store<Settings>(loadDefaults()); // of the chat that has no message yet
export const busy = new Store<Record<string, AbortController>>({}); // conversation -> its running request

const SAVE_MS = 1000;
const dirty = new Set<string>();
let timer: ReturnType<typeof setTimeout> | undefined;

// Small models ramble at temperature 1; the reader sees both values and may change them.
const BUNDLED: Partial<Settings> = { temperature: 0.2, thinking: false };

function loadDefaults(): Settings {
  try {
    const kept = localStorage.getItem("deepinfer.defaults");
    if (kept !== null) return readSettings(JSON.parse(kept));
  } catch {
    // Unreadable ones do not count.
  }
  return { ...DEFAULTS, ...(server.value.models[0]?.bundled ? BUNDLED : {}) };
}

// What serves is known only after the page stands: a new chat that nobody has touched takes over what suits it.
export function settleDefaults(): void {
  const untouched = JSON.stringify(draftSettings.value) === JSON.stringify(DEFAULTS);
  if (currentId.value === null && untouched) draftSettings.set(loadDefaults());
}

export function keepAsDefaults(settings: Settings): void {
  try {
    localStorage.setItem("deepinfer.defaults", JSON.stringify(settings));
  } catch {
    // Without storage they hold until the page is closed.
  }
}

export function find(id: string | null): Conversation | undefined {
  return id === null ? undefined : conversations.value.find((c) => c.id === id);
}

// `soon`: many changes come; they are saved together, a moment later.
export function put(conversation: Conversation, soon = false): void {
  const rest = conversations.value;
  const at = rest.findIndex((c) => c.id === conversation.id);
  conversations.set(at < 0 ? [conversation, ...rest] : rest.map((c, i) => (i === at ? conversation : c)));
  dirty.add(conversation.id);
  if (soon) timer ??= setTimeout(flush, SAVE_MS);
  else flush();
}

export function change(id: string, edit: (conversation: Conversation) => Conversation, soon = false): void {
  const conversation = find(id);
  if (conversation) put(edit(conversation), soon);
}

export function flush(): void {
  clearTimeout(timer);
  timer = undefined;
  for (const id of dirty) {
    const conversation = find(id);
    if (conversation) void database.save(conversation);
  }
  dirty.clear();
}

export function sortByTime(): void {
  conversations.update((list) => [...list].sort((a, b) => b.updated - a.updated));
}

export async function load(): Promise<void> {
  const read: Conversation[] = [];
  for (const record of await database.loadAll()) {
    try {
      read.push(readConversation(record, "stored"));
    } catch {
      // A record that cannot be read is left where it is.
    }
  }
  // What another tab wrote is taken over; what runs or is unsaved here stays.
  const mine = conversations.value.filter((c) => dirty.has(c.id) || busy.value[c.id]);
  const kept = new Set(mine.map((c) => c.id));
  conversations.set([...mine, ...read.filter((c) => !kept.has(c.id))].sort((a, b) => b.updated - a.updated));
}

export function start(settings: Settings, title: string): Conversation {
  const now = Date.now();
  const conversation: Conversation = {
    id: newId(),
    title,
    named: false,
    created: now,
    updated: now,
    settings,
    messages: {},
    chosen: {},
  };
  put(conversation);
  open(conversation.id);
  return conversation;
}

export function open(id: string | null): void {
  if (id === null) draftSettings.set(loadDefaults());
  currentId.set(id);
  history.replaceState(null, "", id === null ? location.pathname + location.search : `#/${id}`);
}

// Takes a conversation away and returns the way back.
export function discard(id: string): () => void {
  const gone = find(id);
  busy.value[id]?.abort();
  conversations.update((list) => list.filter((c) => c.id !== id));
  dirty.delete(id);
  void database.remove(id);
  if (currentId.value === id) open(null);
  return () => {
    if (!gone) return;
    put(gone);
    sortByTime();
    open(gone.id);
  };
}

export function currentSettings(): Settings {
  return find(currentId.value)?.settings ?? draftSettings.value;
}

export function editSettings(edit: Partial<Settings>): void {
  const id = currentId.value;
  if (id === null) draftSettings.update((s) => ({ ...s, ...edit }));
  else change(id, (c) => ({ ...c, settings: { ...c.settings, ...edit } }), true);
}

export function titleOf(text: string): string {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > 60 ? line.slice(0, 57).trimEnd() + "…" : line || "New chat";
}

// Adds what a file holds. A conversation that is here already under its id comes in as a copy.
export function bringIn(list: Conversation[]): void {
  for (const c of list) put(find(c.id) ? { ...c, id: newId(), title: `${c.title} (imported)` } : c);
  sortByTime();
}

export function lastMessage(conversation: Conversation) {
  return shownPath(conversation).at(-1);
}
