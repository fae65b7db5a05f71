// Things to begin with. The prompts are ones that the bundled model does well (models/tiny/MODEL_CARD.md).
import type { Settings } from "./state/types.ts";

const text = { type: "string" };

function tool(
  name: string,
  description: string,
  properties: Record<string, unknown>,
  required = Object.keys(properties),
): string {
  return JSON.stringify(
    { type: "function", function: { name, description, parameters: { type: "object", properties, required } } },
    null,
    2,
  );
}

export interface ToolPreset {
  name: string;
  text: string;
  result: string; // an example of what the tool would say
}

export const TOOLS: ToolPreset[] = [
  {
    name: "get_weather",
    text: tool(
      "get_weather",
      "Get the current weather for a city.",
      { city: { ...text, description: "The name of the city" }, unit: { ...text, enum: ["celsius", "fahrenheit"] } },
      ["city"],
    ),
    result: '{"temperature": 18, "unit": "celsius", "condition": "sunny"}',
  },
  {
    name: "calculator",
    text: tool("calculator", "Evaluate an arithmetic expression.", {
      expression: { ...text, description: "For example 12*7" },
    }),
    result: '{"result": 17834}',
  },
  {
    name: "get_time",
    text: tool("get_time", "Get the current local time in a city.", {
      city: { ...text, description: "The name of the city" },
    }),
    result: '{"time": "14:25"}',
  },
  {
    name: "add_to_list",
    text: tool("add_to_list", "Add items to a list.", { list_name: text, items: { type: "array", items: text } }),
    result: '{"status": "ok"}',
  },
  {
    name: "create_event",
    text: tool(
      "create_event",
      "Create a calendar event.",
      {
        title: text,
        date: { ...text, description: "Date as YYYY-MM-DD" },
        time: { ...text, description: "Time as HH:MM" },
      },
      ["title", "date"],
    ),
    result: '{"status": "created"}',
  },
];

export const BLANK_TOOL = tool("my_tool", "What it does.", { argument: text });

function objectSchema(properties: Record<string, unknown>): string {
  return JSON.stringify(
    { type: "object", properties, required: Object.keys(properties), additionalProperties: false },
    null,
    2,
  );
}

export const SCHEMAS: { name: string; text: string }[] = [
  { name: "person", text: objectSchema({ name: text, age: { type: "integer" }, city: text }) },
  { name: "label", text: objectSchema({ label: { type: "string", enum: ["positive", "negative", "neutral"] } }) },
  {
    name: "list",
    text: JSON.stringify(
      { type: "array", items: JSON.parse(objectSchema({ name: text, color: text })), minItems: 2, maxItems: 4 },
      null,
      2,
    ),
  },
];

export interface Starter {
  kind: "story" | "thinking" | "tool" | "json" | "question";
  title: string;
  prompt: string;
  settings: Partial<Settings>;
}

const calm = { temperature: 0, thinking: false };
const weather = TOOLS[0]!;

export const BUNDLED_STARTERS: Starter[] = [
  { kind: "story", title: "A story", prompt: "Write a story for children about a little train.", settings: calm },
  {
    kind: "thinking",
    title: "A story, with thinking",
    prompt: "Please tell me a short story about a storm. End with the moral.",
    settings: { temperature: 0, thinking: true },
  },
  {
    kind: "tool",
    title: "A tool call",
    prompt: "What is the weather in Paris?",
    settings: {
      ...calm,
      thinking: true,
      tools: [
        { on: true, text: weather.text },
        { on: true, text: TOOLS[2]!.text },
      ],
    },
  },
  {
    kind: "json",
    title: "An answer in a JSON schema",
    prompt: "Put this into JSON with the keys name, age, city: My name is Rosa. I live in Lisbon. I am 34 years old.",
    settings: { ...calm, format: "schema", schemaName: "person", schema: SCHEMAS[0]!.text },
  },
  { kind: "question", title: "A simple question", prompt: "How do I make tea?", settings: calm },
  {
    kind: "json",
    title: "A label for a text",
    prompt: "Classify the text. Reply in JSON.\n\nWhat a great book!",
    settings: { ...calm, format: "schema", schemaName: "label", schema: SCHEMAS[1]!.text },
  },
];

export const STARTERS: Starter[] = [
  {
    kind: "question",
    title: "Explain",
    prompt: "Explain how a mixture-of-experts model picks its experts, in plain words.",
    settings: {},
  },
  {
    kind: "thinking",
    title: "Think hard",
    prompt: "A bat and a ball cost 1.10 together. The bat costs 1.00 more than the ball. What does the ball cost?",
    settings: { thinking: true },
  },
  {
    kind: "tool",
    title: "Call a tool",
    prompt: "What is the weather in Paris and in Rome?",
    settings: { tools: [{ on: true, text: weather.text }] },
  },
  {
    kind: "json",
    title: "Answer in a JSON schema",
    prompt: "Invent a person who lives in Lisbon.",
    settings: { format: "schema", schemaName: "person", schema: SCHEMAS[0]!.text },
  },
];
