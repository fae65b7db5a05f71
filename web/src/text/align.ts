// Puts the tokens of an answer (text and probability) beside the tokenizer's numbering of the same text.
import type { Piece } from "../api/server.ts";
import type { TokenProb } from "../state/types.ts";

export interface ShownToken {
  text: string;
  id: number | null; // null: the model cut the text here otherwise than the tokenizer would
  prob: TokenProb | null; // null: no probabilities were asked for
}

const encoder = new TextEncoder();

export function byteLength(token: { text: string; bytes: number[] | null }): number {
  return token.bytes ? token.bytes.length : encoder.encode(token.text).length;
}

// `pieces`: begin and end in bytes of the text, in order.
export function align(tokens: TokenProb[], pieces: Piece[]): ShownToken[] {
  if (tokens.length === 0) return pieces.map((p) => ({ text: p.text, id: p.id, prob: null }));
  const out: ShownToken[] = [];
  let at = 0;
  let k = 0;
  for (const token of tokens) {
    const end = at + byteLength(token);
    while (k < pieces.length && pieces[k]!.begin < at) k++;
    const piece = pieces[k];
    out.push({ text: token.text, id: piece && piece.begin === at && piece.end === end ? piece.id : null, prob: token });
    at = end;
  }
  return out;
}

export function percent(logprob: number): string {
  const p = Math.exp(logprob) * 100;
  if (p >= 99.95) return "100%";
  if (p >= 10) return p.toFixed(1) + "%";
  if (p >= 0.01) return p.toFixed(2) + "%";
  return "< 0.01%";
}

// 0 (sure) to 4 (surprising), for the colour.
export function surprise(logprob: number): number {
  const p = Math.exp(logprob);
  return p >= 0.9 ? 0 : p >= 0.6 ? 1 : p >= 0.3 ? 2 : p >= 0.1 ? 3 : 4;
}

// White space that would not be seen, made visible.
export function visible(text: string): string {
  return text.replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/ /g, "·") || "∅";
}
