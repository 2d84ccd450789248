// All workers as bars on a line of time, children under those that started them, with their calls
// as marks that differ in color and shape.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { AllMarks, Marks, Overview } from "./data";
import { duration, time } from "./format";
import { tone, useWindow } from "./parts";
import { ended } from "./state";

/** Height of a row, as in page.css. */
const ROW = 26;
/** Width of the names, in pixels. */
const NAMES = 220;
/** Shortest time across the whole width, in milliseconds. */
const SPAN_MIN = 50;
/** Bars are too short to read if all of them take this many times the longest one. */
const SPREAD = 8;

interface Line {
  at: number;
  depth: number;
}

/** Puts children under those that started them. */
function lines(overview: Overview, places: number[]): Line[] {
  const shown = new Set(places);
  const byId = new Map(overview.workers.map((worker, at) => [worker.id, at]));
  const children = new Map<number, number[]>();
  const roots: number[] = [];
  for (const at of places) {
    const parent = byId.get(overview.workers[at]!.parent_id ?? "");
    if (parent === undefined || parent === at || !shown.has(parent)) roots.push(at);
    else children.set(parent, [...(children.get(parent) ?? []), at]);
  }
  const begun = (at: number) => overview.workers[at]!.begun ?? 0;
  const found: Line[] = [];
  const seen = new Set<number>();
  const add = (first: number[]) => {
    const left: Line[] = first.map((at) => ({ at, depth: 0 })).reverse();
    for (let line = left.pop(); line; line = left.pop()) {
      if (seen.has(line.at)) continue;
      seen.add(line.at);
      found.push(line);
      const below = (children.get(line.at) ?? []).sort((a, b) => begun(b) - begun(a));
      left.push(...below.map((at) => ({ at, depth: line.depth + 1 })));
    }
  };
  add(roots);
  // Workers that name each other as parents.
  add(places);
  return found;
}

export function Timeline({ overview, places, marks, selected, open, axis, setAxis, now }: {
  overview: Overview;
  places: number[];
  marks: AllMarks | undefined;
  selected: number;
  open: (at: number, change?: Record<string, string>) => void;
  /** `start` to begin all bars at one place, `time` to have them where they were; empty for the better one. */
  axis: string | undefined;
  setAxis: (axis: string) => void;
  now: number;
}) {
  const all = useMemo(() => lines(overview, places), [overview, places]);
  const start = (at: number) => overview.workers[at]!.begun;
  const end = (at: number) => {
    const worker = overview.workers[at]!;
    const last = ended(worker) ?? worker.begun ?? 0;
    return Math.max(worker.begun ?? last, last);
  };
  const [isAligned, from, to] = useMemo(() => {
    let [from, to, longest] = [Infinity, -Infinity, 0];
    for (const at of places) {
      const begun = start(at);
      if (begun === undefined) continue;
      [from, to, longest] = [Math.min(from, begun), Math.max(to, end(at)), Math.max(longest, end(at) - begun)];
    }
    const isAligned = axis === "start" || (axis !== "time" && longest > 0 && to - from > SPREAD * longest);
    if (from > to) return [isAligned, 0, 1];
    return isAligned ? [true, 0, Math.max(longest, SPAN_MIN)] : [false, from, Math.max(to, from + SPAN_MIN)];
  }, [overview, places, axis]);
  const [sight, setSight] = useState<[number, number]>([from, to]);
  useEffect(() => setSight([from, to]), [from, to]);
  const { box, first, last } = useWindow(all.length, ROW, all.findIndex((line) => line.at === selected));
  const [width, setWidth] = useState(800);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observed = new ResizeObserver(() => setWidth(Math.max(200, element.clientWidth - NAMES)));
    observed.observe(element);
    return () => observed.disconnect();
  }, []);
  const [left, right] = sight;
  const scale = width / Math.max(1, right - left);
  const zoom = (factor: number, middle = (left + right) / 2) => {
    const span = Math.max(SPAN_MIN, Math.min((right - left) * factor, (to - from) * 1.05));
    const part = (middle - left) / (right - left);
    setSight([middle - span * part, middle + span * (1 - part)]);
  };
  const pan = (part: number) => {
    const step = (right - left) * part;
    setSight([left + step, right + step]);
  };
  const focus = () => {
    const begun = selected < 0 ? undefined : start(selected);
    if (begun === undefined) return setSight([from, to]);
    const span = Math.max(SPAN_MIN, end(selected) - begun) * 0.05;
    const origin = isAligned ? begun : 0;
    setSight([begun - origin - span, end(selected) - origin + span]);
  };
  const drag = useRef<{ x: number; sight: [number, number]; moved: boolean } | null>(null);
  const wheel = (event: WheelEvent) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const x = event.clientX - (box.current?.getBoundingClientRect().left ?? 0) - NAMES;
    zoom(event.deltaY > 0 ? 1.25 : 0.8, left + x / scale);
  };
  useEffect(() => {
    // Without this, the browser zooms the page.
    const element = box.current;
    element?.addEventListener("wheel", wheel, { passive: false });
    return () => element?.removeEventListener("wheel", wheel);
  });
  const keys = (event: KeyboardEvent) => {
    const row = all.findIndex((line) => line.at === selected);
    const actions: Record<string, () => void> = {
      "+": () => zoom(0.67), "=": () => zoom(0.67), "-": () => zoom(1.5), "0": () => setSight([from, to]),
      ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2),
      ArrowDown: () => all.length > 0 && open(all[Math.min(all.length - 1, row + 1)]!.at),
      ArrowUp: () => all.length > 0 && open(all[Math.max(0, row - 1)]!.at),
    };
    const action = actions[event.key];
    if (!action || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    action();
  };
  const span = right - left;
  const label = (at: number) => (isAligned ? duration(Math.max(0, at)) : time(at, span < 600_000));
  const x = (at: number) => (at - left) * scale;
  return (
    <div class="timeline">
      <div class="tools" role="group" aria-label="Timeline">
        <button type="button" onClick={() => zoom(0.67)} title="Key: +">Zoom in</button>
        <button type="button" onClick={() => zoom(1.5)} title="Key: -">Zoom out</button>
        <button type="button" onClick={() => setSight([from, to])} title="Key: 0">All</button>
        <button type="button" onClick={focus}>Selected</button>
        <label><input type="checkbox" checked={isAligned} onChange={(event) => setAxis(event.currentTarget.checked ? "start" : "time")} /> from each start</label>
        <span class="legend" aria-hidden="true">
          <span class="ok">| ok</span> <span class="failed">▼ failed</span> <span class="suspect">◆ suspect</span> <span class="unknown">○ unknown</span> <span class="unknown">– not run</span> <span class="running">▶ running</span>
        </span>
      </div>
      <div class="axis" aria-hidden="true"><span>{label(left)}</span><span>{label(left + span / 2)}</span><span>{label(right)}{isAligned ? "" : " UTC"}</span></div>
      <div
        class="lanes" ref={box} tabIndex={0} role="listbox" aria-label="Workers on a line of time"
        aria-activedescendant={selected < 0 ? undefined : `lane-${selected}`} onKeyDown={keys}
        onPointerDown={(event) => { drag.current = { x: event.clientX, sight, moved: false }; }}
        onPointerMove={(event) => {
          const held = drag.current;
          if (!held || event.buttons === 0) return;
          const by = event.clientX - held.x;
          held.moved ||= Math.abs(by) > 4;
          if (held.moved) setSight([held.sight[0] - by / scale, held.sight[1] - by / scale]);
        }}
      >
        <div role="presentation" class="rows" style={{ height: `${all.length * ROW}px` }}>
          {all.slice(first, last).map(({ at, depth }, offset) => {
            const worker = overview.workers[at]!;
            const begun = start(at);
            const origin = isAligned ? begun ?? 0 : 0;
            const isRunning = worker.section === "at_work";
            const stop = isRunning && !isAligned ? Math.min(now, Math.max(end(at), begun ?? 0)) : end(at);
            return (
              <div
                key={worker.id} id={`lane-${at}`} role="option" aria-selected={at === selected} class={`lane ${at === selected ? "selected" : ""}`}
                style={{ top: `${(first + offset) * ROW}px` }} title={`${worker.title}\n${worker.end}`}
                aria-label={`${worker.short_id ?? worker.id} ${worker.title}, ${worker.end}${begun === undefined ? "" : `, began ${time(begun)}, ${duration(stop - begun)}`}`}
                onClick={() => { if (!drag.current?.moved) open(at); }}
              >
                <span class="name" style={{ paddingLeft: `${6 + Math.min(depth, 6) * 12}px` }}><span class="id">{worker.short_id ?? worker.id}</span> <bdi>{worker.title}</bdi></span>
                {begun !== undefined && (
                  <svg width={width} height={ROW} aria-hidden="true">
                    <Bar x={x(begun - origin)} to={x(stop - origin)} width={width} kind={tone(worker)} isRunning={isRunning} />
                    {ticks(marks?.get(overview.workers[at]!.id), origin, x, width).map(([place, kind, from], key) => <Mark key={key} x={place} from={from} kind={kind} />)}
                  </svg>
                )}
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}

function Bar({ x, to, width, kind, isRunning }: { x: number; to: number; width: number; kind: string; isRunning: boolean }) {
  const [from, end] = [Math.max(-5, x), Math.min(width + 5, Math.max(to, x + 2))];
  if (end < from) return null;
  return (
    <>
      <rect class={`bar ${kind}`} x={from} y={7} width={end - from} height={12} rx={2} />
      {isRunning && <path class="bar running" d={`M${end} 7l8 6l-8 6z`} />}
    </>
  );
}

/** The marks in sight: at most one of a kind per pixel or two, those that did not succeed last, so on top. */
function ticks(marks: Marks | undefined, origin: number, x: (at: number) => number, width: number): [number, number, number][] {
  const seen = new Set<string>();
  const found: [number, number, number][] = [];
  for (const [start, duration, kind] of marks?.ticks ?? []) {
    const from = x(start - origin);
    const place = duration > 0 ? x(start + duration - origin) : from;
    if (place < -10 || from > width + 10) continue;
    const spot = `${kind} ${Math.round(place / 2)}`;
    if (seen.has(spot)) continue;
    seen.add(spot);
    found.push([place, kind, from]);
  }
  return found.sort((a, b) => Number(a[1] === 1 || a[1] === 2) - Number(b[1] === 1 || b[1] === 2));
}

/** A call: a line as long as it took, with a shape at its end. */
function Mark({ x, from, kind }: { x: number; from: number; kind: number }) {
  const line = x - from > 3 && <path class="tick span" d={`M${Math.max(-5, from)} 13H${x}`} />;
  switch (kind) {
    case 1: return <>{line}<path class="tick failed" d={`M${x - 5} 5h10l-5 10z`} /></>;
    case 2: return <>{line}<path class="tick suspect" d={`M${x} 7l5 6l-5 6l-5-6z`} /></>;
    case 3: return <circle class="tick unknown" cx={x} cy={13} r={3} />;
    case 4: return <path class="tick unknown" d={`M${x - 4} 13h8`} />;
    case 5: return <path class="tick running" d={`M${x - 3} 8l7 5l-7 5z`} />;
    default: return <>{line}<path class="tick ok" d={`M${x} 9v8`} /></>;
  }
}
