// How the next answer is drawn. A value that is not set is not sent, so that the server's default holds.
import { useState } from "preact/hooks";
import { server } from "../api/server.ts";
import { currentSettings, editSettings, keepAsDefaults } from "../state/conversations.ts";
import { useStore } from "../state/store.ts";
import { DEFAULTS } from "../state/types.ts";
import type { Settings } from "../state/types.ts";
import { notify } from "../state/view.ts";
import { GrowingText, IconButton } from "./parts.tsx";

type NumberKey =
  | "temperature"
  | "topP"
  | "topK"
  | "minP"
  | "frequencyPenalty"
  | "presencePenalty"
  | "repetitionPenalty"
  | "maxTokens"
  | "seed";

interface Knob {
  key: NumberKey;
  name: string;
  min: number;
  max: number;
  step: number;
  start: number; // where the slider stands while nothing is set
  note: string;
}

const KNOBS: Knob[] = [
  {
    key: "temperature",
    name: "Temperature",
    min: 0,
    max: 2,
    step: 0.05,
    start: 1,
    note: "0 takes the likeliest token each time.",
  },
  {
    key: "topP",
    name: "Top P",
    min: 0.01,
    max: 1,
    step: 0.01,
    start: 1,
    note: "Keeps the likeliest tokens up to this mass.",
  },
  {
    key: "minP",
    name: "Min P",
    min: 0,
    max: 1,
    step: 0.01,
    start: 0,
    note: "Keeps tokens at least this likely beside the best.",
  },
  {
    key: "frequencyPenalty",
    name: "Frequency penalty",
    min: -2,
    max: 2,
    step: 0.1,
    start: 0,
    note: "Grows with each repetition.",
  },
  {
    key: "presencePenalty",
    name: "Presence penalty",
    min: -2,
    max: 2,
    step: 0.1,
    start: 0,
    note: "Once for each token that was used.",
  },
  {
    key: "repetitionPenalty",
    name: "Repetition penalty",
    min: 0.5,
    max: 2,
    step: 0.05,
    start: 1,
    note: "Divides what prompt or answer have already.",
  },
];

const EFFORTS = ["low", "medium", "high", "max"];

export function ParametersPane({ settings }: { settings: Settings }) {
  const { models } = useStore(server);
  return (
    <>
      {models.length > 1 && (
        <label class="field">
          <span>Model</span>
          <select
            value={settings.model ?? models[0]!.id}
            onChange={(e) => editSettings({ model: e.currentTarget.value })}
          >
            {models.map((m) => (
              <option key={m.id}>{m.id}</option>
            ))}
          </select>
        </label>
      )}
      <div class="field">
        <span id="system-label">System prompt</span>
        <GrowingText
          value={settings.system}
          onInput={(system) => editSettings({ system })}
          label="System prompt"
          rows={3}
          placeholder="You are a helpful assistant."
        />
      </div>
      <fieldset class="field">
        <legend>Thinking</legend>
        <Choice
          name="thinking"
          options={[
            { id: "default", name: "Default" },
            { id: "on", name: "On" },
            { id: "off", name: "Off" },
          ]}
          value={settings.thinking === null ? "default" : settings.thinking ? "on" : "off"}
          onChange={(v) => editSettings({ thinking: v === "default" ? null : v === "on" })}
        />
      </fieldset>
      {settings.thinking !== false && <Effort value={settings.effort} />}
      {KNOBS.slice(0, 2).map((k) => (
        <Slider key={k.key} knob={k} value={settings[k.key]} />
      ))}
      <div class="pair">
        <NumberField name="Max tokens" field="maxTokens" value={settings.maxTokens} min={1} />
        <NumberField name="Seed" field="seed" value={settings.seed} min={0} />
      </div>
      <StopList stop={settings.stop} />
      <details class="more">
        <summary>More</summary>
        <NumberField name="Top K" field="topK" value={settings.topK} min={1} />
        {KNOBS.slice(2).map((k) => (
          <Slider key={k.key} knob={k} value={settings[k.key]} />
        ))}
      </details>
      <div class="row">
        <button
          type="button"
          class="small-button"
          onClick={() => {
            keepAsDefaults({ ...currentSettings(), seed: null });
            notify("New chats will begin with these settings.");
          }}
        >
          Use for new chats
        </button>
        <button
          type="button"
          class="small-button"
          onClick={() => editSettings({ ...DEFAULTS, tools: settings.tools, schema: settings.schema })}
        >
          Reset
        </button>
      </div>
    </>
  );
}

function Choice({
  name,
  options,
  value,
  onChange,
}: {
  name: string;
  options: { id: string; name: string }[];
  value: string;
  onChange: (id: string) => void;
}) {
  return (
    <div class="segments">
      {options.map((o) => (
        <label key={o.id}>
          <input type="radio" name={name} checked={o.id === value} onChange={() => onChange(o.id)} />
          <span>{o.name}</span>
        </label>
      ))}
    </div>
  );
}

function Effort({ value }: { value: string | null }) {
  return (
    <fieldset class="field">
      <legend>Effort</legend>
      <Choice
        name="effort"
        options={[
          { id: "", name: "Default" },
          ...EFFORTS.map((e) => ({ id: e, name: e[0]!.toUpperCase() + e.slice(1) })),
        ]}
        value={value ?? ""}
        onChange={(v) => editSettings({ effort: v || null })}
      />
    </fieldset>
  );
}

function Slider({ knob, value }: { knob: Knob; value: number | null }) {
  const id = `knob-${knob.key}`;
  const set = (v: number | null) => editSettings({ [knob.key]: v });
  return (
    <div class={"field slider" + (value === null ? " unset" : "")}>
      <div class="row between">
        <label for={id}>{knob.name}</label>
        <span class="row tight">
          <NumberInput
            class="number"
            aria-label={`${knob.name}, exact value`}
            min={knob.min}
            max={knob.max}
            step="any"
            value={value}
            onValue={set}
          />
          {value !== null && (
            <IconButton icon="close" label={`${knob.name}: server's default`} size={14} onClick={() => set(null)} />
          )}
        </span>
      </div>
      <input
        id={id}
        type="range"
        min={knob.min}
        max={knob.max}
        step={knob.step}
        value={value ?? knob.start}
        aria-describedby={`${id}-note`}
        aria-valuetext={value === null ? "server's default" : String(value)}
        onInput={(e) => set(Number(e.currentTarget.value))}
      />
      <small id={`${id}-note`}>{knob.note}</small>
    </div>
  );
}

// What is typed stays while the page is drawn again; it counts when the field is left, or on Enter.
function NumberInput({
  value,
  onValue,
  ...rest
}: {
  value: number | null;
  onValue: (v: number | null) => void;
  class?: string;
  "aria-label"?: string;
  min: number;
  max?: number;
  step: number | "any";
}) {
  const [typed, setTyped] = useState<string | null>(null);
  return (
    <input
      {...rest}
      type="number"
      placeholder="default"
      value={typed ?? value ?? ""}
      onInput={(e) => setTyped(e.currentTarget.value)}
      onChange={(e) => {
        setTyped(null);
        onValue(e.currentTarget.value === "" ? null : Number(e.currentTarget.value));
      }}
      onBlur={() => setTyped(null)}
    />
  );
}

function NumberField({
  name,
  field,
  value,
  min,
}: {
  name: string;
  field: NumberKey;
  value: number | null;
  min: number;
}) {
  return (
    <label class="field">
      <span>{name}</span>
      <NumberInput min={min} step={1} value={value} onValue={(v) => editSettings({ [field]: v })} />
    </label>
  );
}

function StopList({ stop }: { stop: string[] }) {
  const [text, setText] = useState("");
  const add = () => {
    const value = text.replace(/\\n/g, "\n").replace(/\\t/g, "\t");
    if (value && !stop.includes(value)) editSettings({ stop: [...stop, value] });
    setText("");
  };
  return (
    <div class="field">
      <label for="stop-text">Stop sequences</label>
      {stop.length > 0 && (
        <ul class="stops">
          {stop.map((s) => (
            <li key={s}>
              <code>{s.replace(/\n/g, "\\n").replace(/\t/g, "\\t")}</code>
              <IconButton
                icon="close"
                label={`Remove stop sequence ${s}`}
                size={13}
                onClick={() => editSettings({ stop: stop.filter((t) => t !== s) })}
              />
            </li>
          ))}
        </ul>
      )}
      <input
        id="stop-text"
        value={text}
        placeholder="Text, then Enter; \n is a line break"
        onInput={(e) => setText(e.currentTarget.value)}
        onBlur={add}
        onKeyDown={(e) => {
          if (e.key === "Enter") (e.preventDefault(), add());
        }}
      />
    </div>
  );
}
