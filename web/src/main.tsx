import { render } from "preact";
import { askServer, server } from "./api/server.ts";
import { apiKey } from "./api/client.ts";
import { find, flush, load, open, settleDefaults } from "./state/conversations.ts";
import { App } from "./ui/app.tsx";
import "./styles/base.css";
import "./styles/layout.css";
import "./styles/chat.css";
import "./styles/markdown.css";
import "./styles/tokens.css";
import "./styles/composer.css";
import "./styles/panel.css";

const RETRY_MS = 3000;

async function keepAsking(): Promise<void> {
  await askServer();
  if (server.value.fault) setTimeout(keepAsking, RETRY_MS);
}

async function begin(): Promise<void> {
  await load();
  const wanted = location.hash.startsWith("#/") ? location.hash.slice(2) : null;
  if (find(wanted)) open(wanted);
  render(<App />, document.getElementById("app")!);
  void keepAsking();
  server.watch(settleDefaults);
  apiKey.watch(() => void askServer());
  addEventListener("hashchange", () => {
    const id = location.hash.slice(2);
    if (find(id)) open(id);
  });
  addEventListener("pagehide", flush);
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) flush();
    else void load();
  });
}

void begin();
