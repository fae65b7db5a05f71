// Live numbers of the server: a line below the composer, tiles in the panel.
import { history, live } from "../api/metrics.ts";
import type { Drafts, Live, TierRow } from "../api/metrics.ts";
import { server } from "../api/server.ts";
import { useStore } from "../state/store.ts";
import { setPanel } from "../state/view.ts";

const rate = (v: number | null) => (v === null ? "–" : v >= 100 ? String(Math.round(v)) : v.toFixed(1));
const part = (v: number | null) =>
  v === null ? "–" : `${v >= 0.0995 || v === 0 ? Math.round(v * 100) : (v * 100).toFixed(1)}%`;
const whole = (v: number | null) => (v === null ? "–" : Math.round(v).toLocaleString("en-US"));

export function LiveLine() {
  const now = useStore(live);
  const { fault } = useStore(server);
  if (fault) return <p class="live-line fault-text">{fault}</p>;
  if (!now) return <p class="live-line" />;
  return (
    <p class="live-line">
      <button type="button" onClick={() => setPanel("live")} title="Live numbers of the server">
        <Beat on={Boolean(now.running)} />
        <span>{rate(now.tokensPerS)} tokens/s</span>
        <span>queue {whole(now.waiting)}</span>
        <span>KV {part(now.kvUsed)}</span>
        <span>cache hits {part(now.cacheHit)}</span>
      </button>
    </p>
  );
}

function Beat({ on }: { on: boolean }) {
  return <i class={"beat" + (on ? " on" : "")} aria-hidden="true" />;
}

export function LivePane() {
  const now = useStore(live);
  const past = useStore(history);
  if (!now) return <p class="muted">The server gives no numbers at /metrics at the moment.</p>;
  return (
    <>
      <Tile name="Generated tokens/s" value={rate(now.tokensPerS)} wide>
        <Spark values={past} />
      </Tile>
      <div class="tiles">
        <Tile name="Answers in work" value={whole(now.running)} metric="running" />
        <Tile name="Queue" value={whole(now.waiting)} metric="waiting" />
        <Tile name="KV memory in use" value={part(now.kvUsed)} metric="kv">
          <Meter value={now.kvUsed} />
        </Tile>
        <Tile name="Prompt tokens from cache" value={part(now.cacheHit)} metric="hits">
          <Meter value={now.cacheHit} />
        </Tile>
        <Tile name="First token, mean" value={now.firstTokenMs === null ? "–" : `${Math.round(now.firstTokenMs)} ms`} />
        <Tile name="Prompt tokens/s" value={rate(now.promptPerS)} />
        <Tile name="Tokens a step" value={now.tokensPerStep === null ? "–" : now.tokensPerStep.toFixed(2)} metric="step" />
      </div>
      <Totals now={now} />
      {now.drafts && <Guesses drafts={now.drafts} />}
      {now.tiers.length > 0 && <Tiers rows={now.tiers} />}
    </>
  );
}

function Totals({ now }: { now: Live }) {
  return (
    <dl class="totals">
      <dt>Tokens generated since the start</dt>
      <dd data-metric="generated">{whole(now.generated)}</dd>
      <dt>Prompt tokens read</dt>
      <dd data-metric="prompt">{whole(now.prompt)}</dd>
    </dl>
  );
}

function Guesses({ drafts }: { drafts: Drafts }) {
  return (
    <div class="tiers">
      <table>
        <caption>Tokens guessed ahead</caption>
        <thead>
          <tr>
            <th scope="col">Place</th>
            <th scope="col" title="Of guesses that were right up to here">
              Checked
            </th>
            <th scope="col">Right</th>
          </tr>
        </thead>
        <tbody>
          {drafts.places.map((p, i) => (
            <tr key={i} data-draft={i + 1}>
              <th scope="row">{i + 1}</th>
              <td>{whole(p.checked)}</td>
              <td>{whole(p.right)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <dl class="totals">
        <dt>Guessed</dt>
        <dd data-metric="guessed">{whole(drafts.guessed)}</dd>
        <dt>Not worth checking</dt>
        <dd data-metric="saved">{whole(drafts.saved)}</dd>
      </dl>
    </div>
  );
}

const megabytes = (bytes: number) =>
  bytes >= 1e10 ? `${(bytes / 1e9).toFixed(1)} GB` : `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

function Tiers({ rows }: { rows: TierRow[] }) {
  const tenants = new Set(rows.map((r) => r.tenant)).size > 1;
  return (
    <div class="tiers">
      <table>
        <caption>KV below device memory</caption>
        <thead>
          <tr>
            <th scope="col">Tier</th>
            {tenants && <th scope="col">Key</th>}
            <th scope="col">Traffic</th>
            <th scope="col" title="Blocks found, of those asked for">
              Found
            </th>
            <th scope="col">Read</th>
            <th scope="col">Written</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((r) => (
            <tr key={JSON.stringify([r.tier, r.tenant, r.traffic])} data-tier={r.tier}>
              <th scope="row">{r.tier}</th>
              {tenants && <td title={r.tenant}>{r.tenant}</td>}
              <td>{r.traffic}</td>
              <td>
                {whole(r.found)} / {whole(r.asked)}
              </td>
              <td>{megabytes(r.readBytes)}</td>
              <td>{megabytes(r.writtenBytes)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Tile({
  name,
  value,
  metric,
  wide,
  children,
}: {
  name: string;
  value: string;
  metric?: string;
  wide?: boolean;
  children?: preact.ComponentChildren;
}) {
  return (
    <div class={"tile" + (wide ? " wide" : "")}>
      <span>{name}</span>
      <strong data-metric={metric}>{value}</strong>
      {children}
    </div>
  );
}

function Meter({ value }: { value: number | null }) {
  return <progress max={1} value={value ?? 0} aria-hidden="true" />;
}

function Spark({ values }: { values: number[] }) {
  const top = Math.max(...values, 1);
  const points = values.map((v, i) => `${(i * 300) / 59},${46 - (v / top) * 42}`);
  if (points.length < 2) return null;
  return (
    <svg
      class="spark"
      viewBox="0 0 300 48"
      preserveAspectRatio="none"
      role="img"
      aria-label={`Tokens per second over the last ${values.length} samples, at most ${Math.round(top)}`}
    >
      <polyline points={points.join(" ")} />
    </svg>
  );
}
