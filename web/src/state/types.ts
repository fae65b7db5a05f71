// What the page keeps. Plain data: it is stored in the browser and exported as it is.

export type Role = "user" | "assistant" | "tool";

export interface Alternative {
  text: string;
  bytes: number[] | null;
  logprob: number;
}

export interface TokenProb extends Alternative {
  top: Alternative[];
}

export interface ToolCall {
  id: string;
  name: string;
  arguments: string;
}

export interface Usage {
  prompt: number;
  completion: number;
  cached: number;
  reasoning: number;
}

export interface Timing {
  firstMs: number; // request sent to first token
  totalMs: number;
}

// An error as the page tells it: one sentence, and the request's field where the server named one.
export interface Fault {
  sentence: string;
  param: string | null;
  status: number;
}

export interface Message {
  id: string;
  parent: string | null;
  role: Role;
  created: number;
  content: string;
  reasoning: string;
  calls: ToolCall[];
  callId: string | null; // of a tool's result
  model: string | null;
  finish: string | null; // null while it streams; "stopped" when the reader ended it
  usage: Usage | null;
  timing: Timing | null;
  tokens: { content: TokenProb[]; reasoning: TokenProb[] } | null;
  json: boolean; // the answer was asked for as JSON
  error: Fault | null;
}

export interface ToolText {
  on: boolean;
  text: string; // one tool definition, JSON
}

// null: not sent, so that the server's default holds.
export interface Settings {
  model: string | null;
  system: string;
  thinking: boolean | null;
  effort: string | null;
  temperature: number | null;
  topP: number | null;
  topK: number | null;
  minP: number | null;
  frequencyPenalty: number | null;
  presencePenalty: number | null;
  repetitionPenalty: number | null;
  maxTokens: number | null;
  seed: number | null;
  stop: string[];
  format: "text" | "json" | "schema";
  schemaName: string;
  schema: string;
  schemaStrict: boolean;
  tools: ToolText[];
  toolChoice: string; // auto, none, required or a tool's name
  parallel: boolean;
}

export interface Conversation {
  id: string;
  title: string;
  named: boolean; // the reader chose the title
  created: number;
  updated: number;
  settings: Settings;
  messages: Record<string, Message>;
  chosen: Record<string, string>; // parent's id ("" for the root) -> the child that is shown
}

export const DEFAULTS: Settings = {
  model: null,
  system: "",
  thinking: null,
  effort: null,
  temperature: null,
  topP: null,
  topK: null,
  minP: null,
  frequencyPenalty: null,
  presencePenalty: null,
  repetitionPenalty: null,
  maxTokens: null,
  seed: null,
  stop: [],
  format: "text",
  schemaName: "answer",
  schema: "",
  schemaStrict: true,
  tools: [],
  toolChoice: "auto",
  parallel: true,
};
