// The panel beside the chat: parameters, tools, answer format, live numbers.
import { conversations, currentId, currentSettings, draftSettings } from "../state/conversations.ts";
import { useStore } from "../state/store.ts";
import { panel, setPanel } from "../state/view.ts";
import type { Panel as PanelName } from "../state/view.ts";
import { FormatPane } from "./format.tsx";
import { LivePane } from "./live.tsx";
import { ParametersPane } from "./parameters.tsx";
import { IconButton, Tabs } from "./parts.tsx";
import { ToolsPane } from "./tools.tsx";

const TABS: { id: PanelName; name: string }[] = [
  { id: "parameters", name: "Parameters" },
  { id: "tools", name: "Tools" },
  { id: "format", name: "JSON" },
  { id: "live", name: "Live" },
];

export function Panel() {
  const shown = useStore(panel);
  useStore(currentId);
  useStore(conversations, () => currentSettings());
  useStore(draftSettings);
  const settings = currentSettings();
  if (!shown) return null;
  return (
    <aside class="panel" id="panel" aria-label="Settings of this chat">
      <div class="panel-head">
        <Tabs tabs={TABS} value={shown} onChange={setPanel} label="Settings of this chat" />
        <IconButton icon="close" label="Close the panel" onClick={() => setPanel(null)} />
      </div>
      <div class="pane" role="tabpanel" id={`pane-${shown}`} aria-labelledby={`tab-${shown}`} tabIndex={-1}>
        {shown === "parameters" && <ParametersPane settings={settings} />}
        {shown === "tools" && <ToolsPane settings={settings} />}
        {shown === "format" && <FormatPane settings={settings} />}
        {shown === "live" && <LivePane />}
      </div>
    </aside>
  );
}
