// One message: text, thinking, calls, figures, and what can be done with it.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { memo } from "../memo.ts";
import { again, drop, edit, turnTo } from "../state/chat.ts";
import { editing, setPanel, showTokens } from "../state/view.ts";
import { useStore } from "../state/store.ts";
import type { Message, TokenProb } from "../state/types.ts";
import { jsonFault } from "../api/request.ts";
import { Icon } from "./icons.tsx";
import { Code, Markdown } from "./markdown.tsx";
import { CopyButton, GrowingText, IconButton } from "./parts.tsx";
import { TokensView } from "./tokens.tsx";

interface Props {
  message: Message;
  place: number; // among its siblings, from 0
  siblings: number;
  locked: boolean; // an answer of this conversation is running
  model: string;
}

const NO_TOKENS: TokenProb[] = [];

export const MessageView = memo((props: Props) => {
  const { message } = props;
  if (message.role === "user") return <UserMessage {...props} />;
  if (message.role === "tool") return <ToolResult {...props} />;
  return <Answer {...props} />;
});

function UserMessage(props: Props) {
  const { message, locked, model } = props;
  const isEditing = useStore(editing) === message.id;
  const withTokens = useStore(showTokens);
  return (
    <article class="message user" aria-label="You">
      {isEditing ? (
        <EditBox message={message} label="Your message" />
      ) : (
        <div class="bubble">
          {withTokens ? (
            <TokensView text={message.content} tokens={NO_TOKENS} model={model} growing={false} />
          ) : (
            <div class="plain">{message.content}</div>
          )}
        </div>
      )}
      {!isEditing && (
        <div class="actions">
          <Branches {...props} />
          <CopyButton text={message.content} />
          <IconButton icon="edit" label="Edit" size={16} disabled={locked} onClick={() => editing.set(message.id)} />
          <IconButton
            icon="trash"
            label="Delete from here"
            size={16}
            disabled={locked}
            onClick={() => drop(message.id)}
          />
        </div>
      )}
    </article>
  );
}

function EditBox({ message, label, code }: { message: Message; label: string; code?: boolean }) {
  const [text, setText] = useState(message.content);
  const box = useRef<HTMLFormElement>(null);
  // Before the first paint: what a quick reader selects or types must not be met by a caret that moves.
  useLayoutEffect(() => {
    const area = box.current!.querySelector("textarea")!;
    area.focus();
    area.setSelectionRange(area.value.length, area.value.length);
  }, []);
  const done = () => editing.set(null);
  const submit = () => {
    if (!text.trim()) return;
    done();
    edit(message.id, text);
  };
  return (
    <form
      ref={box}
      class="edit-box"
      onSubmit={(e) => (e.preventDefault(), submit())}
      onKeyDown={(e) => {
        if (e.key === "Escape") (e.stopPropagation(), done());
        if (e.key === "Enter" && !e.shiftKey && !e.isComposing) (e.preventDefault(), submit());
      }}
    >
      <GrowingText value={text} onInput={setText} label={label} code={code ?? false} />
      <div class="row end">
        <button type="button" class="small-button" onClick={done}>
          Cancel
        </button>
        <button type="submit" class="small-button primary" disabled={!text.trim()}>
          Send as a new branch
        </button>
      </div>
    </form>
  );
}

function Answer(props: Props) {
  const { message, locked, model } = props;
  const withTokens = useStore(showTokens);
  const growing = message.finish === null;
  const empty = !message.content && !message.reasoning && !message.calls.length;
  return (
    <article class={"message answer" + (growing ? " growing" : "")} aria-label="Answer" aria-busy={growing}>
      {growing && empty && (
        <p class="waiting">
          <i />
          <i />
          <i />
          <span class="offscreen">Waiting for the first token</span>
        </p>
      )}
      {message.reasoning && <Thinking message={message} withTokens={withTokens} model={model} />}
      {message.content &&
        (withTokens ? (
          <TokensView
            answer
            text={message.content}
            tokens={message.tokens?.content ?? NO_TOKENS}
            model={model}
            growing={growing}
          />
        ) : message.json ? (
          <JsonAnswer text={message.content} growing={growing} />
        ) : (
          <Markdown text={message.content} />
        ))}
      {message.calls.map((call, i) => (
        <section key={i} class="call" aria-label={`Call of ${call.name}`}>
          <h3>
            <Icon name="tool" size={15} /> {call.name || "…"}
          </h3>
          <Code lang="json" label="arguments" text={pretty(call.arguments)} />
        </section>
      ))}
      {message.error && (
        <div class="fault" role="alert">
          <p>{message.error.sentence}</p>
          <div class="row">
            <button type="button" class="small-button" disabled={locked} onClick={() => again(message.id)}>
              <Icon name="again" size={14} /> Try again
            </button>
            {message.error.param && faultPanel(message.error.param) && (
              <button type="button" class="small-button" onClick={() => setPanel(faultPanel(message.error!.param!))}>
                Show where
              </button>
            )}
          </div>
        </div>
      )}
      {!growing && <AnswerFoot {...props} />}
    </article>
  );
}

export function faultPanel(param: string): "tools" | "format" | "parameters" | null {
  if (/^tool/.test(param)) return "tools";
  if (/^response_format/.test(param)) return "format";
  return /^(messages|model)/.test(param) ? null : "parameters";
}

function Thinking({ message, withTokens, model }: { message: Message; withTokens: boolean; model: string }) {
  const growing = message.finish === null && !message.content && !message.calls.length;
  return (
    <details class="thinking">
      <summary>
        <Icon name="right" size={14} />
        {growing ? (
          <span class="shimmer">Thinking…</span>
        ) : (
          `Thought${message.usage?.reasoning ? ` for ${message.usage.reasoning} tokens` : ""}`
        )}
      </summary>
      {withTokens ? (
        <TokensView
          answer
          text={message.reasoning}
          tokens={message.tokens?.reasoning ?? NO_TOKENS}
          model={model}
          growing={growing}
        />
      ) : (
        <Markdown text={message.reasoning} />
      )}
    </details>
  );
}

function JsonAnswer({ text, growing }: { text: string; growing: boolean }) {
  const fault = growing ? null : jsonFault(text);
  return (
    <>
      <Code lang="json" text={growing ? text : pretty(text)} />
      {!growing && <p class={fault ? "check bad" : "check"}>{fault ? `Not complete: ${fault}` : "Valid JSON"}</p>}
    </>
  );
}

export function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

const ENDINGS: Record<string, string> = {
  length: "Cut at the token limit",
  stopped: "Stopped",
  content_filter: "Filtered",
  error: "",
};

function AnswerFoot(props: Props) {
  const { message, locked } = props;
  const ending = ENDINGS[message.finish ?? ""];
  return (
    <div class="actions">
      <Branches {...props} />
      {message.content && <CopyButton text={message.content} />}
      <IconButton icon="again" label="Answer again" size={16} disabled={locked} onClick={() => again(message.id)} />
      {ending && <span class="badge">{ending}</span>}
      <Figures message={message} />
    </div>
  );
}

function Figures({ message }: { message: Message }) {
  const { usage, timing } = message;
  if (!usage || !timing) return null;
  const seconds = (timing.totalMs - timing.firstMs) / 1000;
  const rate = usage.completion > 1 && seconds > 0 ? (usage.completion - 1) / seconds : null;
  const title = [
    `${usage.prompt} prompt tokens, ${usage.cached} of them cached`,
    `${usage.completion} answer tokens${usage.reasoning ? `, ${usage.reasoning} of them thinking` : ""}`,
    `first token after ${Math.round(timing.firstMs)} ms`,
    message.model ?? "",
  ].join("\n");
  return (
    <span class="figures" title={title}>
      <span data-figure="completion">{usage.completion} tokens</span>
      {rate !== null && <span data-figure="rate">{rate >= 100 ? Math.round(rate) : rate.toFixed(1)} tokens/s</span>}
      <span data-figure="first">{Math.round(timing.firstMs)} ms to the first</span>
      {usage.cached > 0 && (
        <span data-figure="cached">
          {usage.cached} of {usage.prompt} cached
        </span>
      )}
    </span>
  );
}

function Branches({ message, place, siblings, locked }: Props) {
  if (siblings < 2) return null;
  return (
    <span class="branches" role="group" aria-label={`Branch ${place + 1} of ${siblings}`}>
      <IconButton
        icon="left"
        label="Previous branch"
        size={15}
        disabled={locked || place === 0}
        onClick={() => turnTo(message.id, -1)}
      />
      <span aria-hidden="true">
        {place + 1}/{siblings}
      </span>
      <IconButton
        icon="right"
        label="Next branch"
        size={15}
        disabled={locked || place === siblings - 1}
        onClick={() => turnTo(message.id, 1)}
      />
    </span>
  );
}

function ToolResult(props: Props) {
  const { message, locked } = props;
  const isEditing = useStore(editing) === message.id;
  return (
    <article class="message result" aria-label="Tool result">
      {isEditing ? (
        <EditBox message={message} label="Tool result" code />
      ) : (
        <Code lang="json" label="tool result" text={pretty(message.content)} />
      )}
      {!isEditing && (
        <div class="actions">
          <Branches {...props} />
          <IconButton
            icon="edit"
            label="Edit the result"
            size={16}
            disabled={locked}
            onClick={() => editing.set(message.id)}
          />
        </div>
      )}
    </article>
  );
}
