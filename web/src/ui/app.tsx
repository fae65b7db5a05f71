// The page: list of chats, chat, panel.
import { useEffect, useLayoutEffect } from "preact/hooks";
import { server } from "../api/server.ts";
import { watchMetrics } from "../api/metrics.ts";
import { stop } from "../state/chat.ts";
import { busy, conversations, currentId, find, open } from "../state/conversations.ts";
import { useStore } from "../state/store.ts";
import { dialog, panel, setPanel, setShowTokens, showTokens, sidebar, spoken, toast } from "../state/view.ts";
import { Composer, focusComposer } from "./composer.tsx";
import { Dialogs } from "./dialogs.tsx";
import { Panel } from "./panel.tsx";
import { IconButton } from "./parts.tsx";
import { Sidebar } from "./sidebar.tsx";
import { Thread } from "./thread.tsx";
import { Welcome } from "./welcome.tsx";

const FAST_MS = 1000; // live numbers while an answer runs or the reader looks at them
const SLOW_MS = 5000;

export function App() {
  const id = useStore(currentId);
  const conversation = useStore(conversations, () => find(id));
  const withSidebar = useStore(sidebar);
  const shownPanel = useStore(panel);
  const running = useStore(busy, (b) => Object.keys(b).length > 0);
  useLayoutEffect(() => {
    document.addEventListener("keydown", shortcut);
    return () => document.removeEventListener("keydown", shortcut);
  }, []);
  useEffect(() => {
    watchMetrics(running || shownPanel === "live" ? FAST_MS : SLOW_MS);
    return () => watchMetrics(0);
  }, [running, shownPanel === "live"]);
  useEffect(() => {
    document.title = conversation ? `${conversation.title} – DeepInfer` : "DeepInfer";
  }, [conversation?.title]);
  return (
    <div class={"app" + (withSidebar ? " with-sidebar" : "") + (shownPanel ? " with-panel" : "")}>
      <a class="skip" href="#composer" onClick={(e) => (e.preventDefault(), focusComposer())}>
        Skip to the message field
      </a>
      {withSidebar && <Sidebar />}
      {withSidebar && <div class="veil for-sidebar" onClick={() => sidebar.set(false)} />}
      <main>
        <Header title={conversation?.title ?? null} />
        {conversation && Object.keys(conversation.messages).length > 0 ? (
          <Thread conversation={conversation} />
        ) : (
          <Welcome />
        )}
        <Composer />
      </main>
      {shownPanel && <div class="veil for-panel" onClick={() => setPanel(null)} />}
      <Panel />
      <Dialogs />
      <Toast />
      <Spoken />
    </div>
  );
}

function Header({ title }: { title: string | null }) {
  const { models } = useStore(server);
  const tokens = useStore(showTokens);
  const shownPanel = useStore(panel);
  const withSidebar = useStore(sidebar);
  const first = models[0];
  return (
    <header class={"head" + (title === null ? "" : " with-title")}>
      <IconButton
        icon="menu"
        label={withSidebar ? "Hide the list of chats" : "Show the list of chats"}
        keys="Ctrl+Shift+S"
        onClick={() => sidebar.set(!withSidebar)}
      />
      <h2 class="chat-title">{title ?? "New chat"}</h2>
      {first && (
        <span
          class="model-name"
          title={first.bundled ? "The bundled model: small, made to show the machinery" : undefined}
        >
          {first.id}
          {first.bundled && <em>bundled</em>}
        </span>
      )}
      <span class="space" />
      <IconButton
        icon="tokens"
        label="Show tokens"
        keys="Ctrl+Shift+U"
        pressed={tokens}
        onClick={() => setShowTokens(!tokens)}
      />
      <IconButton icon="code" label="This request as code" keys="Ctrl+Shift+E" onClick={() => dialog.set("snippets")} />
      <IconButton
        icon="sliders"
        label="Panel"
        keys="Ctrl+."
        pressed={shownPanel !== null}
        onClick={() => setPanel(shownPanel ? null : "parameters")}
      />
    </header>
  );
}

function shortcut(event: KeyboardEvent): void {
  const ctrl = event.ctrlKey || event.metaKey;
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    if (currentId.value !== null && currentId.value in busy.value) stop();
    else if (window.innerWidth <= 1180 && panel.value) setPanel(null);
    else if (window.innerWidth <= 900 && sidebar.value) sidebar.set(false);
    return;
  }
  if (!ctrl) return;
  const key = (event.shiftKey ? "shift+" : "") + event.key.toLowerCase();
  const actions: Record<string, () => void> = {
    "shift+o": () => open(null),
    "shift+s": () => sidebar.set(!sidebar.value),
    "shift+u": () => setShowTokens(!showTokens.value),
    "shift+e": () => dialog.set("snippets"),
    ".": () => setPanel(panel.value ? null : "parameters"),
    "/": () => dialog.set(dialog.value === "keys" ? null : "keys"),
    arrowup: () => neighbour(-1),
    arrowdown: () => neighbour(1),
  };
  const action = actions[key];
  if (!action) return;
  event.preventDefault();
  action();
}

function neighbour(step: number): void {
  const list = conversations.value;
  const at = list.findIndex((c) => c.id === currentId.value);
  const next = list[at < 0 ? 0 : at + step];
  if (next) open(next.id);
}

function Toast() {
  const shown = useStore(toast);
  return (
    <div class="toasts" role="status">
      {shown && (
        <div class="toast">
          <span>{shown.text}</span>
          {shown.action && (
            <button
              type="button"
              onClick={() => {
                toast.set(null);
                shown.action!.run();
              }}
            >
              {shown.action.label}
            </button>
          )}
        </div>
      )}
    </div>
  );
}

function Spoken() {
  const text = useStore(spoken);
  return (
    <div class="offscreen" role="status" aria-live="polite">
      {text}
    </div>
  );
}
