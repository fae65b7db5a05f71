// Small pieces that several views use.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { notify } from "../state/view.ts";
import { Icon } from "./icons.tsx";
import type { IconName } from "./icons.tsx";

interface IconButtonProps {
  icon: IconName;
  label: string;
  onClick: () => void;
  disabled?: boolean;
  pressed?: boolean | undefined;
  keys?: string;
  class?: string;
  size?: number;
}

export function IconButton({ icon, label, onClick, disabled, pressed, keys, class: extra, size }: IconButtonProps) {
  return (
    <button
      type="button"
      class={"icon-button " + (extra ?? "")}
      title={keys ? `${label} (${keys})` : label}
      aria-label={label}
      aria-pressed={pressed}
      disabled={disabled}
      onClick={onClick}
    >
      <Icon name={icon} size={size ?? 18} />
    </button>
  );
}

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // No clipboard interface (plain HTTP on another machine): through a selection.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "offscreen";
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

export function CopyButton({ text, label = "Copy", words = false }: { text: string; label?: string; words?: boolean }) {
  const [done, setDone] = useState(false);
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(false), 1500);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    if (await copyText(text)) setDone(true);
    else notify("The browser did not allow copying.");
  };
  if (!words)
    return <IconButton icon={done ? "check" : "copy"} label={done ? "Copied" : label} onClick={copy} size={16} />;
  return (
    <button type="button" class="small-button" onClick={copy}>
      <Icon name={done ? "check" : "copy"} size={14} />
      {done ? "Copied" : label}
    </button>
  );
}

// A modal dialog; the browser keeps the focus inside and gives it back.
export function Modal({
  title,
  onClose,
  children,
  wide,
}: {
  title: string;
  onClose: () => void;
  children: ComponentChildren;
  wide?: boolean;
}) {
  const ref = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const box = ref.current!;
    box.showModal();
    return () => box.close();
  }, []);
  const onBackdrop = (event: MouseEvent) => {
    if (event.target === ref.current) onClose();
  };
  return (
    <dialog
      ref={ref}
      class={"modal" + (wide ? " wide" : "")}
      aria-labelledby="modal-title"
      onCancel={(e) => (e.preventDefault(), onClose())}
      onClose={() => ref.current && onClose()} // browsers close a dialog that nobody has touched without asking
      onClick={onBackdrop}
    >
      <div class="modal-body">
        <header>
          <h2 id="modal-title">{title}</h2>
          <IconButton icon="close" label="Close" onClick={onClose} />
        </header>
        {children}
      </div>
    </dialog>
  );
}

// Tabs with the arrow keys, as the ARIA patterns have them.
export function Tabs<T extends string>({
  tabs,
  value,
  onChange,
  label,
}: {
  tabs: { id: T; name: string; icon?: IconName }[];
  value: T;
  onChange: (id: T) => void;
  label: string;
}) {
  const move = (event: KeyboardEvent) => {
    const at = tabs.findIndex((t) => t.id === value);
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    onChange(tabs[(at + step + tabs.length) % tabs.length]!.id);
    const list = event.currentTarget as HTMLElement;
    requestAnimationFrame(() => list.querySelector<HTMLElement>('[aria-selected="true"]')?.focus());
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} onKeyDown={move}>
      {tabs.map((t) => (
        <button
          key={t.id}
          type="button"
          role="tab"
          id={`tab-${t.id}`}
          aria-selected={t.id === value}
          aria-controls={`pane-${t.id}`}
          tabIndex={t.id === value ? 0 : -1}
          onClick={() => onChange(t.id)}
        >
          {t.icon && <Icon name={t.icon} size={15} />}
          <span>{t.name}</span>
        </button>
      ))}
    </div>
  );
}

export function Switch({
  label,
  checked,
  onChange,
  note,
}: {
  label: string;
  checked: boolean;
  onChange: (on: boolean) => void;
  note?: string;
}) {
  return (
    <label class="switch">
      <span>
        {label}
        {note && <small>{note}</small>}
      </span>
      <input type="checkbox" role="switch" checked={checked} onChange={(e) => onChange(e.currentTarget.checked)} />
    </label>
  );
}

// A text area that is as high as its text.
export function GrowingText(props: {
  value: string;
  onInput: (text: string) => void;
  label: string;
  class?: string;
  rows?: number;
  placeholder?: string;
  code?: boolean;
  invalid?: boolean;
  describedBy?: string;
  id?: string;
}) {
  const ref = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const area = ref.current!;
    area.style.height = "auto";
    area.style.height = area.scrollHeight + 2 + "px";
  }, [props.value]);
  return (
    <textarea
      ref={ref}
      id={props.id}
      class={(props.code ? "code-input " : "") + (props.class ?? "")}
      aria-label={props.label}
      aria-invalid={props.invalid}
      aria-describedby={props.describedBy}
      rows={props.rows ?? 2}
      placeholder={props.placeholder}
      spellcheck={!props.code}
      autocomplete="off"
      autocapitalize={props.code ? "off" : "sentences"}
      value={props.value}
      onInput={(e) => props.onInput(e.currentTarget.value)}
    />
  );
}
