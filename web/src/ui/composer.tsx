// Where the reader writes, with what is switched on for the next answer.
import { useLayoutEffect, useRef } from "preact/hooks";
import { say, stop } from "../state/chat.ts";
import {
  busy,
  conversations,
  currentId,
  currentSettings,
  draftSettings,
  editSettings,
  find,
} from "../state/conversations.ts";
import { Store, useStore } from "../state/store.ts";
import { openCalls, shownPath } from "../state/tree.ts";
import { editing, panel, setPanel } from "../state/view.ts";
import type { Panel } from "../state/view.ts";
import { Icon } from "./icons.tsx";
import type { IconName } from "./icons.tsx";
import { GrowingText } from "./parts.tsx";
import { LiveLine } from "./live.tsx";

export const draft = new Store("");

export function focusComposer(): void {
  document.getElementById("composer")?.focus();
}

export function Composer() {
  const text = useStore(draft);
  const id = useStore(currentId);
  const running = useStore(busy, (b) => id !== null && id in b);
  const waiting = useStore(conversations, () => waitsForResults(id));
  const form = useRef<HTMLFormElement>(null);
  useLayoutEffect(() => {
    if (window.innerWidth > 900) focusComposer();
  }, [id]);
  const submit = () => {
    if (!text.trim() || running || waiting) return;
    draft.set("");
    say(text);
  };
  const keys = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    } else if (event.key === "ArrowUp" && text === "" && !running) {
      const conversation = find(id);
      const last = conversation && shownPath(conversation).findLast((m) => m.role === "user");
      if (last) {
        event.preventDefault();
        editing.set(last.id);
      }
    }
  };
  return (
    <form ref={form} class="composer" onSubmit={(e) => (e.preventDefault(), submit())}>
      <div class="composer-box" onKeyDown={keys}>
        <GrowingText
          id="composer"
          class="composer-text"
          rows={1}
          value={text}
          onInput={(t) => draft.set(t)}
          label="Message"
          placeholder={waiting ? "The model waits for the result of its call" : "Write a message"}
        />
        <div class="composer-row">
          <Chips />
          {running ? (
            <button type="button" class="send stop" onClick={stop} aria-label="Stop" title="Stop (Esc)">
              <Icon name="stop" />
            </button>
          ) : (
            <button
              type="submit"
              class="send"
              disabled={!text.trim() || waiting}
              aria-label="Send"
              title="Send (Enter)"
            >
              <Icon name="send" />
            </button>
          )}
        </div>
      </div>
      <LiveLine />
    </form>
  );
}

function waitsForResults(id: string | null): boolean {
  const conversation = find(id);
  return conversation !== undefined && openCalls(shownPath(conversation)) !== null;
}

function Chips() {
  useStore(conversations, () => currentSettings());
  useStore(draftSettings);
  useStore(currentId);
  const settings = currentSettings();
  const tools = settings.tools.filter((t) => t.on).length;
  const changed =
    [
      settings.temperature,
      settings.topP,
      settings.topK,
      settings.minP,
      settings.maxTokens,
      settings.seed,
      settings.frequencyPenalty,
      settings.presencePenalty,
      settings.repetitionPenalty,
    ].filter((v) => v !== null).length + settings.stop.length;
  return (
    <div class="chips" role="group" aria-label="For the next answer">
      <button
        type="button"
        class={"chip" + (settings.thinking ? " on" : "")}
        aria-label={`Thinking: ${settings.thinking === null ? "as the server does" : settings.thinking ? "on" : "off"}`}
        onClick={() => editSettings({ thinking: settings.thinking === null ? true : settings.thinking ? false : null })}
      >
        <Icon name="spark" size={15} />
        Thinking{settings.thinking === null ? "" : settings.thinking ? " on" : " off"}
      </button>
      <PanelChip
        id="tools"
        icon="tool"
        name={tools ? `${tools} tool${tools === 1 ? "" : "s"}` : "Tools"}
        on={tools > 0}
      />
      <PanelChip
        id="format"
        icon="braces"
        name={settings.format === "text" ? "JSON" : settings.format === "json" ? "Any JSON" : "JSON schema"}
        on={settings.format !== "text"}
      />
      <PanelChip id="parameters" icon="sliders" name={changed ? `${changed} set` : "Parameters"} on={changed > 0} />
    </div>
  );
}

function PanelChip({ id, icon, name, on }: { id: Panel; icon: IconName; name: string; on: boolean }) {
  const open = useStore(panel) === id;
  return (
    <button
      type="button"
      class={`chip for-${id}${on ? " on" : ""}`}
      aria-expanded={open}
      aria-controls="panel"
      onClick={() => setPanel(open ? null : id)}
    >
      <Icon name={icon} size={15} />
      {name}
    </button>
  );
}
