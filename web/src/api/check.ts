// Asks the server what it thinks of a schema or of tools: a request for one token, whose answer nobody reads.
import { json } from "./client.ts";
import { faultFrom } from "./fault.ts";
import { chatBody } from "./request.ts";
import { blankMessage } from "../state/tree.ts";
import { DEFAULTS } from "../state/types.ts";
import type { Fault, Settings } from "../state/types.ts";

export async function checkWithServer(model: string, part: Partial<Settings>): Promise<Fault | null> {
  const settings: Settings = { ...DEFAULTS, ...part, thinking: false, maxTokens: 1 };
  try {
    await json("v1/chat/completions", chatBody(model, settings, [blankMessage(null, "user", "Reply in json.")], false));
    return null;
  } catch (error) {
    return faultFrom(error);
  }
}
