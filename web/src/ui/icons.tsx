// Line icons, 20 units wide; decorative, so that a button's label speaks.
const PATHS = {
  plus: "M10 4v12M4 10h12",
  menu: "M3 5.5h14M3 10h14M3 14.5h14",
  close: "M5 5l10 10M15 5L5 15",
  send: "M10 16V4M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  edit: "M12.5 4.5l3 3L7 16H4v-3zM11 6l3 3",
  trash: "M4 6h12M8 6V4h4v2M6 6l.7 10h6.6L14 6M8.5 9v4.5M11.5 9v4.5",
  copy: "M7 7h9v9H7zM4 13V4h9",
  check: "M4 10.5l4 4 8-9",
  again: "M15.5 8A6 6 0 1 0 16 11M16 4v4h-4",
  left: "M12 5l-5 5 5 5",
  right: "M8 5l5 5-5 5",
  down: "M5 8l5 5 5-5",
  sliders: "M4 6h7M15 6h1M4 14h1M9 14h7M13 4v4M7 12v4",
  tool: "M12.5 3.5a4 4 0 0 0-4.7 5.4L3.5 13.2a1.7 1.7 0 0 0 0 2.4l.9.9a1.7 1.7 0 0 0 2.4 0l4.3-4.3a4 4 0 0 0 5.4-4.7l-2.6 2.6-2.4-.6-.6-2.4z",
  braces:
    "M8 4H7a2 2 0 0 0-2 2v2a2 2 0 0 1-1.5 2A2 2 0 0 1 5 12v2a2 2 0 0 0 2 2h1M12 4h1a2 2 0 0 1 2 2v2a2 2 0 0 0 1.5 2A2 2 0 0 0 15 12v2a2 2 0 0 1-2 2h-1",
  pulse: "M3 10.5h3l2-5.5 4 10 2-4.5h3",
  code: "M7 6l-4 4 4 4M13 6l4 4-4 4M11 4.5L9 15.5",
  tokens: "M3 6h5v8H3zM8 6h3v8H8zM11 6h6v8h-6z",
  sun: "M10 7a3 3 0 1 0 0 6 3 3 0 0 0 0-6M10 2v2M10 16v2M2 10h2M16 10h2M4.3 4.3l1.4 1.4M14.3 14.3l1.4 1.4M15.7 4.3l-1.4 1.4M5.7 14.3l-1.4 1.4",
  moon: "M16 11.5A6.5 6.5 0 0 1 8.5 4 6.5 6.5 0 1 0 16 11.5z",
  auto: "M3 5h14v9H3zM7 17h6M10 14v3",
  gear: "M10 7.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5M10 3v2M10 15v2M3 10h2M15 10h2M5 5l1.5 1.5M13.5 13.5L15 15M15 5l-1.5 1.5M6.5 13.5L5 15",
  keyboard: "M2.5 6h15v8.5h-15zM5.5 9h.01M8.5 9h.01M11.5 9h.01M14.5 9h.01M6.5 12h7",
  export: "M10 12V3M6.5 6L10 2.8 13.5 6M4 11v5h12v-5",
  import: "M10 3v9M6.5 9l3.5 3.2L13.5 9M4 11v5h12v-5",
  spark: "M10 3l1.7 5.3L17 10l-5.3 1.7L10 17l-1.7-5.3L3 10l5.3-1.7z",
  book: "M4 4.5c2.5-1 4.5-.5 6 1 1.5-1.5 3.5-2 6-1v11c-2.5-1-4.5-.5-6 1-1.5-1.5-3.5-2-6-1zM10 5.5v11",
  question: "M7.5 7.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M10 14.5h.01",
  search: "M9 4a5 5 0 1 0 0 10A5 5 0 0 0 9 4M12.7 12.7L16.5 16.5",
  dots: "M5 10h.01M10 10h.01M15 10h.01",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 18 }: { name: IconName; size?: number }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" width={size} height={size} aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
