// A text as its tokens: number, probability and the likeliest alternatives of each on hover, focus or touch.
import { useEffect, useRef, useState } from "preact/hooks";
import { tokenize } from "../api/server.ts";
import type { Piece } from "../api/server.ts";
import { faultFrom } from "../api/fault.ts";
import type { TokenProb } from "../state/types.ts";
import { align, percent, surprise, visible } from "../text/align.ts";
import type { ShownToken } from "../text/align.ts";

const SHOWN_MAX = 4000; // tokens drawn at once

export function TokensView({
  text,
  tokens,
  model,
  growing,
  answer,
}: {
  text: string;
  tokens: TokenProb[];
  model: string;
  growing: boolean;
  answer?: boolean; // of the model, so it may have probabilities
}) {
  const [pieces, setPieces] = useState<Piece[]>([]);
  const [fault, setFault] = useState<string | null>(null);
  const [open, setOpen] = useState<{ index: number; x: number; y: number; below: boolean } | null>(null);
  const box = useRef<HTMLDivElement>(null);

  useEffect(() => {
    if (growing) return;
    let current = true;
    tokenize(text, model).then(
      (found) => current && (setPieces(found), setFault(null)),
      (error) => current && setFault(faultFrom(error).sentence),
    );
    return () => {
      current = false;
    };
  }, [text, model, growing]);

  const shown = align(tokens, pieces);
  const tokenAt = (target: EventTarget | null) => {
    const element = (target as HTMLElement | null)?.closest?.<HTMLElement>("[data-token]");
    return element ? { element, index: Number(element.dataset["token"]) } : null;
  };
  const show = (event: Event) => {
    const found = tokenAt(event.target);
    if (!found) return;
    const rect = found.element.getClientRects()[0] ?? found.element.getBoundingClientRect();
    const below = rect.top < 260;
    setOpen({
      index: found.index,
      x: Math.min(Math.max(rect.left + rect.width / 2, 140), window.innerWidth - 140),
      y: below ? rect.bottom + 6 : rect.top - 6,
      below,
    });
  };
  const keys = (event: KeyboardEvent) => {
    const found = tokenAt(event.target);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") setOpen(null);
    if (!found || !step) return;
    event.preventDefault();
    box.current?.querySelector<HTMLElement>(`[data-token="${found.index + step}"]`)?.focus();
  };

  const popup = open ? shown[open.index] : undefined;
  return (
    <div
      class="tokens"
      ref={box}
      onMouseOver={show}
      onMouseLeave={() => setOpen(null)}
      onFocusIn={show}
      onFocusOut={() => setOpen(null)}
      onKeyDown={keys}
    >
      <p class="tokens-head">
        {shown.length} tokens
        {tokens.length > 0 && <Legend />}
        {answer && tokens.length === 0 && !growing && (
          <span>without probabilities: they come with answers made while tokens are shown</span>
        )}
        {fault && <span class="fault-text">{fault}</span>}
      </p>
      <div class="tokens-text" role="group" aria-label={`${shown.length} tokens; arrow keys move`}>
        {shown.slice(0, SHOWN_MAX).map((t, i) => (
          <span
            key={i}
            role="button"
            tabIndex={i === 0 ? 0 : -1}
            data-token={i}
            data-id={t.id ?? undefined}
            class={"token" + (i % 2 ? " odd" : "") + (t.prob ? ` s${surprise(t.prob.logprob)}` : "")}
            aria-label={describe(t)}
          >
            {t.text}
          </span>
        ))}
        {shown.length > SHOWN_MAX && <span class="muted"> … {shown.length - SHOWN_MAX} more</span>}
      </div>
      {open && popup && <Popup token={popup} x={open.x} y={open.y} below={open.below} />}
    </div>
  );
}

function describe(t: ShownToken): string {
  return `${visible(t.text)}, ${t.id === null ? "id unknown" : `id ${t.id}`}${t.prob ? `, ${percent(t.prob.logprob)}` : ""}`;
}

function Legend() {
  return (
    <span class="legend" aria-hidden="true">
      sure
      {[0, 1, 2, 3, 4].map((s) => (
        <i key={s} class={`s${s}`} />
      ))}
      surprising
    </span>
  );
}

function Popup({ token, x, y, below }: { token: ShownToken; x: number; y: number; below: boolean }) {
  return (
    <div class={"token-popup" + (below ? " below" : "")} role="tooltip" style={{ left: `${x}px`, top: `${y}px` }}>
      <dl>
        <dt>Token</dt>
        <dd>
          <code>{visible(token.text)}</code>
        </dd>
        <dt>Id</dt>
        <dd>{token.id ?? "the tokenizer cuts this text otherwise"}</dd>
        {token.prob && (
          <>
            <dt>Probability</dt>
            <dd>
              {percent(token.prob.logprob)} <small>ln {token.prob.logprob.toFixed(3)}</small>
            </dd>
          </>
        )}
        {token.prob?.bytes && (
          <>
            <dt>Bytes</dt>
            <dd>
              <code>{token.prob.bytes.map((b) => b.toString(16).padStart(2, "0")).join(" ")}</code>
            </dd>
          </>
        )}
      </dl>
      {token.prob && token.prob.top.length > 0 && (
        <ol class="alternatives">
          {token.prob.top.map((a, i) => (
            <li key={i} class={a.text === token.prob!.text ? "taken" : undefined}>
              <code>{visible(a.text)}</code>
              <progress max={1} value={Math.exp(a.logprob)} aria-hidden="true" />
              <span>{percent(a.logprob)}</span>
            </li>
          ))}
        </ol>
      )}
    </div>
  );
}
