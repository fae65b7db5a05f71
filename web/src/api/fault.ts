// Errors of the server, told as sentences.
import type { Fault } from "../state/types.ts";

export class ApiError extends Error {
  readonly fault: Fault;
  constructor(fault: Fault) {
    super(fault.sentence);
    this.fault = fault;
  }
}

const BY_STATUS: Record<number, string> = {
  401: "The server wants an API key.",
  402: "This account has no balance left.",
  403: "This API key may not do that.",
  404: "The server has no such route or model.",
  413: "The request is larger than the server accepts.",
  429: "The server has too many requests at the moment.",
  500: "The server failed.",
  502: "The server behind the proxy does not answer.",
  503: "The server is busy or still starting.",
  529: "The server is overloaded.",
};

function sentence(text: string): string {
  const trimmed = text.trim();
  const capital = trimmed.charAt(0).toUpperCase() + trimmed.slice(1);
  return /[.!?]$/.test(capital) ? capital : capital + ".";
}

// `body`: the parsed error object of any of the three APIs, or whatever else came.
export function faultOf(status: number, body: unknown, retryAfter: string | null = null): Fault {
  const error = typeof body === "object" && body !== null ? (body as { error?: unknown }).error : undefined;
  const fields = typeof error === "object" && error !== null ? (error as { message?: unknown; param?: unknown }) : {};
  const said =
    typeof fields.message === "string" && fields.message.trim()
      ? fields.message
      : typeof error === "string"
        ? error
        : "";
  let text = said ? sentence(said) : (BY_STATUS[status] ?? `The server answered with status ${status}.`);
  if (status === 401 && said) text = `${BY_STATUS[401]} It says: ${text}`;
  const seconds = Number(retryAfter);
  if (retryAfter && Number.isFinite(seconds) && seconds > 0)
    text += ` Try again in ${seconds === 1 ? "a second" : `${Math.ceil(seconds)} seconds`}.`;
  return { sentence: text, param: typeof fields.param === "string" ? fields.param : null, status };
}

export function unreachable(): Fault {
  return { sentence: "The server cannot be reached. Is it still running?", param: null, status: 0 };
}

export function faultFrom(error: unknown): Fault {
  if (error instanceof ApiError) return error.fault;
  return { sentence: sentence(error instanceof Error ? error.message : String(error)), param: null, status: 0 };
}
