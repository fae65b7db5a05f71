// Draws a Markdown tree. Model text only ever becomes text nodes.
import { memo } from "../memo.ts";
import { parseBlocks, splitStable } from "../text/markdown.ts";
import type { Block, Inline } from "../text/markdown.ts";
import { highlight } from "../text/highlight.ts";
import { CopyButton } from "./parts.tsx";

function inline(nodes: Inline[]) {
  return nodes.map((n, i) => {
    switch (n.t) {
      case "text":
        return n.v;
      case "code":
        return <code key={i}>{n.v}</code>;
      case "br":
        return <br key={i} />;
      case "link":
        return (
          <a key={i} href={n.href} target="_blank" rel="noopener noreferrer nofollow">
            {inline(n.c)}
          </a>
        );
      case "strong":
        return <strong key={i}>{inline(n.c)}</strong>;
      case "em":
        return <em key={i}>{inline(n.c)}</em>;
      case "del":
        return <del key={i}>{inline(n.c)}</del>;
    }
  });
}

function blocks(list: Block[]) {
  return list.map((b, i) => {
    switch (b.t) {
      case "p":
        return <p key={i}>{inline(b.c)}</p>;
      case "h": {
        const Heading = `h${Math.min(b.n + 2, 6)}` as "h3";
        return (
          <Heading key={i} class={`h${b.n}`}>
            {inline(b.c)}
          </Heading>
        );
      }
      case "code":
        return <Code key={i} lang={b.lang} text={b.v} />;
      case "quote":
        return <blockquote key={i}>{blocks(b.c)}</blockquote>;
      case "hr":
        return <hr key={i} />;
      case "list": {
        const items = b.items.map((item, k) => (
          <li key={k} class={item.task === null ? undefined : "task"}>
            {item.task !== null && (
              <input type="checkbox" checked={item.task} disabled aria-label={item.task ? "Done" : "Not done"} />
            )}
            {item.c.length === 1 && item.c[0]!.t === "p" ? inline(item.c[0]!.c) : blocks(item.c)}
          </li>
        ));
        return b.ordered ? (
          <ol key={i} start={b.start}>
            {items}
          </ol>
        ) : (
          <ul key={i}>{items}</ul>
        );
      }
      case "table":
        return (
          <div key={i} class="table" role="region" aria-label="Table" tabIndex={0}>
            <table>
              <thead>
                <tr>
                  {b.head.map((c, k) => (
                    <th key={k} class={b.align[k] ?? undefined}>
                      {inline(c)}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>
                {b.rows.map((row, r) => (
                  <tr key={r}>
                    {row.map((c, k) => (
                      <td key={k} class={b.align[k] ?? undefined}>
                        {inline(c)}
                      </td>
                    ))}
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        );
    }
  });
}

export function Code({ lang, text, label }: { lang: string; text: string; label?: string }) {
  return (
    <figure class="code">
      <figcaption>
        <span>{label ?? (lang || "text")}</span>
        <CopyButton text={text} label="Copy code" />
      </figcaption>
      <pre tabIndex={0}>
        <code>
          {highlight(text, lang).map((p, i) =>
            p.kind ? (
              <span key={i} class={`c-${p.kind}`}>
                {p.v}
              </span>
            ) : (
              p.v
            ),
          )}
        </code>
      </pre>
    </figure>
  );
}

const Part = memo(({ text }: { text: string }) => <>{blocks(parseBlocks(text))}</>);

export function Markdown({ text }: { text: string }) {
  return (
    <div class="markdown">
      {splitStable(text).map((part, i) => (
        <Part key={i} text={part} />
      ))}
    </div>
  );
}
