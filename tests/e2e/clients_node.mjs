// The official Node clients against a live server: node clients_node.mjs FOLDER URL, where FOLDER has them installed.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [folder, url] = process.argv.slice(2);
const require = createRequire(join(resolve(folder), "x.js"));
const { default: OpenAI } = require("openai");
const { default: Anthropic } = require("@anthropic-ai/sdk");

const openai = new OpenAI({ baseURL: url + "/v1", apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const model = (await openai.models.list()).data[0].id;
const OFF = { thinking: { type: "disabled" } };
const user = (content) => [{ role: "user", content }];
const TEA = "How do I make tea?";
const WEATHER = "What is the weather in Paris?";
const parameters = {
  type: "object",
  properties: {
    city: { type: "string", description: "The name of the city" },
    unit: { type: "string", enum: ["celsius", "fahrenheit"] },
  },
  required: ["city"],
};
const description = "Get the current weather for a city.";
const result = '{"temperature": 18, "unit": "celsius", "condition": "sunny"}';
const person = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" }, city: { type: "string" } },
  required: ["name", "age", "city"],
  additionalProperties: false,
};
const rosa = { name: "Rosa", age: 34, city: "Lisbon" };
const ROSA = "Put this into JSON with the keys name, age, city: My name is Rosa. I live in Lisbon. I am 34 years old.";

const cases = {
  async "openai: whole and streamed"() {
    const whole = await openai.chat.completions.create({ model, messages: user(TEA), temperature: 0, ...OFF });
    assert.match(whole.choices[0].message.content, /water/);
    let text = "";
    for await (const chunk of await openai.chat.completions.create({
      model,
      messages: user(TEA),
      temperature: 0,
      stream: true,
      ...OFF,
    }))
      text += chunk.choices[0]?.delta?.content ?? "";
    assert.equal(text, whole.choices[0].message.content);
    const helper = openai.chat.completions.stream({ model, messages: user(TEA), temperature: 0, ...OFF });
    assert.equal((await helper.finalChatCompletion()).choices[0].message.content, text);
  },
  async "openai: the tool runner goes the whole loop"() {
    const asked = [];
    const tool = {
      type: "function",
      function: {
        name: "get_weather",
        description,
        parameters,
        parse: JSON.parse,
        function: (args) => (asked.push(args.city), result),
      },
    };
    const runner = openai.chat.completions.runTools({
      model,
      messages: user(WEATHER),
      tools: [tool],
      temperature: 0,
      ...OFF,
    });
    assert.match(await runner.finalContent(), /18/);
    assert.deepEqual(asked, ["Paris"]);
    const streamed = openai.chat.completions.runTools({
      model,
      messages: user(WEATHER),
      tools: [tool],
      temperature: 0,
      stream: true,
      ...OFF,
    });
    assert.match(await streamed.finalContent(), /18/);
  },
  async "openai: structured output is parsed"() {
    const format = { type: "json_schema", json_schema: { name: "person", strict: true, schema: person } };
    const answer = await openai.chat.completions.parse({
      model,
      messages: user(ROSA),
      response_format: format,
      temperature: 0,
      ...OFF,
    });
    assert.deepEqual(JSON.parse(answer.choices[0].message.content), rosa);
  },
  async "openai: typed errors"() {
    await assert.rejects(
      openai.chat.completions.create({ model, messages: user("Hi"), temperature: 9 }),
      (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature" && e.requestID !== undefined,
    );
    await assert.rejects(openai.models.retrieve("no-such-model"), OpenAI.NotFoundError);
  },
  async "openai: an aborted stream ends"() {
    const stream = await openai.chat.completions.create({
      model,
      messages: user("Tell me a story about a robot."),
      stream: true,
      max_tokens: 2000,
      ...OFF,
    });
    let chunks = 0;
    for await (const _ of stream) if (++chunks === 3) stream.controller.abort();
    assert.equal(chunks, 3);
  },
  async "openai: responses with state, streamed and whole"() {
    const ask = { model, temperature: 0, reasoning: { effort: "none" } };
    const first = await openai.responses.create({ ...ask, input: "Who are you?" });
    const second = await openai.responses.create({ ...ask, input: "What can you do?", previous_response_id: first.id });
    const spelled = await openai.responses.create({
      ...ask,
      input: [...user("Who are you?"), { role: "assistant", content: first.output_text }, ...user("What can you do?")],
    });
    assert.equal(second.output_text, spelled.output_text);
    assert.equal((await openai.responses.retrieve(first.id)).output_text, first.output_text);
    await openai.responses.delete(first.id);
    await assert.rejects(openai.responses.retrieve(first.id), OpenAI.NotFoundError);
    let text = "";
    for await (const event of await openai.responses.create({ ...ask, input: TEA, stream: true }))
      if (event.type === "response.output_text.delta") text += event.delta;
    assert.match(text, /water/);
  },
  async "anthropic: whole and streamed"() {
    const whole = await anthropic.messages.create({
      model,
      max_tokens: 200,
      messages: user(TEA),
      temperature: 0,
      ...OFF,
    });
    assert.equal(whole.stop_reason, "end_turn");
    let text = "";
    const stream = anthropic.messages
      .stream({ model, max_tokens: 200, messages: user(TEA), temperature: 0, ...OFF })
      .on("text", (t) => (text += t));
    const final = await stream.finalMessage();
    assert.equal(text, whole.content[0].text);
    assert.deepEqual(final.content, whole.content);
  },
  async "anthropic: tool loop"() {
    const tools = [{ name: "get_weather", description, input_schema: parameters }];
    const first = await anthropic.messages.create({
      model,
      max_tokens: 200,
      messages: user(WEATHER),
      tools,
      temperature: 0,
      ...OFF,
    });
    const call = first.content.find((b) => b.type === "tool_use");
    assert.equal(call.input.city, "Paris");
    const messages = [
      ...user(WEATHER),
      { role: "assistant", content: first.content },
      { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: result }] },
    ];
    const last = await anthropic.messages.create({ model, max_tokens: 200, messages, tools, temperature: 0, ...OFF });
    assert.match(last.content[0].text, /18/);
  },
  async "anthropic: tokens are counted"() {
    const ask = { model, messages: user(TEA), ...OFF };
    const { usage } = await anthropic.messages.create({ ...ask, max_tokens: 1 });
    assert.equal(
      (await anthropic.messages.countTokens(ask)).input_tokens,
      usage.input_tokens + (usage.cache_read_input_tokens ?? 0),
    );
  },
  async "anthropic: typed errors"() {
    await assert.rejects(
      anthropic.messages.create({ model, max_tokens: 1, messages: [] }),
      (e) => e instanceof Anthropic.BadRequestError && e.error.type === "error",
    );
  },
};

let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
  } catch (error) {
    failed++;
    console.error(`${name}: ${error.stack}`);
  }
}
console.log(`${Object.keys(cases).length - failed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
