// How the page looks at the moment; nothing here belongs to a conversation.
import { Store } from "./store.ts";

export type Panel = "parameters" | "tools" | "format" | "live";
export type Dialog = "snippets" | "settings" | "keys" | null;
export type Theme = "system" | "light" | "dark";

const WIDE = 1180; // from here on the panel stands beside the chat

export const panel = new Store<Panel | null>(firstPanel());
export const dialog = new Store<Dialog>(null);
export const sidebar = new Store<boolean>(window.innerWidth > 900);
export const showTokens = new Store<boolean>(read("tokens", "") === "on");
export const theme = new Store<Theme>((read("theme", "system") ?? "system") as Theme);
export const editing = new Store<string | null>(null); // the message whose text is being edited
export const spoken = new Store(""); // read out by screen readers
export const toast = new Store<{ text: string; action?: { label: string; run: () => void } } | null>(null);

function firstPanel(): Panel | null {
  const kept = window.innerWidth > WIDE ? read("panel", "parameters") : null;
  return kept === "parameters" || kept === "tools" || kept === "format" || kept === "live" ? kept : null;
}

function read(key: string, fallback: string): string | null {
  try {
    return (localStorage.getItem("deepinfer." + key) ?? fallback) || null;
  } catch {
    return fallback || null;
  }
}

function write(key: string, value: string): void {
  try {
    localStorage.setItem("deepinfer." + key, value);
  } catch {
    // Without storage it holds until the page is closed.
  }
}

export function setTheme(next: Theme): void {
  if (next === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = next;
  write("theme", next);
  theme.set(next);
}

export function setPanel(next: Panel | null): void {
  if (window.innerWidth > WIDE) write("panel", next ?? "closed");
  panel.set(next);
}

export function setShowTokens(on: boolean): void {
  write("tokens", on ? "on" : "off");
  showTokens.set(on);
}

export function announce(text: string): void {
  spoken.set(text);
}

let toastTimer: ReturnType<typeof setTimeout> | undefined;

export function notify(text: string, action?: { label: string; run: () => void }): void {
  clearTimeout(toastTimer);
  toast.set(action ? { text, action } : { text });
  toastTimer = setTimeout(() => toast.set(null), action ? 8000 : 4000);
}
