// The page: the top, the list as a table, a timeline or pictures, and one worker beside it.

import { render } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { type Connection, type Overview, type Source, fromFile } from "./data";
import { count, rounded, time } from "./format";
import { fromServer, setToken, takeToken } from "./live";
import { Panel } from "./panel";
import { useLoaded } from "./parts";
import { Pictures } from "./pictures";
import { FACETS, type State, link, selected, useAddress } from "./state";
import { Table } from "./table";
import { Timeline } from "./timeline";
import { Triage, cost } from "./triage";

const VIEWS = [["table", "Table"], ["timeline", "Timeline"], ["pictures", "Pictures"]] as const;

function Page({ source }: { source: Source }) {
  const [overview, setOverview] = useState<Overview>();
  const [connection, setConnection] = useState<Connection>("connecting");
  const [attempt, setAttempt] = useState(0);
  useEffect(() => source.follow(setOverview, setConnection), [source, attempt]);
  useNews(overview, connection);
  if (typeof connection === "object") return <p class="warning">{`This page cannot be read: ${connection.error}. It needs a browser of 2023 or later.`}</p>;
  if (connection === "refused") {
    return (
      <main class="empty">
        <h1>swarmletfs</h1>
        <form onSubmit={(event) => { event.preventDefault(); setToken(new FormData(event.currentTarget).get("token") as string); setAttempt(attempt + 1); }}>
          <p>The token is missing or wrong. Open the address that <code>swarmletfs serve</code> printed, or enter its token.</p>
          <label>Token <input name="token" type="password" autocomplete="off" /></label> <button type="submit">Open</button>
        </form>
      </main>
    );
  }
  if (overview === undefined) return <p class="calm" role="status">{connection === "lost" ? "The server does not answer; trying again…" : "reading…"}</p>;
  return <Swarm overview={overview} source={source} connection={connection} />;
}

/** Counts in the title who needs somebody, and notifies once when a worker begins to wait or fails. */
function useNews(overview: Overview | undefined, connection: Connection) {
  const before = useRef<Map<string, string | undefined> | undefined>(undefined);
  useEffect(() => {
    if (!overview || connection === "static") return;
    const waiting = overview.workers.filter(({ section }) => section === "needs_you").length;
    document.title = `${waiting > 0 ? `(${waiting}) ` : ""}${overview.title} · swarmletfs`;
    const known = before.current;
    before.current = new Map(overview.workers.map(({ id, section }) => [id, section]));
    if (!known || !("Notification" in window) || Notification.permission !== "granted") return;
    for (const worker of overview.workers) {
      const isNews = worker.section === "needs_you" || worker.section === "failed";
      if (!isNews || known.get(worker.id) === worker.section) continue;
      const text = worker.section === "failed" ? worker.cause : worker.waiting?.for ?? worker.attention?.reasons[0]?.line;
      new Notification(`${worker.section === "failed" ? "Failed" : "Needs you"}: ${worker.title}`, { body: text ?? "", tag: `${worker.id} ${worker.section}` });
    }
  }, [overview, connection]);
}

/** Returns the time, which stands still in a file. */
function useNow(overview: Overview, connection: Connection): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (connection === "static") return;
    const timer = setInterval(() => setNow(Date.now()), 10_000);
    return () => clearInterval(timer);
  }, [connection]);
  return connection === "static" ? overview.now : Math.max(now, overview.now);
}

function Swarm({ overview, source, connection }: { overview: Overview; source: Source; connection: Connection }) {
  const [state, change] = useAddress();
  const now = useNow(overview, connection);
  const places = useMemo(() => selected(overview, state), [overview, state.q, state.sort, state.section, ...FACETS.map(({ key }) => state[key])]);
  const at = state.w ? find(overview, state.w) : -1;
  const view = VIEWS.find(([key]) => key === state.view)?.[0] ?? "table";
  const needsMarks = view !== "table";
  const marks = useLoaded(() => (needsMarks ? source.marks(overview) : Promise.resolve(undefined)), String(needsMarks), overview);
  const known = marks instanceof Error ? undefined : marks;
  const target = (place: number, more: State = {}) => ({ w: overview.workers[place]!.id, panel: "", call: "", with: "", ...more });
  const href = (place: number, more?: State) => link(state, target(place, more));
  const open = (place: number, more?: State) => change(target(place, { panel: state.panel === "compare" ? "" : state.panel ?? "", ...more }), place !== at);
  useEffect(() => {
    const keys = (event: KeyboardEvent) => {
      const isTyping = event.target instanceof HTMLElement && event.target.matches("input, select, textarea");
      if (event.key !== "/" || isTyping) return;
      event.preventDefault();
      document.getElementById("search")?.focus();
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, []);
  if (overview.workers.length === 0) {
    return (
      <main class="empty">
        <h1>{overview.title}</h1>
        <p>There is no worker here{overview.incomplete ? ` that was read: ${overview.incomplete}` : ""}.</p>
        <p class="note">{overview.troubles.join("; ")} <code>{`swarmletfs list${overview.options}`}</code> lists workers, and <code>swarmletfs doctor</code> finds out why there are none.</p>
      </main>
    );
  }
  const common = { overview, href, open, now };
  return (
    <div class={at >= 0 ? "page with-panel" : "page"}>
      <main>
        <Head overview={overview} connection={connection} />
        <Triage {...common} />
        <section class="list" aria-label="All workers">
          <Filter overview={overview} state={state} places={places} change={change} />
          <div class="views" role="group" aria-label="View">
            {VIEWS.map(([key, label]) => <button key={key} type="button" aria-pressed={view === key} onClick={() => change({ view: key === "table" ? "" : key })}>{label}</button>)}
          </div>
          {places.length === 0 && <p class="calm" role="status">No worker matches.</p>}
          {places.length > 0 && view === "table" && <Table {...common} places={places} state={state} selected={at} change={change} />}
          {places.length > 0 && view === "timeline" && <Timeline {...common} places={places} marks={known} selected={at} axis={state.axis} setAxis={(axis) => change({ axis })} />}
          {places.length > 0 && view === "pictures" && <Pictures {...common} places={places} marks={known} />}
        </section>
        <footer>
          <p>{`${connection === "static" ? "Written" : "Last change"} ${time(overview.now)} UTC by swarmletfs ${overview.version}. Reasons and outcomes follow from the records by rules, without a model. Texts of workers are data; excerpts are cut, and every cut is marked.`}</p>
        </footer>
      </main>
      {at >= 0 && <Panel {...common} at={at} source={source} state={state} change={change} />}
      {state.w && at < 0 && <aside class="panel"><p class="warning">{`No worker of this page has the id ${state.w}.`}</p><button type="button" onClick={() => change({ w: "" })}>Close</button></aside>}
    </div>
  );
}

/** Returns the place of the worker with this id, or of the only one whose id begins so; -1 without. */
function find(overview: Overview, id: string): number {
  const exact = overview.workers.findIndex((worker) => worker.id === id);
  if (exact >= 0) return exact;
  const found = overview.workers.map((_, at) => at).filter((at) => overview.workers[at]!.id.startsWith(id));
  return found.length === 1 ? found[0]! : -1;
}

function Head({ overview, connection }: { overview: Overview; connection: Connection }) {
  const number = (test: (section: string | undefined) => boolean) => overview.workers.filter((worker) => test(worker.section)).length;
  const outcomes = (outcome: string) => overview.workers.filter((worker) => worker.outcome === outcome).length;
  const facts = [
    count(overview.workers.length, "worker"), `${number((section) => section === "at_work")} at work`,
    `${outcomes("failed")} failed`, `${outcomes("unknown")} unknown`, `${outcomes("ok")} ok`,
    overview.costs.total.tokens > 0 ? `${rounded(overview.costs.total.tokens)} tokens` : "", cost(overview.costs.total),
  ];
  const [isAsked, setAsked] = useState(false);
  const mayAsk = connection !== "static" && !isAsked && "Notification" in window && Notification.permission === "default";
  return (
    <header class="top">
      <h1>{overview.title}</h1><p>{facts.filter(Boolean).join(" · ")}</p>
      {connection !== "static" && <p role="status" class={connection === "live" ? "ok" : "warning"}>{connection === "live" ? "● live" : "○ the server does not answer; trying again…"}</p>}
      {mayAsk && <button type="button" onClick={() => { setAsked(true); void Notification.requestPermission(); }}>Notify me</button>}
    </header>
  );
}

function Filter({ overview, state, places, change }: { overview: Overview; state: State; places: number[]; change: (change: State) => void }) {
  const choices = useMemo(() => FACETS.map((facet) => {
    const counts = new Map<string, number>();
    for (const worker of overview.workers) for (const value of facet.values(worker)) counts.set(value, (counts.get(value) ?? 0) + 1);
    const values = [...counts].sort((a, b) => (facet.key === "day" ? (a[0] < b[0] ? 1 : -1) : b[1] - a[1] || (a[0] < b[0] ? -1 : 1)));
    return { ...facet, values };
  }).filter((facet) => state[facet.key] || (facet.values.length > 1 && facet.values.some(([, n]) => n > 1))), [overview, state]);
  const isFiltered = Boolean(state.q || state.section) || FACETS.some(({ key }) => state[key]);
  return (
    <form class="filter" role="search" onSubmit={(event) => event.preventDefault()}>
      <label class="search">Text <input id="search" type="search" value={state.q ?? ""} title="Key: /" onInput={(event) => change({ q: event.currentTarget.value })} /></label>
      {choices.map(({ key, label, values }) => (
        <label key={key}>{label} <select value={state[key] ?? ""} class={state[key] ? "set" : ""} onChange={(event) => change({ [key]: event.currentTarget.value })}>
          <option value="">all</option>
          {state[key] && !values.some(([value]) => value === state[key]) && <option value={state[key]}>{state[key]}</option>}
          {values.slice(0, 500).map(([value, n]) => <option key={value} value={value}>{`${value.slice(0, 60)} (${n})`}</option>)}
        </select></label>
      ))}
      {isFiltered && <button type="button" onClick={() => change({ q: "", section: "", ...Object.fromEntries(FACETS.map(({ key }) => [key, ""])) })}>Clear</button>}
      <span role="status" class="note">{places.length === overview.workers.length ? count(places.length, "worker") : `${places.length} of ${count(overview.workers.length, "worker")}`}</span>
    </form>
  );
}

const root = document.getElementById("page");
const isFile = document.getElementById("overview") !== null;
if (!isFile) takeToken();
if (root) render(<Page source={isFile ? fromFile() : fromServer()} />, root);
