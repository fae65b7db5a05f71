// A new chat: what serves here, and prompts to begin with.
import { server } from "../api/server.ts";
import { BUNDLED_STARTERS, STARTERS } from "../presets.ts";
import type { Starter } from "../presets.ts";
import { say } from "../state/chat.ts";
import { editSettings } from "../state/conversations.ts";
import { useStore } from "../state/store.ts";
import { Icon } from "./icons.tsx";
import type { IconName } from "./icons.tsx";
import { Logo } from "./sidebar.tsx";

const ICONS: Record<Starter["kind"], IconName> = {
  story: "book",
  thinking: "spark",
  tool: "tool",
  json: "braces",
  question: "question",
};

export function Welcome() {
  const { models, fault } = useStore(server);
  const bundled = models[0]?.bundled ?? false;
  const begin = (starter: Starter) => {
    editSettings(starter.settings);
    say(starter.prompt);
  };
  return (
    <div class="welcome">
      <div class="column">
        <Logo size={44} />
        <h1>{bundled ? "A small model, the whole machine" : "What would you like to know?"}</h1>
        {bundled ? (
          <p class="lead">
            This is the bundled model: the architecture of DeepSeek-V4.1-Flash at 20 million parameters, running on this
            computer's CPU. It shows the machinery, from thinking to tools and JSON schemas. It tells simple stories;
            its facts and its arithmetic are often wrong.
          </p>
        ) : (
          <p class="lead">{models[0] ? `${models[0].id}, served by DeepInfer.` : (fault ?? "Asking the server…")}</p>
        )}
        <ul class="starters">
          {(bundled ? BUNDLED_STARTERS : STARTERS).map((s) => (
            <li key={s.title}>
              <button type="button" onClick={() => begin(s)}>
                <Icon name={ICONS[s.kind]} size={18} />
                <strong>{s.title}</strong>
                <span>{s.prompt}</span>
              </button>
            </li>
          ))}
        </ul>
      </div>
    </div>
  );
}
