// Requests to the server that gave the page: relative addresses only, so nothing can leave it.
import { Store } from "../state/store.ts";
import { ApiError, faultOf, unreachable } from "./fault.ts";

export const apiKey = new Store<string>(readKey());
export const keyWanted = new Store(false); // the server refused a request for want of a key

function readKey(): string {
  try {
    return sessionStorage.getItem("deepinfer.key") ?? localStorage.getItem("deepinfer.key") ?? "";
  } catch {
    return "";
  }
}

export function setKey(key: string, remember: boolean): void {
  try {
    sessionStorage.removeItem("deepinfer.key");
    localStorage.removeItem("deepinfer.key");
    if (key) (remember ? localStorage : sessionStorage).setItem("deepinfer.key", key);
  } catch {
    // Without storage the key holds until the page is closed.
  }
  keyWanted.set(false);
  apiKey.set(key);
}

// `quiet`: a refused key is not worth a dialog.
export async function send(path: string, body?: unknown, signal?: AbortSignal, quiet = false): Promise<Response> {
  const headers: Record<string, string> = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (apiKey.value) headers["authorization"] = `Bearer ${apiKey.value}`;
  const init: RequestInit = { method: body === undefined ? "GET" : "POST", headers, cache: "no-store" };
  if (body !== undefined) init.body = JSON.stringify(body);
  if (signal) init.signal = signal;
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(unreachable());
  }
  if (response.ok) return response;
  if (response.status === 401 && !quiet) keyWanted.set(true);
  const text = await response.text().catch(() => "");
  let parsed: unknown = null;
  try {
    parsed = JSON.parse(text);
  } catch {
    // An answer that is not JSON: the status alone speaks.
  }
  throw new ApiError(faultOf(response.status, parsed, response.headers.get("retry-after")));
}

export async function json<T>(path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const response = await send(path, body, signal);
  try {
    return (await response.json()) as T;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError({
      sentence: `The server's answer to ${path} is not JSON.`,
      param: null,
      status: response.status,
    });
  }
}
