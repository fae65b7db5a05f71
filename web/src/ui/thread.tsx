// The shown branch of a conversation, and the form for tool results at its end.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { giveResults, modelOf } from "../state/chat.ts";
import { busy } from "../state/conversations.ts";
import { useStore } from "../state/store.ts";
import { openCalls, shownPath } from "../state/tree.ts";
import type { Conversation, Message, ToolCall } from "../state/types.ts";
import { TOOLS } from "../presets.ts";
import { Icon } from "./icons.tsx";
import { MessageView } from "./message.tsx";
import { GrowingText } from "./parts.tsx";

export function Thread({ conversation }: { conversation: Conversation }) {
  const scroller = useRef<HTMLDivElement>(null);
  const [pinned, setPinned] = useState(true); // the view follows the answer
  const running = useStore(busy, (b) => conversation.id in b);
  const path = shownPath(conversation);
  const places = siblingPlaces(conversation);
  const open = running ? null : openCalls(path);
  const model = modelOf(conversation);

  useLayoutEffect(() => setPinned(true), [conversation.id, running]);
  useLayoutEffect(() => {
    if (pinned) scroller.current!.scrollTop = scroller.current!.scrollHeight;
  });
  const onScroll = () => {
    const box = scroller.current!;
    setPinned(box.scrollHeight - box.scrollTop - box.clientHeight < 40);
  };

  return (
    <div class="thread-frame">
      <div
        class="thread"
        ref={scroller}
        onScroll={onScroll}
        tabIndex={-1}
        role="log"
        aria-label="Conversation"
        aria-live="off"
      >
        <div class="column">
          {conversation.settings.system.trim() && (
            <details class="system-note">
              <summary>
                <Icon name="right" size={14} />
                System prompt
              </summary>
              <p class="plain">{conversation.settings.system}</p>
            </details>
          )}
          {path.map((m) => (
            <MessageView
              key={m.id}
              message={m}
              place={places.get(m.id)!.place}
              siblings={places.get(m.id)!.of}
              locked={running}
              model={model}
            />
          ))}
          {open && <Results key={open.answer.id + open.calls.length} calls={open.calls} />}
        </div>
      </div>
      {!pinned && (
        <button type="button" class="to-end" onClick={() => setPinned(true)}>
          <Icon name="down" size={16} /> Latest
        </button>
      )}
    </div>
  );
}

function siblingPlaces(conversation: Conversation): Map<string, { place: number; of: number }> {
  const groups = new Map<string | null, Message[]>();
  for (const m of Object.values(conversation.messages)) groups.set(m.parent, [...(groups.get(m.parent) ?? []), m]);
  const places = new Map<string, { place: number; of: number }>();
  for (const group of groups.values())
    group
      .sort((a, b) => a.created - b.created || (a.id < b.id ? -1 : 1))
      .forEach((m, place) => places.set(m.id, { place, of: group.length }));
  return places;
}

function Results({ calls }: { calls: ToolCall[] }) {
  const [texts, setTexts] = useState<Record<string, string>>({});
  const ready = calls.every((c) => texts[c.id]?.trim());
  const give = () => ready && giveResults(calls.map((c) => ({ callId: c.id, content: texts[c.id]! })));
  return (
    <form class="results" aria-label="Results of the calls" onSubmit={(e) => (e.preventDefault(), give())}>
      <p>The model waits for {calls.length === 1 ? "this result" : "these results"}. Type what the tool says.</p>
      {calls.map((c) => {
        const example = TOOLS.find((t) => t.name === c.name)?.result;
        return (
          <div key={c.id} class="field">
            <div class="row between">
              <strong>{c.name}</strong>
              {example && (
                <button type="button" class="small-button" onClick={() => setTexts({ ...texts, [c.id]: example })}>
                  Fill in an example
                </button>
              )}
            </div>
            <GrowingText
              code
              value={texts[c.id] ?? ""}
              onInput={(text) => setTexts({ ...texts, [c.id]: text })}
              label={`Result of ${c.name}`}
              placeholder='{"status": "ok"}'
            />
          </div>
        );
      })}
      <div class="row end">
        <button type="submit" class="small-button primary" disabled={!ready}>
          Give the result{calls.length === 1 ? "" : "s"} to the model
        </button>
      </div>
    </form>
  );
}
