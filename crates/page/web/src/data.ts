// The data of the page: its types, and where it comes from.

export type Outcome = "ok" | "failed" | "unknown" | "not_run";
export type Level = "high" | "low" | "none";
export type Section =
  | "at_work" | "needs_you" | "failed" | "contradicted" | "child_failed" | "stopped" | "other";

export interface Reason {
  kind: string;
  line: string;
  file?: string;
  call?: number;
  by?: string;
  since?: string;
}

export interface Tokens {
  input: number;
  output: number;
  cache_read: number;
  cache_creation: number;
}

/** A worker in the overview: its entry in index.json, and a few facts more. */
export interface Worker {
  id: string;
  short_id?: string;
  title: string;
  path: string;
  task: string;
  format: string;
  status: string;
  outcome?: Outcome;
  created_at?: string;
  started_at?: string;
  finished_at?: string;
  duration_ms?: number;
  last_message?: string;
  last_write?: string;
  owner_id?: string;
  run_id?: string;
  parent_id?: string;
  continues?: string;
  waiting?: { since?: string; for: string };
  model?: string;
  cwd?: string;
  project?: string;
  branch?: string;
  calls?: { total: number; failed: number; suspect: number; unknown: number; not_run: number; bytes: number };
  files_changed?: number;
  draft?: { state: string; files?: number; added?: number; removed?: number };
  cause?: string;
  doubts?: string[];
  attention?: { level: Level; reasons: Reason[] };
  cost?: { usd: number; source: string; complete?: boolean; includes_children?: boolean };
  context?: { peak_tokens?: number; compactions: number };
  section?: Section;
  end: string;
  begun?: number;
  progress?: string;
  tokens?: Tokens;
  tools?: string[];
}

export interface CostSum {
  workers: number;
  usd: number | null;
  computed_usd: number;
  complete: boolean;
  unknown_workers: number;
  tokens: number;
}

export interface Overview {
  title: string;
  options: string;
  version: string;
  now: number;
  complete: boolean;
  incomplete?: string;
  workers: Worker[];
  causes: { cause: string; workers: number[] }[];
  overlaps: { path: string; edits: number; workers: number[] }[];
  overlaps_not_listed: number;
  costs: { total: CostSum; failed: CostSum; groups: (CostSum & { name: string | null })[] };
  skipped?: Record<string, number>;
  troubles: string[];
}

/** Start in milliseconds since 1970, duration or -1, and a place in `KINDS`. */
export type Tick = [number, number, number];

/** The calls of a worker in short. */
export interface Marks {
  ticks: Tick[];
  /** Numbers of calls by tool, in the order of `KINDS`. */
  tools: Record<string, number[]>;
  /** Sizes of the largest outputs, and the numbers of their calls. */
  largest: [number, number][];
}

export const KINDS = ["ok", "failed", "suspect", "unknown", "not run", "running"] as const;

export interface Call {
  seq: number;
  tool: string;
  file: string;
  outcome: Outcome;
  suspect?: string;
  running?: boolean;
  exit_code?: number;
  at?: number;
  duration_ms?: number;
  bytes: number;
  input?: string;
  excerpt?: string;
  whole?: boolean;
}

export interface CutText {
  text: string;
  left_out: number;
}

export interface Panel {
  verdict?: string;
  requests?: CutText;
  evidence: { budget: string; text: string }[];
  changes?: string;
  calls: Call[];
  calls_not_listed: number;
  final_words?: CutText;
  files: { path: string; edits: number; added: number; removed: number; created?: boolean }[];
  files_not_listed: number;
  checks: { name: string; kind: string; says: string; file: string }[];
  tokens_by_model: Record<string, Tokens>;
  context?: { requests: [number, number][]; compactions: number[] };
  incomplete?: string;
}

/** The marks of workers, by id. */
export type AllMarks = Map<string, Marks>;

/** Where the data comes from. */
export interface Source {
  /** Calls `show` with the overview, and again whenever it changes; returns a function that stops that. */
  follow(show: (overview: Overview) => void, say: (connection: Connection) => void): () => void;
  marks(overview: Overview): Promise<AllMarks>;
  /** The panel about the worker at this place of the overview; null if there was no room for it. */
  panel(overview: Overview, at: number): Promise<Panel | null>;
}

/** The state of the connection to a server; a file is `static`. */
export type Connection = "static" | "connecting" | "live" | "lost" | "refused" | { error: string };

async function decode<T>(base64: string): Promise<T> {
  const raw = atob(base64);
  const bytes = Uint8Array.from(raw, (char) => char.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return (await new Response(stream).json()) as T;
}

/** Waits until the browser has read the whole file, which may be long. */
function fileRead(): Promise<void> {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((done) => document.addEventListener("DOMContentLoaded", () => done(), { once: true }));
}

function content(id: string): string {
  return document.getElementById(id)?.textContent ?? "";
}

/** The data in the file itself. */
export function fromFile(): Source {
  let panels: string[] | undefined;
  let marks: Promise<Marks[]> | undefined;
  return {
    follow(show, say) {
      decode<Overview>(content("overview")).then(show, (error) => say({ error: String(error) }));
      say("static");
      return () => {};
    },
    async marks(overview) {
      await fileRead();
      marks ??= decode<Marks[]>(content("marks"));
      return new Map((await marks).map((own, at) => [overview.workers[at]!.id, own]));
    },
    async panel(_, at) {
      await fileRead();
      panels ??= content("panels").split("\n");
      const panel = panels[at];
      return panel ? decode<Panel>(panel) : null;
    },
  };
}
