// All workers as a table, of which only the rows in sight are drawn.

import type { Overview, Worker } from "./data";
import { count, duration, rounded, time } from "./format";
import { Badge, PRINTED_MAX, useWindow } from "./parts";
import { COLUMNS, type State, allTokens, lasted } from "./state";
import { cost } from "./triage";

/** Height of a row, as in page.css. */
const ROW = 30;

function cell(worker: Worker, key: string) {
  switch (key) {
    case "end": return <Badge worker={worker} />;
    case "id": return <span class="id">{worker.short_id ?? worker.id}</span>;
    case "title": return <bdi>{worker.title}</bdi>;
    case "begun": return worker.begun === undefined ? "" : time(worker.begun);
    case "time": { const ms = lasted(worker); return ms === undefined ? "" : duration(ms); }
    case "calls": return worker.calls?.total ?? "";
    case "failed": return worker.calls && worker.calls.failed + worker.calls.suspect || "";
    case "tokens": { const tokens = allTokens(worker); return tokens === undefined ? "" : rounded(tokens); }
    case "cost": return worker.cost ? cost({ usd: worker.cost.usd, computed_usd: worker.cost.source === "computed" ? 1 : 0, complete: worker.cost.complete !== false }) : "";
    case "files": return worker.files_changed || "";
    case "project": return <bdi>{worker.project}</bdi>;
    case "branch": return <bdi>{worker.branch}</bdi>;
    default: return "";
  }
}

export function Table({ overview, places, state, selected, open, change }: {
  overview: Overview;
  places: number[];
  state: State;
  selected: number;
  open: (at: number) => void;
  change: (change: State) => void;
}) {
  const row = places.indexOf(selected);
  const { box, first, last, isPrinting } = useWindow(places.length, ROW, row);
  const sorted = (state.sort ?? "").replace(/^-/, "");
  const isDown = (state.sort ?? "").startsWith("-");
  const sortBy = (key: string) => {
    // Up, down, and back to newest first.
    change({ sort: sorted !== key ? key : isDown ? "" : `-${key}` });
  };
  const move = (event: KeyboardEvent) => {
    const page = Math.max(1, Math.floor((box.current?.clientHeight ?? ROW) / ROW) - 2);
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -places.length, End: places.length };
    const step = steps[event.key];
    if (step === undefined || places.length === 0) return;
    event.preventDefault();
    const next = row < 0 ? 0 : Math.min(places.length - 1, Math.max(0, row + step));
    open(places[next]!);
    requestAnimationFrame(() => box.current?.querySelector<HTMLElement>("[aria-selected=true]")?.focus());
  };
  const focusable = row >= first && row < last ? row : first;
  return (
    <div class="grid" role="grid" aria-label="Workers" aria-rowcount={places.length + 1} ref={box} onKeyDown={move}>
      <div class="head" role="rowgroup">
        <div role="row" aria-rowindex={1}>
          {COLUMNS.map(({ key, label }) => (
            <div key={key} role="columnheader" class={`c-${key}`} aria-sort={sorted !== key ? "none" : isDown ? "descending" : "ascending"}>
              <button type="button" onClick={() => sortBy(key)}>{label}{sorted === key ? (isDown ? " ▼" : " ▲") : ""}</button>
            </div>
          ))}
        </div>
      </div>
      <div role="rowgroup" class="rows" style={{ height: `${(isPrinting ? last : places.length) * ROW}px` }}>
        {places.slice(first, last).map((at, offset) => {
          const worker = overview.workers[at]!;
          return (
            <div
              key={worker.id} role="row" aria-rowindex={first + offset + 2} aria-selected={at === selected}
              class={`row ${at === selected ? "selected" : ""}`} style={{ top: `${(first + offset) * ROW}px` }}
              tabIndex={first + offset === focusable ? 0 : -1} title={worker.title}
              onClick={() => open(at)}
              onKeyDown={(event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); open(at); } }}
            >
              {COLUMNS.map(({ key }) => <div key={key} role="gridcell" class={`c-${key}`}>{cell(worker, key)}</div>)}
            </div>
          );
        })}
      </div>
      {isPrinting && places.length > PRINTED_MAX && <p>{count(places.length - PRINTED_MAX, "more worker")} in the page</p>}
    </div>
  );
}
