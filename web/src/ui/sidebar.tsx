// The list of conversations: open, rename, delete, find, export, import.
import { useRef, useState } from "preact/hooks";
import { bringIn, change, conversations, currentId, discard, find, open } from "../state/conversations.ts";
import { FILE_BYTES_MAX, fromFile, toFile } from "../state/exchange.ts";
import { stored } from "../state/database.ts";
import { memo } from "../memo.ts";
import { useStore } from "../state/store.ts";
import { dialog, notify, setTheme, sidebar, theme } from "../state/view.ts";
import type { Theme } from "../state/view.ts";
import type { Conversation } from "../state/types.ts";
import { Icon } from "./icons.tsx";
import { IconButton } from "./parts.tsx";

export function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

async function importFile(file: File): Promise<void> {
  try {
    if (file.size > FILE_BYTES_MAX) throw new Error(`This file is larger than ${FILE_BYTES_MAX >> 20} MiB.`);
    const list = fromFile(await file.text());
    bringIn(list);
    if (list[0])
      open(conversations.value.find((c) => c.updated === Math.max(...list.map((l) => l.updated)))?.id ?? null);
    notify(`${list.length} conversation${list.length === 1 ? "" : "s"} imported.`);
  } catch (error) {
    notify(error instanceof Error ? error.message : "This file cannot be read.");
  }
}

function choose(id: string | null): void {
  open(id);
  if (window.innerWidth <= 900) sidebar.set(false);
}

const NEXT_THEME: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

export function Sidebar() {
  const list = useStore(conversations);
  const current = useStore(currentId);
  const look = useStore(theme);
  const [query, setQuery] = useState("");
  const file = useRef<HTMLInputElement>(null);
  const words = query.trim().toLowerCase();
  const found = words ? list.filter((c) => matches(c, words)) : list;
  return (
    <nav class="sidebar" aria-label="Conversations">
      <div class="brand">
        <Logo />
        <strong>DeepInfer</strong>
        <IconButton icon="close" label="Hide the list" class="only-small" onClick={() => sidebar.set(false)} />
      </div>
      <button type="button" class="new-chat" onClick={() => choose(null)} title="New chat (Ctrl+Shift+O)">
        <Icon name="plus" /> New chat
      </button>
      {list.length > 3 && (
        <label class="find">
          <Icon name="search" size={16} />
          <input
            type="search"
            placeholder="Find"
            aria-label="Find a conversation"
            value={query}
            onInput={(e) => setQuery(e.currentTarget.value)}
          />
        </label>
      )}
      <ul class="chats">
        {found.map((c) => (
          <Entry key={c.id} id={c.id} title={c.title} current={c.id === current} />
        ))}
        {found.length === 0 && <li class="none">{words ? "Nothing found" : "Your chats stay in this browser."}</li>}
      </ul>
      {!stored && <p class="note">This browser keeps nothing for this page: chats end with it.</p>}
      <div class="sidebar-foot">
        <IconButton
          icon={look === "system" ? "auto" : look === "light" ? "sun" : "moon"}
          label={`Theme: ${look}`}
          onClick={() => setTheme(NEXT_THEME[look])}
        />
        <IconButton icon="import" label="Import conversations" onClick={() => file.current!.click()} />
        <IconButton
          icon="export"
          label="Export all conversations"
          disabled={list.length === 0}
          onClick={() => download("deepinfer-conversations.json", toFile(list))}
        />
        <IconButton icon="keyboard" label="Keyboard" keys="Ctrl+/" onClick={() => dialog.set("keys")} />
        <IconButton icon="gear" label="Settings" onClick={() => dialog.set("settings")} />
        <input
          ref={file}
          type="file"
          accept="application/json,.json"
          class="offscreen"
          aria-label="File with conversations"
          tabIndex={-1}
          onChange={(e) => {
            const chosen = e.currentTarget.files?.[0];
            e.currentTarget.value = "";
            if (chosen) void importFile(chosen);
          }}
        />
      </div>
    </nav>
  );
}

function matches(c: Conversation, words: string): boolean {
  return (
    c.title.toLowerCase().includes(words) ||
    Object.values(c.messages).some((m) => m.content.toLowerCase().includes(words))
  );
}

const Entry = memo(({ id, title, current }: { id: string; title: string; current: boolean }) => {
  const [name, setName] = useState<string | null>(null);
  const rename = () => {
    const next = name?.trim();
    if (next) change(id, (c) => ({ ...c, title: next.slice(0, 200), named: true }));
    setName(null);
  };
  if (name !== null)
    return (
      <li>
        <input
          class="rename"
          aria-label="New name"
          value={name}
          ref={(el) => {
            if (!el || document.activeElement === el) return;
            el.focus();
            el.select();
          }}
          onInput={(e) => setName(e.currentTarget.value)}
          onBlur={rename}
          onKeyDown={(e) => {
            if (e.key === "Enter") rename();
            if (e.key === "Escape") (e.stopPropagation(), setName(null));
          }}
        />
      </li>
    );
  const remove = () => notify(`“${title}” deleted.`, { label: "Undo", run: discard(id) });
  return (
    <li class={current ? "current" : undefined}>
      <button
        type="button"
        class="open"
        aria-current={current ? "page" : undefined}
        onClick={() => choose(id)}
        onDblClick={() => setName(title)}
        title={title}
      >
        {title}
      </button>
      <span class="entry-actions">
        <IconButton icon="edit" label={`Rename ${title}`} size={15} onClick={() => setName(title)} />
        <IconButton
          icon="export"
          label={`Export ${title}`}
          size={15}
          onClick={() => download("deepinfer-conversation.json", toFile([find(id)!]))}
        />
        <IconButton icon="trash" label={`Delete ${title}`} size={15} onClick={remove} />
      </span>
    </li>
  );
});

export function Logo({ size = 24 }: { size?: number }) {
  return (
    <svg class="logo" viewBox="0 0 32 32" width={size} height={size} aria-hidden="true">
      <rect width="32" height="32" rx="9" />
      <path d="M8 21c4 0 4-10 8-10s4 10 8 10" />
      <circle cx="16" cy="21.4" r="1.9" />
    </svg>
  );
}
