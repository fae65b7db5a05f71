// Dialogs: the request as code, settings of the page, the keyboard.
import { useState } from "preact/hooks";
import { apiKey, keyWanted, setKey } from "../api/client.ts";
import { askServer, server } from "../api/server.ts";
import { chatBody } from "../api/request.ts";
import { modelOf } from "../state/chat.ts";
import { conversations, currentId, currentSettings, find } from "../state/conversations.ts";
import { useStore } from "../state/store.ts";
import { openCalls, shownPath, blankMessage } from "../state/tree.ts";
import type { Message } from "../state/types.ts";
import { dialog, setTheme, showTokens, theme } from "../state/view.ts";
import type { Theme } from "../state/view.ts";
import { SNIPPETS, snippet } from "../text/snippets.ts";
import type { SnippetKind } from "../text/snippets.ts";
import { draft } from "./composer.tsx";
import { Code } from "./markdown.tsx";
import { Modal, Tabs } from "./parts.tsx";

const close = () => dialog.set(null);

export function Dialogs() {
  const shown = useStore(dialog);
  const wanted = useStore(keyWanted);
  if (wanted) return <KeyDialog />;
  if (shown === "snippets") return <SnippetsDialog />;
  if (shown === "settings") return <SettingsDialog />;
  if (shown === "keys") return <KeyboardDialog />;
  return null;
}

// What would be asked next: the shown messages up to the last that an answer follows, and what stands in the composer.
function nextQuestion(): Message[] {
  const conversation = find(currentId.value);
  let path = conversation ? shownPath(conversation) : [];
  if (draft.value.trim() && !openCalls(path))
    return [...path, blankMessage(path.at(-1)?.id ?? null, "user", draft.value)];
  while (path.length && path.at(-1)!.role === "assistant") path = path.slice(0, -1);
  return path.length ? path : [blankMessage(null, "user", "Tell me a short story.")];
}

function SnippetsDialog() {
  const [kind, setKind] = useState<SnippetKind>("curl");
  useStore(conversations);
  const key = useStore(apiKey);
  let text: string;
  try {
    text = snippet(
      kind,
      location.origin,
      chatBody(modelOf(), currentSettings(), nextQuestion(), showTokens.value),
      Boolean(key),
    );
  } catch (error) {
    text = `# ${error instanceof Error ? error.message : "The request cannot be built."}`;
  }
  const known = SNIPPETS.find((s) => s.id === kind)!;
  return (
    <Modal title="This request as code" onClose={close} wide>
      <Tabs tabs={SNIPPETS.map(({ id, name }) => ({ id, name }))} value={kind} onChange={setKind} label="Client" />
      <div role="tabpanel" id={`pane-${kind}`} aria-labelledby={`tab-${kind}`} class="snippet">
        <Code lang={known.lang} label={known.name} text={text} />
      </div>
      <p class="muted">
        The message in the composer, or the last question, with this chat's parameters, tools and format.
      </p>
    </Modal>
  );
}

function KeyForm({ onDone }: { onDone: () => void }) {
  const [key, setText] = useState(apiKey.value);
  const [remember, setRemember] = useState(false);
  return (
    <form
      onSubmit={(e) => {
        e.preventDefault();
        setKey(key.trim(), remember);
        void askServer();
        onDone();
      }}
    >
      <label class="field">
        <span>API key</span>
        <input
          type="password"
          autocomplete="off"
          spellcheck={false}
          value={key}
          onInput={(e) => setText(e.currentTarget.value)}
        />
      </label>
      <label class="check-line">
        <input type="checkbox" checked={remember} onChange={(e) => setRemember(e.currentTarget.checked)} /> Remember it
        in this browser
      </label>
      <div class="row end">
        <button type="submit" class="small-button primary">
          Use this key
        </button>
      </div>
    </form>
  );
}

function KeyDialog() {
  return (
    <Modal title="This server wants an API key" onClose={() => keyWanted.set(false)}>
      <p class="muted">It is sent to this server only.</p>
      <KeyForm onDone={() => keyWanted.set(false)} />
    </Modal>
  );
}

const THEMES: { id: Theme; name: string }[] = [
  { id: "system", name: "As the system" },
  { id: "light", name: "Light" },
  { id: "dark", name: "Dark" },
];

function SettingsDialog() {
  const look = useStore(theme);
  const { models, version } = useStore(server);
  return (
    <Modal title="Settings" onClose={close}>
      <fieldset class="field">
        <legend>Theme</legend>
        <div class="segments">
          {THEMES.map((t) => (
            <label key={t.id}>
              <input type="radio" name="theme" checked={look === t.id} onChange={() => setTheme(t.id)} />
              <span>{t.name}</span>
            </label>
          ))}
        </div>
      </fieldset>
      <KeyForm onDone={close} />
      <dl class="totals">
        <dt>Server</dt>
        <dd>DeepInfer {version ?? ""}</dd>
        {models.map((m) => (
          <>
            <dt>Model</dt>
            <dd>
              {m.id}
              {m.context ? `, ${m.context.toLocaleString("en-US")} tokens of context` : ""}
            </dd>
          </>
        ))}
      </dl>
      <p class="muted">
        <a href="./licenses.txt" target="_blank" rel="noopener">
          Licences of what this page contains
        </a>
      </p>
    </Modal>
  );
}

const KEYS: [string, string][] = [
  ["Enter", "Send"],
  ["Shift + Enter", "A new line"],
  ["↑ in an empty message", "Edit the last message"],
  ["Esc", "Stop the answer; close what is open"],
  ["Ctrl + Shift + O", "New chat"],
  ["Ctrl + Shift + S", "Show or hide the list of chats"],
  ["Ctrl + .", "Show or hide the panel"],
  ["Ctrl + Shift + U", "Show tokens"],
  ["Ctrl + Shift + E", "This request as code"],
  ["Ctrl + ↑ / ↓", "Previous or next chat"],
  ["Ctrl + /", "This list"],
];

function KeyboardDialog() {
  return (
    <Modal title="Keyboard" onClose={close}>
      <dl class="keys">
        {KEYS.map(([key, does]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <p class="muted">In the token view the arrow keys go from token to token. Double-click a chat to rename it.</p>
    </Modal>
  );
}
