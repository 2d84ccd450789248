// What the reader sees, kept in the address, so that a link shows the same.

import { useEffect, useState } from "preact/hooks";
import type { Overview, Worker } from "./data";
import { parsed } from "./format";

/** Facets by which workers are filtered, with their values for a worker. */
export const FACETS: { key: string; label: string; values: (worker: Worker) => string[] }[] = [
  { key: "attention", label: "Attention", values: (w) => one(w.attention?.level) },
  { key: "outcome", label: "Outcome", values: (w) => one(w.outcome ?? "not read") },
  { key: "status", label: "Status", values: (w) => one(w.status) },
  { key: "model", label: "Model", values: (w) => one(w.model) },
  { key: "project", label: "Project", values: (w) => one(w.project) },
  { key: "branch", label: "Branch", values: (w) => one(w.branch) },
  { key: "day", label: "Day", values: (w) => one(day(w)) },
  { key: "tool", label: "Tool", values: (w) => w.tools ?? [] },
  { key: "run", label: "Run", values: (w) => one(w.run_id) },
];

function one(value: string | undefined): string[] {
  return value === undefined || value === "" ? [] : [value];
}

export function day(worker: Worker): string | undefined {
  return worker.begun === undefined ? undefined : new Date(worker.begun).toISOString().slice(0, 10);
}

/** The end of a worker, or the last time at which it did something. */
export function ended(worker: Worker): number | undefined {
  return parsed(worker.finished_at) ?? parsed(worker.last_message) ?? parsed(worker.last_write);
}

export function lasted(worker: Worker): number | undefined {
  if (worker.duration_ms !== undefined) return worker.duration_ms;
  const end = ended(worker);
  return worker.begun === undefined || end === undefined ? undefined : Math.max(0, end - worker.begun);
}

export function allTokens(worker: Worker): number | undefined {
  const t = worker.tokens;
  return t && t.input + t.output + t.cache_read + t.cache_creation;
}

/** The parts of the address: worker, panel, call, text, view, sort, and a value for each facet. */
export type State = Record<string, string>;

function read(): State {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

function address(state: State): string {
  const kept = Object.entries(state).filter(([, value]) => value !== "");
  return kept.length === 0 ? "#" : `#${new URLSearchParams(kept)}`;
}

/** Returns the address of this page with changes; an empty value removes a part. */
export function link(state: State, change: State): string {
  return address({ ...state, ...change });
}

export function useAddress(): [State, (change: State, isStep?: boolean) => void] {
  const [state, setState] = useState(read);
  useEffect(() => {
    const update = () => setState(read());
    addEventListener("hashchange", update);
    addEventListener("popstate", update);
    return () => {
      removeEventListener("hashchange", update);
      removeEventListener("popstate", update);
    };
  }, []);
  const change = (change: State, isStep = false) => {
    const next = address({ ...read(), ...change });
    // A step can be taken back by the browser's key for that.
    history[isStep ? "pushState" : "replaceState"](null, "", next);
    setState(read());
  };
  return [state, change];
}

function texts(worker: Worker): string {
  const lines = worker.attention?.reasons.map((reason) => reason.line) ?? [];
  const all = [worker.id, worker.title, worker.task, worker.cause, worker.waiting?.for, ...lines];
  return all.join("\n").toLowerCase();
}

/** Returns the places of the workers that the filter admits, in the order that the reader chose. */
export function selected(overview: Overview, state: State): number[] {
  const text = (state.q ?? "").toLowerCase();
  const facets = FACETS.filter((facet) => state[facet.key]);
  const places = overview.workers.map((_, at) => at).filter((at) => {
    const worker = overview.workers[at]!;
    return facets.every((facet) => facet.values(worker).includes(state[facet.key]!))
      && (!state.section || worker.section === state.section)
      && (!text || texts(worker).includes(text));
  });
  const column = COLUMNS.find((column) => column.key === (state.sort ?? "").replace(/^-/, ""));
  if (!column) return places;
  const sign = state.sort!.startsWith("-") ? -1 : 1;
  const keys = new Map(places.map((at) => [at, column.sort(overview.workers[at]!)]));
  return places.sort((a, b) => {
    const [first, second] = [keys.get(a), keys.get(b)];
    // Without a value, a worker comes last in either order.
    if (first === undefined || second === undefined) return Number(first === undefined) - Number(second === undefined) || a - b;
    return (first < second ? -1 : first > second ? 1 : 0) * sign || a - b;
  });
}

const LEVELS: Record<string, number> = { high: 2, low: 1, none: 0 };

/** The columns of the table by which it can be sorted. */
export const COLUMNS: { key: string; label: string; sort: (worker: Worker) => number | string | undefined }[] = [
  { key: "end", label: "End", sort: (w) => -(LEVELS[w.attention?.level ?? "none"] ?? 0) * 100 + (w.outcome === "failed" ? 0 : w.outcome === "ok" ? 2 : 1) },
  { key: "id", label: "Id", sort: (w) => w.id },
  { key: "title", label: "Title", sort: (w) => w.title.toLowerCase() },
  { key: "begun", label: "Began (UTC)", sort: (w) => w.begun },
  { key: "time", label: "Time", sort: lasted },
  { key: "calls", label: "Calls", sort: (w) => w.calls?.total },
  { key: "failed", label: "Failed", sort: (w) => w.calls && w.calls.failed + w.calls.suspect },
  { key: "tokens", label: "Tokens", sort: allTokens },
  { key: "cost", label: "Cost", sort: (w) => w.cost?.usd },
  { key: "files", label: "Files", sort: (w) => w.files_changed },
  { key: "project", label: "Project", sort: (w) => w.project?.toLowerCase() },
  { key: "branch", label: "Branch", sort: (w) => w.branch?.toLowerCase() },
];
