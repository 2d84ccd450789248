// Sums of the selected workers as pictures: calls by tool, tokens and cost by day and project,
// durations, and the largest outputs.

import { type AllMarks, KINDS, type Overview } from "./data";
import { bytes, duration, rounded, usd } from "./format";
import { allTokens, day, lasted } from "./state";
import { Names } from "./triage";

const BARS_MAX = 15;
const CLASSES = ["ok", "failed", "suspect", "unknown", "notrun", "running"];

interface BarRow {
  name: string;
  /** Amounts by kind, drawn one after another. */
  parts: number[];
  label: string;
}

/** Bars beside their names; the numbers are text, so that nothing is read from a color alone. */
function Bars({ title, rows, classes = ["plain"], legend }: { title: string; rows: BarRow[]; classes?: string[]; legend?: readonly string[] }) {
  const sum = (row: BarRow) => row.parts.reduce((all, part) => all + part, 0);
  const max = Math.max(1e-9, ...rows.map(sum));
  const shown = rows.slice(0, BARS_MAX);
  return (
    <figure>
      <figcaption>{title}{legend && <span class="legend"> {legend.map((name, at) => <span key={name} class={classes[at]}>■ {name} </span>)}</span>}</figcaption>
      {rows.length === 0 && <p class="calm">Nothing to show.</p>}
      <table class="bars">
        <tbody>
          {shown.map((row) => {
            let x = 0;
            return (
              <tr key={row.name}>
                <th scope="row"><bdi>{row.name}</bdi></th>
                <td>
                  <svg viewBox="0 0 200 12" preserveAspectRatio="none" aria-hidden="true">
                    {row.parts.map((part, at) => {
                      const [from, width] = [x, (part / max) * 200];
                      x += width;
                      return part > 0 && <rect key={at} class={classes[at] ?? "plain"} x={from} y={1} width={Math.max(width, 1)} height={10} />;
                    })}
                  </svg>
                </td>
                <td class="amount">{row.label}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {rows.length > BARS_MAX && <p class="note">{`and ${rows.length - BARS_MAX} more`}</p>}
    </figure>
  );
}

function summed<T>(items: Iterable<T>, name: (item: T) => string | undefined, add: (sum: number[], item: T) => void, size: number): [string, number[]][] {
  const sums = new Map<string, number[]>();
  for (const item of items) {
    const key = name(item) ?? "not stated";
    const sum = sums.get(key) ?? new Array<number>(size).fill(0);
    add(sum, item);
    sums.set(key, sum);
  }
  return [...sums];
}

const total = (parts: number[]) => parts.reduce((all, part) => all + part, 0);

export function Pictures({ overview, places, marks, href, open, now }: {
  overview: Overview;
  places: number[];
  marks: AllMarks | undefined;
  href: (at: number, change?: Record<string, string>) => string;
  open: (at: number, change?: Record<string, string>) => void;
  now: number;
}) {
  const workers = places.map((at) => overview.workers[at]!);
  const calls = places.flatMap((at) => Object.entries(marks?.get(overview.workers[at]!.id)?.tools ?? {}));
  const tools = summed(calls, ([tool]) => tool, (sum, [, counts]) => counts.forEach((n, at) => { sum[at]! += n; }), KINDS.length);
  tools.sort((a, b) => total(b[1]) - total(a[1]));
  const toolRows = tools.map(([name, parts]) => {
    const bad = [[parts[1], "failed"], [parts[2], "suspect"]].filter(([n]) => n).map(([n, word]) => `, ${n} ${word}`);
    return { name, parts, label: total(parts) + bad.join("") };
  });
  const spent = (name: (worker: (typeof workers)[number]) => string | undefined) =>
    summed(workers, name, (sum, worker) => { sum[0]! += allTokens(worker) ?? 0; sum[1]! += worker.cost?.usd ?? 0; }, 2)
      .filter(([, [tokens, cost]]) => tokens! + cost! > 0);
  const rows = (found: [string, number[]][]) => found.map(([name, [tokens, cost]]) => ({
    name, parts: [tokens!], label: `${rounded(tokens!)}${cost! > 0 ? `, ${usd(cost!)}` : ""}`,
  }));
  const byDay = spent(day).sort(([a], [b]) => (a < b ? 1 : -1));
  const byProject = spent((worker) => worker.project).sort((a, b) => b[1][0]! - a[1][0]!);
  const longest = places.map((at) => ({ at, ms: lasted(overview.workers[at]!) ?? 0 })).filter(({ ms }) => ms > 0).sort((a, b) => b.ms - a.ms);
  const outputs = places
    .flatMap((at) => (marks?.get(overview.workers[at]!.id)?.largest ?? []).map(([size, call]) => ({ at, size, call })))
    .sort((a, b) => b.size - a.size).slice(0, BARS_MAX);
  const name = (at: number) => `${overview.workers[at]!.short_id ?? overview.workers[at]!.id} ${overview.workers[at]!.title}`.slice(0, 60);
  return (
    <div class="pictures">
      <Bars title="Calls by tool and outcome" rows={toolRows} classes={CLASSES} legend={KINDS} />
      <Bars title="Tokens and stated cost by day" rows={rows(byDay)} />
      <Bars title="Tokens and stated cost by project" rows={rows(byProject)} />
      <Bars title="Longest workers" rows={longest.map(({ at, ms }) => ({ name: name(at), parts: [ms], label: duration(ms) }))} />
      <figure>
        <figcaption>Where the context went: the largest outputs</figcaption>
        {outputs.length === 0 && <p class="calm">Nothing to show.</p>}
        <table class="small">
          <tbody>
            {outputs.map(({ at, size, call }, key) => (
              <tr key={key}>
                <td class="amount">{bytes(size)}</td>
                <td>call {call} of <Names places={[at]} target={{ panel: "calls", call: String(call) }} {...{ overview, href, open, now }} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      </figure>
    </div>
  );
}
