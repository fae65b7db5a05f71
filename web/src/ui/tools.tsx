// Tools that the model may call. The reader plays the tool: a call is shown in the chat and its result is typed there.
import { useLayoutEffect, useState } from "preact/hooks";
import { checkWithServer } from "../api/check.ts";
import { jsonFault, toolName } from "../api/request.ts";
import { modelOf } from "../state/chat.ts";
import { editSettings } from "../state/conversations.ts";
import type { Fault, Settings } from "../state/types.ts";
import { BLANK_TOOL, TOOLS } from "../presets.ts";
import { useLastFault } from "./format.tsx";
import { Icon } from "./icons.tsx";
import { GrowingText, IconButton, Switch } from "./parts.tsx";

export function ToolsPane({ settings }: { settings: Settings }) {
  const { tools } = settings;
  const fromAnswer = useLastFault(/^tool/);
  const [checked, setChecked] = useState<{ fault: Fault | null } | "running" | null>(null);
  const subject = JSON.stringify([tools, settings.toolChoice, settings.parallel]);
  useLayoutEffect(() => setChecked(null), [subject]);
  const set = (at: number, edit: Partial<(typeof tools)[0]>) =>
    editSettings({ tools: tools.map((t, i) => (i === at ? { ...t, ...edit } : t)) });
  const names = tools.flatMap((t) => (t.on ? [toolName(t.text)] : [])).filter((n): n is string => n !== null);
  const unused = TOOLS.filter((p) => !tools.some((t) => toolName(t.text) === p.name));
  const verdict =
    checked && checked !== "running"
      ? (checked.fault?.sentence ?? "The server accepts these tools.")
      : (fromAnswer?.sentence ?? "");
  const bad = checked && checked !== "running" ? Boolean(checked.fault) : Boolean(fromAnswer);
  const check = async () => {
    setChecked("running");
    setChecked({
      fault: await checkWithServer(modelOf(), {
        tools,
        toolChoice: ["none", "auto"].includes(settings.toolChoice) ? settings.toolChoice : "auto",
        parallel: settings.parallel,
      }),
    });
  };
  return (
    <>
      <p class="muted">The model may call these. You type what a call gives back, and the model goes on from there.</p>
      {tools.map((t, i) => (
        <ToolEditor
          key={i}
          text={t.text}
          on={t.on}
          onText={(text) => set(i, { text })}
          onSwitch={(on) => set(i, { on })}
          onRemove={() => editSettings({ tools: tools.filter((_, k) => k !== i) })}
        />
      ))}
      <div class="row wrap" role="group" aria-label="Add a tool">
        {unused.map((p) => (
          <button
            key={p.name}
            type="button"
            class="small-button"
            onClick={() => editSettings({ tools: [...tools, { on: true, text: p.text }] })}
          >
            <Icon name="plus" size={13} /> {p.name}
          </button>
        ))}
        <button
          type="button"
          class="small-button"
          onClick={() => editSettings({ tools: [...tools, { on: true, text: BLANK_TOOL }] })}
        >
          <Icon name="plus" size={13} /> Your own
        </button>
      </div>
      {tools.length > 0 && (
        <>
          <label class="field">
            <span>Choice</span>
            <select value={settings.toolChoice} onChange={(e) => editSettings({ toolChoice: e.currentTarget.value })}>
              <option value="auto">The model decides</option>
              <option value="none">No calls</option>
              <option value="required">A call is required</option>
              {names.map((n) => (
                <option key={n} value={n}>
                  Only {n}
                </option>
              ))}
            </select>
          </label>
          <Switch
            label="Several calls at once"
            checked={settings.parallel}
            onChange={(parallel) => editSettings({ parallel })}
          />
          <p class={"verdict" + (bad ? " bad" : verdict ? " good" : "")} role="status">
            {verdict}
          </p>
          <button
            type="button"
            class="small-button"
            disabled={checked === "running" || tools.some((t) => t.on && jsonFault(t.text))}
            onClick={check}
          >
            {checked === "running" ? "Asking…" : "Check with the server"}
          </button>
        </>
      )}
    </>
  );
}

function ToolEditor({
  text,
  on,
  onText,
  onSwitch,
  onRemove,
}: {
  text: string;
  on: boolean;
  onText: (text: string) => void;
  onSwitch: (on: boolean) => void;
  onRemove: () => void;
}) {
  const name = toolName(text) ?? "tool without a name";
  const fault = jsonFault(text);
  return (
    <details class="tool-editor">
      <summary>
        <Icon name="right" size={14} />
        <span class="tool-name">{name}</span>
        {fault && <span class="badge bad">not JSON</span>}
        <input
          type="checkbox"
          role="switch"
          aria-label={`Offer ${name}`}
          checked={on}
          onClick={(e) => e.stopPropagation()}
          onChange={(e) => onSwitch(e.currentTarget.checked)}
        />
      </summary>
      <GrowingText
        code
        rows={6}
        value={text}
        onInput={onText}
        label={`Definition of ${name}`}
        invalid={Boolean(fault)}
      />
      <div class="row between">
        <span class="verdict bad">{fault}</span>
        <IconButton icon="trash" label={`Remove ${name}`} size={15} onClick={onRemove} />
      </div>
    </details>
  );
}
