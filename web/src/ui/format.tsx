// Answers as JSON: any JSON, or what a schema allows. The server checks the schema and says what is wrong with it.
import { useLayoutEffect, useState } from "preact/hooks";
import { checkWithServer } from "../api/check.ts";
import { jsonFault } from "../api/request.ts";
import { modelOf } from "../state/chat.ts";
import { conversations, currentId, editSettings, find, lastMessage } from "../state/conversations.ts";
import { useStore } from "../state/store.ts";
import type { Fault, Settings } from "../state/types.ts";
import { SCHEMAS } from "../presets.ts";
import { GrowingText, Switch } from "./parts.tsx";

const MODES: { id: Settings["format"]; name: string }[] = [
  { id: "text", name: "Text" },
  { id: "json", name: "Any JSON" },
  { id: "schema", name: "Schema" },
];

// The last answer's fault, if it is about this part of the request.
export function useLastFault(about: RegExp): Fault | null {
  return useStore(conversations, () => {
    const conversation = find(currentId.value);
    const fault = conversation ? lastMessage(conversation)?.error : null;
    return fault?.param && about.test(fault.param) ? fault : null;
  });
}

export function FormatPane({ settings }: { settings: Settings }) {
  return (
    <>
      <fieldset class="field">
        <legend>The answer is</legend>
        <div class="segments">
          {MODES.map((m) => (
            <label key={m.id}>
              <input
                type="radio"
                name="format"
                checked={settings.format === m.id}
                onChange={() =>
                  editSettings(
                    m.id === "schema" && !settings.schema
                      ? { format: m.id, schema: SCHEMAS[0]!.text, schemaName: SCHEMAS[0]!.name }
                      : { format: m.id },
                  )
                }
              />
              <span>{m.name}</span>
            </label>
          ))}
        </div>
        {settings.format === "json" && <small>The conversation must mention the word “json”.</small>}
      </fieldset>
      {settings.format === "schema" && <SchemaEditor settings={settings} />}
    </>
  );
}

function SchemaEditor({ settings }: { settings: Settings }) {
  const local = settings.schema.trim() ? jsonFault(settings.schema) : "The schema is empty.";
  const fromAnswer = useLastFault(/^response_format/);
  const [checked, setChecked] = useState<{ of: string; fault: Fault | null } | "running" | null>(null);
  const subject = settings.schema + settings.schemaStrict + settings.schemaName;
  useLayoutEffect(() => setChecked(null), [subject]);
  const check = async () => {
    setChecked("running");
    const fault = await checkWithServer(modelOf(), {
      format: "schema",
      schema: settings.schema,
      schemaName: settings.schemaName,
      schemaStrict: settings.schemaStrict,
    });
    setChecked({ of: subject, fault });
  };
  const known = checked && checked !== "running" && checked.of === subject ? checked : null;
  const fault = local ?? known?.fault?.sentence ?? (known ? null : fromAnswer?.sentence) ?? null;
  return (
    <>
      <div class="row wrap" role="group" aria-label="Examples">
        {SCHEMAS.map((s) => (
          <button
            key={s.name}
            type="button"
            class="small-button"
            onClick={() => editSettings({ schema: s.text, schemaName: s.name })}
          >
            {s.name}
          </button>
        ))}
      </div>
      <label class="field">
        <span>Name</span>
        <input value={settings.schemaName} onInput={(e) => editSettings({ schemaName: e.currentTarget.value })} />
      </label>
      <div class="field">
        <span>JSON schema</span>
        <GrowingText
          code
          rows={8}
          value={settings.schema}
          onInput={(schema) => editSettings({ schema })}
          label="JSON schema"
          invalid={Boolean(fault)}
          describedBy="schema-verdict"
        />
        <p id="schema-verdict" class={"verdict" + (fault ? " bad" : known ? " good" : "")} role="status">
          {fault ?? (known ? "The server accepts this schema." : "")}
        </p>
      </div>
      <Switch
        label="Strict"
        note="Every object lists all its properties as required and allows no others."
        checked={settings.schemaStrict}
        onChange={(schemaStrict) => editSettings({ schemaStrict })}
      />
      <button type="button" class="small-button" disabled={Boolean(local) || checked === "running"} onClick={check}>
        {checked === "running" ? "Asking…" : "Check with the server"}
      </button>
    </>
  );
}
