// A stand-in for the server while the page is being worked on: the routes that the page uses, with made-up answers.
//   node dev/mock.mjs [PORT]      serves dist/ and the routes; KEY=secret wants that key
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../dist", import.meta.url));
const port = Number(process.argv[2] ?? 8000);
const types = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
};
const counters = { generated: 0, prompt: 0, cached: 0, running: 0, first: 0, requests: 0 };
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const MARKDOWN = `Here is **what** Markdown does, with \`inline code\` and a [link](https://example.com).

1. First, a list
2. with *two* items
   - and one inside

| Name | Value |
|---|---:|
| pages | 128 |
| tokens | 4,096 |

\`\`\`python
def greet(name: str) -> str:  # says hello
    return f"Hello, {name}!" * 2
\`\`\`

> A quote, and <b>HTML</b> that stays text.`;
const STORY =
  "Once upon a time, there was a little train named Owen. Owen was the smallest of them all.\n\nOne winter night, there was a lot of wind. “I will try,” said Owen.";

function cut(text) {
  const bytes = new TextEncoder().encode(text);
  const pieces = text.match(/ ?[\p{L}\p{N}]+|\s+|[^\s\p{L}\p{N}]/gu) ?? [];
  let at = 0;
  return pieces.map((p) => {
    const begin = at;
    at += new TextEncoder().encode(p).length;
    return {
      text: p,
      id: [...p].reduce((h, c) => (h * 31 + c.codePointAt(0)) % 8000, 7),
      begin,
      end: at,
      bytes: [...bytes.subarray(begin, at)],
    };
  });
}

function logprob(piece) {
  const p = 0.05 + ((piece.id * 37) % 95) / 100;
  const entry = (text, q) => ({ token: text, logprob: Math.log(q), bytes: [...new TextEncoder().encode(text)] });
  return {
    ...entry(piece.text, p),
    top_logprobs: [entry(piece.text, p), entry(" other", (1 - p) * 0.6), entry(" more", (1 - p) * 0.2)],
  };
}

async function chat(request, response, body) {
  const bad = (message, param, status = 400) => {
    response.writeHead(status, { "content-type": "application/json" });
    response.end(
      JSON.stringify({ error: { message, type: "invalid_request_error", param, code: "invalid_request_error" } }),
    );
  };
  if (body.temperature > 2)
    return bad("Invalid temperature value, the valid range of temperature is [0, 2]", "temperature");
  const schema = body.response_format?.json_schema?.schema;
  if (schema && schema.type === "nonsense")
    return bad('Invalid json schema: type "nonsense" is none of the JSON types', "response_format.json_schema.schema");
  const last = body.messages.at(-1);
  let text = /train|story/i.test(last.content) ? STORY : MARKDOWN;
  if (schema) text = '{"name": "Rosa", "age": 34, "city": "Lisbon"}';
  const call = body.tools?.length && last.role === "user" ? body.tools[0].function.name : null;
  if (last.role === "tool") text = "It is sunny in Paris. The temperature is 18 degrees.";
  const thought = body.thinking?.type === "enabled" ? "The user wants a short answer. I will be kind and clear." : "";
  const prompt = cut(JSON.stringify(body.messages)).length;
  counters.prompt += prompt;
  counters.requests++;
  counters.running++;
  response.on("close", () => counters.running--);
  if (!body.stream)
    return response.end(JSON.stringify({ choices: [{ message: { role: "assistant", content: text } }] }));
  response.writeHead(200, { "content-type": "text/event-stream" });
  const chunk = (delta, rest = {}) =>
    response.write(
      `data: ${JSON.stringify({ id: "x", object: "chat.completion.chunk", created: 0, model: body.model, choices: [{ index: 0, delta, logprobs: null, finish_reason: null, ...rest }], usage: null })}\n\n`,
    );
  chunk({ role: "assistant", content: "" });
  let count = 0;
  const say = async (field, value) => {
    for (const piece of cut(value)) {
      if (response.destroyed) return;
      count++;
      counters.generated++;
      const list = field === "content" ? "content" : "reasoning_content";
      chunk({ [field]: piece.text }, body.logprobs ? { logprobs: { [list]: [logprob(piece)] } } : {});
      await sleep(18);
    }
  };
  await sleep(120);
  counters.first += 0.12;
  await say("reasoning_content", thought);
  if (call) {
    chunk({ tool_calls: [{ index: 0, id: "call_00_x", type: "function", function: { name: call, arguments: "" } }] });
    for (const part of ['{"city"', ': "Paris"}']) chunk({ tool_calls: [{ index: 0, function: { arguments: part } }] });
  } else {
    await say("content", text);
  }
  const usage = {
    prompt_tokens: prompt,
    completion_tokens: count,
    total_tokens: prompt + count,
    prompt_tokens_details: { cached_tokens: 0 },
    completion_tokens_details: { reasoning_tokens: thought ? 12 : 0 },
  };
  response.write(
    `data: ${JSON.stringify({ model: body.model, choices: [{ index: 0, delta: { content: "" }, finish_reason: call ? "tool_calls" : "stop" }], usage })}\n\ndata: [DONE]\n\n`,
  );
  response.end();
}

const metrics = () => `deepinfer_engine_output_tokens_total ${counters.generated}
deepinfer_prompt_tokens_total ${counters.prompt}
deepinfer_cached_prompt_tokens_total ${counters.cached}
deepinfer_requests_running ${counters.running}
deepinfer_requests_waiting 0
deepinfer_kv_usage_ratio 0.034
deepinfer_time_to_first_token_seconds_sum ${counters.first}
deepinfer_time_to_first_token_seconds_count ${counters.requests}
`;

createServer(async (request, response) => {
  const path = new URL(request.url, "http://x").pathname;
  const parts = [];
  for await (const part of request) parts.push(part);
  const body = parts.length ? JSON.parse(Buffer.concat(parts).toString()) : null;
  const json = (value) => (response.setHeader("content-type", "application/json"), response.end(JSON.stringify(value)));
  if (path.startsWith("/v1/") && process.env.KEY && request.headers.authorization !== `Bearer ${process.env.KEY}`) {
    response.statusCode = 401;
    return json({
      error: {
        message: "Authentication Fails, Your api key: **** is invalid",
        type: "authentication_error",
        param: null,
        code: "invalid_request_error",
      },
    });
  }
  if (path === "/v1/models")
    return json({
      object: "list",
      data: [
        {
          id: "deepseek-v4.1-flash",
          object: "model",
          created: 0,
          owned_by: "deepinfer",
          context_length: 65536,
          bundled: !process.env.LARGE,
        },
      ],
    });
  if (path === "/version") return json({ version: "0.1.0" });
  if (path === "/metrics") return response.end(metrics());
  if (path === "/v1/tokenize") {
    const pieces = cut(body.prompt);
    return json({
      count: pieces.length,
      tokens: pieces.map((p) => p.id),
      offsets: pieces.map((p) => [p.begin, p.end]),
    });
  }
  if (path === "/v1/chat/completions") return chat(request, response, body);
  try {
    const file = join(root, normalize(path === "/" ? "/index.html" : path));
    response.setHeader(
      "content-security-policy",
      "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'",
    );
    response.setHeader("content-type", types[extname(file)] ?? "application/octet-stream");
    response.end(await readFile(file));
  } catch {
    response.statusCode = 404;
    response.end();
  }
}).listen(port, "127.0.0.1", () => console.log(`http://127.0.0.1:${port}`));
