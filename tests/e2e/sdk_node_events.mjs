// Feeds recorded event streams to the official Node SDKs' stream helpers and compares what they gather with the whole body.
//   node sdk_node_events.mjs FOLDER_WITH_NODE_MODULES < cases.json     cases: [{name, api, stream, whole}]
// Prints what differs; exit code 1 if anything does.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const require = createRequire(path.join(path.resolve(process.argv[2]), 'package.json'));
const { OpenAI } = require('openai');
const { Anthropic } = require('@anthropic-ai/sdk');

const answering = (stream) => async () => new Response(stream, { status: 200, headers: { 'content-type': 'text/event-stream' } });
const pick = (object, keys) => Object.fromEntries(keys.map((key) => [key, object[key] ?? null]));

async function chat(stream, whole) {
  const client = new OpenAI({ apiKey: 'test', fetch: answering(stream), maxRetries: 0 });
  let content = '', reasoning = '';
  const calls = [];
  let last;
  for await (const chunk of await client.chat.completions.create({ model: 'm', messages: [], stream: true })) {
    const delta = chunk.choices[0].delta;
    content += delta.content ?? '';
    reasoning += delta.reasoning_content ?? '';
    for (const call of delta.tool_calls ?? []) {
      if (call.id) calls[call.index] = { id: call.id, name: call.function.name, arguments: '' };
      calls[call.index].arguments += call.function.arguments;
    }
    last = chunk;
  }
  const { message, finish_reason } = whole.choices[0];
  assert.equal(content, message.content);
  assert.equal(reasoning, message.reasoning_content ?? '');
  assert.deepEqual(calls, (message.tool_calls ?? []).map((c) => ({ id: c.id, name: c.function.name, arguments: c.function.arguments })));
  assert.equal(last.choices[0].finish_reason, finish_reason);
  assert.deepEqual(last.usage, whole.usage);
  if (finish_reason === 'length' || finish_reason === 'content_filter') return; // the helper refuses cut answers
  const final = await new OpenAI({ apiKey: 'test', fetch: answering(stream), maxRetries: 0 }).chat.completions
    .stream({ model: 'm', messages: [] }).finalChatCompletion();
  assert.equal(final.choices[0].message.content, message.content);
  assert.equal(final.choices[0].message.tool_calls?.length ?? 0, message.tool_calls?.length ?? 0);
}

async function responses(stream, whole) {
  const client = new OpenAI({ apiKey: 'test', fetch: answering(stream), maxRetries: 0 });
  const items = [];
  let last;
  for await (const event of await client.responses.create({ model: 'm', input: 'q', stream: true })) {
    if (event.type === 'response.output_item.done') items[event.output_index] = event.item;
    last = event;
  }
  assert.deepEqual(items, whole.output);
  assert.deepEqual(last.response, whole);
  if (whole.status !== 'completed') return;
  const final = await client.responses.stream({ model: 'm', input: 'q' }).finalResponse();
  assert.deepEqual(final.output.map((item) => pick(item, ['type', 'id', 'status'])), whole.output.map((item) => pick(item, ['type', 'id', 'status'])));
}

async function messages(stream, whole) {
  const client = new Anthropic({ apiKey: 'test', fetch: answering(stream), maxRetries: 0 });
  const final = await client.messages.stream({ model: 'm', max_tokens: 9, messages: [] }).finalMessage();
  const keys = ['type', 'text', 'thinking', 'signature', 'id', 'name', 'input'];
  assert.deepEqual(final.content.map((block) => pick(block, keys)), whole.content.map((block) => pick(block, keys)));
  assert.deepEqual(pick(final, ['id', 'stop_reason', 'stop_sequence', 'model', 'role']), pick(whole, ['id', 'stop_reason', 'stop_sequence', 'model', 'role']));
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
}

const apis = { chat, responses, messages };
let failed = 0;
const cases = JSON.parse(readFileSync(0, 'utf8'));
for (const { name, api, stream, whole } of cases) {
  try {
    await apis[api](stream, JSON.parse(whole));
  } catch (error) {
    failed += 1;
    console.error(`FAILED ${name}: ${error.message}`);
  }
}
console.log(`${cases.length - failed} passed, ${failed} failed`);
process.exit(failed === 0 ? 0 : 1);
