// One worker beside the list: what to know about it, its requests, evidence, calls and changes.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Call, CutText, Overview, Panel as PanelData, Source, Worker } from "./data";
import { bytes, count, duration, parsed, rounded, time } from "./format";
import { Badge, Origin, SIGNS, useLoaded } from "./parts";
import { type State, allTokens, ended, lasted } from "./state";
import { Names, cost } from "./triage";

const TABS = [["about", "About"], ["evidence", "Evidence"], ["calls", "Calls"], ["changes", "Changes"], ["compare", "Compare"]] as const;

interface PanelProps {
  overview: Overview;
  at: number;
  source: Source;
  state: State;
  now: number;
  change: (change: State, isStep?: boolean) => void;
  href: (at: number, change?: Record<string, string>) => string;
  open: (at: number, change?: Record<string, string>) => void;
}

/** Quotes a word for a shell. */
function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

export function Panel(props: PanelProps) {
  const { overview, at, source, state, change } = props;
  const worker = overview.workers[at]!;
  const data = useLoaded(() => source.panel(overview, at), worker.id, worker);
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => { heading.current?.scrollIntoView({ block: "nearest" }); }, [at]);
  const tab = TABS.find(([key]) => key === state.panel)?.[0] ?? "about";
  const close = () => change({ w: "", panel: "", call: "", with: "" });
  const command = (name: string) => `swarmletfs ${name}${overview.options} ${quoted(worker.id)}`;
  const keys = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step === 0) return;
    const next = (TABS.findIndex(([key]) => key === tab) + step + TABS.length) % TABS.length;
    change({ panel: TABS[next]![0] });
    (event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("[role=tab]")[next]?.focus();
  };
  const body = (panel: PanelData) => {
    switch (tab) {
      case "evidence": return <Evidence panel={panel} command={command("cat").replace(quoted(worker.id), "")} worker={worker} />;
      case "calls": return <Calls key={worker.id} panel={panel} worker={worker} state={state} change={change} command={command("log")} />;
      case "changes": return <Changes panel={panel} worker={worker} command={command("diff")} />;
      case "compare": return <Compare {...props} panel={panel} />;
      default: return <About {...props} panel={panel} command={command("show")} />;
    }
  };
  return (
    <aside class="panel" aria-label={`Worker ${worker.short_id ?? worker.id}`} onKeyDown={(event) => { if (event.key === "Escape") close(); }}>
      <header>
        <button type="button" class="close" onClick={close} aria-label="Close" title="Key: Escape">✕</button>
        <h2 ref={heading}><span class="id">{worker.short_id ?? worker.id}</span> <bdi>{worker.title || "(no title)"}</bdi></h2>
        <p class="facts"><Badge worker={worker} /> <Facts worker={worker} /></p>
      </header>
      <div role="tablist" class="tabs" aria-label="About this worker" onKeyDown={keys}>
        {TABS.map(([key, label]) => (
          <button key={key} type="button" role="tab" id={`tab-${key}`} aria-selected={tab === key} aria-controls="panel-body" tabIndex={tab === key ? 0 : -1} onClick={() => change({ panel: key === "about" ? "" : key, call: "" })}>{label}</button>
        ))}
      </div>
      <div class="body" role="tabpanel" id="panel-body" aria-labelledby={`tab-${tab}`} tabIndex={0}>
        {data === undefined && <p class="calm">reading…</p>}
        {data instanceof Error && <p class="warning">{`The data cannot be read: ${data.message}`}</p>}
        {data === null && <p class="warning">There was no room in this file for more about this worker. <Origin command={command("show")} path={`${worker.path}/summary`} /></p>}
        {data && !(data instanceof Error) && body(data)}
      </div>
    </aside>
  );
}

function Facts({ worker }: { worker: Worker }) {
  const ms = lasted(worker);
  const tokens = allTokens(worker);
  const facts = [
    worker.status, worker.begun === undefined ? "" : `began ${time(worker.begun)} UTC`, ms === undefined ? "" : duration(ms),
    worker.calls ? count(worker.calls.total, "call") : "", worker.calls?.failed ? `${worker.calls.failed} failed` : "",
    worker.calls?.suspect ? `${worker.calls.suspect} suspect` : "", tokens === undefined ? "" : `${rounded(tokens)} tokens`,
    worker.cost ? cost({ usd: worker.cost.usd, computed_usd: worker.cost.source === "computed" ? 1 : 0, complete: worker.cost.complete !== false }) : "",
    worker.model, worker.project, worker.branch, worker.format,
  ];
  return <bdi>{facts.filter(Boolean).join(" · ")}</bdi>;
}

function Block({ title, children }: { title: string; children: ComponentChildren }) {
  return <section class="block"><h3>{title}</h3>{children}</section>;
}

function Cut({ cut, path }: { cut: CutText; path: string }) {
  return (
    <>
      <pre class="text">{cut.text}</pre>
      {cut.left_out > 0 && <p class="note">{`${bytes(cut.left_out)} left out; all of it is in `}<code>{path}</code></p>}
    </>
  );
}

function About(props: PanelProps & { panel: PanelData; command: string }) {
  const { overview, at, panel, command } = props;
  const worker = overview.workers[at]!;
  const children = useMemo(() => overview.workers.map((_, child) => child).filter((child) => child !== at && overview.workers[child]!.parent_id === worker.id), [overview, at]);
  const parent = overview.workers.findIndex((other) => other.id === worker.parent_id);
  const reasons = worker.attention?.reasons ?? [];
  return (
    <>
      {panel.incomplete && <p class="warning">{panel.incomplete}</p>}
      {worker.waiting && <Block title="Waits for you"><p class="quote"><bdi>{worker.waiting.for}</bdi></p></Block>}
      {reasons.length > 0 && (
        <Block title="Why to look">
          <ul class="plain">
            {reasons.map((reason, key) => (
              <li key={key}>
                <strong>{reason.kind.replaceAll("_", " ")}</strong> <bdi>{reason.line}</bdi>
                {reason.call !== undefined && <> <a href={props.href(at, { panel: "calls", call: String(reason.call) })} onClick={(event) => { event.preventDefault(); props.open(at, { panel: "calls", call: String(reason.call) }); }}>{`call ${reason.call}`}</a></>}
              </li>
            ))}
          </ul>
        </Block>
      )}
      {panel.verdict && <Block title="In short"><pre class="text">{panel.verdict}</pre></Block>}
      {panel.requests ? <Block title="Requests"><Cut cut={panel.requests} path={`${worker.path}/requests.txt`} /></Block>
        : worker.task && <Block title="Task"><pre class="text">{worker.task}</pre></Block>}
      {panel.final_words && <Block title="Final words"><Cut cut={panel.final_words} path={`${worker.path}/summary`} /></Block>}
      {panel.checks.length > 0 && (
        <Block title="Checks"><ul class="plain">{panel.checks.map((check, key) => <li key={key}><strong>{check.name.replaceAll("_", " ")}</strong> <bdi>{check.says}</bdi> <code>{check.file}</code></li>)}</ul></Block>
      )}
      {panel.files.length > 0 && (
        <Block title="Changed files">
          <table class="small"><tbody>{panel.files.map((file) => <tr key={file.path}><td><bdi class="path">{file.path}</bdi>{file.created ? " (new)" : ""}</td><td class="amount added">+{file.added}</td><td class="amount removed">-{file.removed}</td></tr>)}</tbody></table>
          {panel.files_not_listed > 0 && <p class="note">{`${count(panel.files_not_listed, "more file")} in index.json`}</p>}
        </Block>
      )}
      <Context panel={panel} worker={worker} />
      {(parent >= 0 || children.length > 0) && (
        <Block title="Family">
          {parent >= 0 && <p>Started by <Names {...props} places={[parent]} /></p>}
          {children.length > 0 && <ul class="plain">{children.slice(0, 100).map((child) => <li key={child}><Badge worker={overview.workers[child]!} /> <Names {...props} places={[child]} /></li>)}</ul>}
          {children.length > 100 && <p class="note">{count(children.length - 100, "more child").replace("childs", "children")}</p>}
        </Block>
      )}
      <Origin command={command} path={`${worker.path}/summary`} />
    </>
  );
}

/** Tokens by model, and the size of each request to the model over time. */
function Context({ panel, worker }: { panel: PanelData; worker: Worker }) {
  const models = Object.entries(panel.tokens_by_model);
  if (models.length === 0 && !worker.context) return null;
  return (
    <Block title="Tokens and context">
      {models.length > 0 && (
        <table class="small">
          <thead><tr><th scope="col">Model</th><th scope="col" class="amount">Input</th><th scope="col" class="amount">Output</th><th scope="col" class="amount">Cache read</th><th scope="col" class="amount">Cache written</th></tr></thead>
          <tbody>{models.map(([model, t]) => <tr key={model}><th scope="row"><bdi>{model || "not stated"}</bdi></th><td class="amount">{rounded(t.input)}</td><td class="amount">{rounded(t.output)}</td><td class="amount">{rounded(t.cache_read)}</td><td class="amount">{rounded(t.cache_creation)}</td></tr>)}</tbody>
        </table>
      )}
      {worker.context && <p>{`Largest request ${worker.context.peak_tokens === undefined ? "not stated" : `${rounded(worker.context.peak_tokens)} tokens`}, ${count(worker.context.compactions, "compaction")}`}</p>}
      {panel.context && panel.context.requests.length > 1 && <Curve {...panel.context} />}
    </Block>
  );
}

function Curve({ requests, compactions }: { requests: [number, number][]; compactions: number[] }) {
  const [from, to] = [requests[0]![0], requests[requests.length - 1]![0]];
  const max = Math.max(1, ...requests.map(([, tokens]) => tokens));
  const x = (at: number) => ((at - from) / Math.max(1, to - from)) * 396 + 2;
  const y = (tokens: number) => 78 - (tokens / max) * 72;
  return (
    <figure>
      <svg viewBox="0 0 400 80" class="curve" role="img" aria-label={`Tokens of each request from ${time(from)} to ${time(to)}, at most ${rounded(max)}; ${count(compactions.length, "compaction")}`}>
        <polyline points={requests.map(([at, tokens]) => `${x(at).toFixed(1)},${y(tokens).toFixed(1)}`).join(" ")} />
        {compactions.map((at, key) => <path key={key} class="compaction" d={`M${x(at).toFixed(1)} 0V80`} />)}
      </svg>
      <figcaption class="note">{`Tokens of each request to the model, ${time(from)} to ${time(to)} UTC, at most ${rounded(max)}`}{compactions.length > 0 && "; dashed: the conversation was replaced by a shorter one"}</figcaption>
    </figure>
  );
}

function Evidence({ panel, worker, command }: { panel: PanelData; worker: Worker; command: string }) {
  const [chosen, setChosen] = useState(Math.min(1, panel.evidence.length - 1));
  const evidence = panel.evidence[chosen];
  const path = `${worker.path}/evidence.${evidence?.budget ?? "16k"}.txt`;
  return (
    <>
      {panel.evidence.length > 1 && (
        <p><label>Budget <select value={chosen} onChange={(event) => setChosen(Number(event.currentTarget.value))}>
          {panel.evidence.map(({ budget }, at) => <option key={budget} value={at}>{`${budget} bytes`}</option>)}
        </select></label></p>
      )}
      {evidence ? <pre class="text">{evidence.text}</pre> : <p class="note">There was no room for it in this file.</p>}
      <Origin command={`${command.trim()} ${quoted(path)}`} path={path} />
    </>
  );
}

function sign(call: Call): string {
  return call.running ? "running" : call.outcome === "failed" ? "failed" : call.suspect ? "suspect" : call.outcome;
}

function Calls({ panel, worker, state, change, command }: { panel: PanelData; worker: Worker; state: State; change: PanelProps["change"]; command: string }) {
  const [text, setText] = useState("");
  const [isOnlyBad, setOnlyBad] = useState(false);
  const target = useRef<HTMLLIElement>(null);
  useEffect(() => { target.current?.scrollIntoView({ block: "start" }); target.current?.querySelector("summary")?.focus(); }, [state.call]);
  const wanted = text.toLowerCase();
  const shown = panel.calls.filter((call) => {
    const isBad = call.outcome === "failed" || call.suspect !== undefined;
    const isFound = !wanted || [call.tool, call.input, call.excerpt, call.suspect].some((part) => part?.toLowerCase().includes(wanted));
    return isFound && (!isOnlyBad || isBad);
  });
  return (
    <>
      <p class="tools">
        <label>Search in calls <input type="search" value={text} onInput={(event) => setText(event.currentTarget.value)} /></label>
        <label><input type="checkbox" checked={isOnlyBad} onChange={(event) => setOnlyBad(event.currentTarget.checked)} /> failed and suspect only</label>
        <span class="note">{shown.length === panel.calls.length ? count(shown.length, "call") : `${shown.length} of ${count(panel.calls.length, "call")}`}</span>
      </p>
      <ol class="calls">
        {shown.map((call) => {
          const kind = sign(call);
          const isTarget = String(call.seq) === state.call;
          return (
            <li key={call.seq} id={`call-${call.seq}`} ref={isTarget ? target : undefined} class={isTarget ? "selected" : ""}>
              <details open={isTarget || kind === "failed" || kind === "suspect"} onToggle={(event) => { if (isTarget && !event.currentTarget.open) change({ call: "" }); }}>
                <summary>
                  <span class="seq">{call.seq}</span> <span class={`badge ${kind}`}><span aria-hidden="true">{SIGNS[kind]}</span> {kind.replace("_", " ")}{call.exit_code !== undefined && call.exit_code !== 0 && ` exit ${call.exit_code}`}</span> <strong><bdi>{call.tool}</bdi></strong> <bdi class="input">{call.input ?? ""}</bdi>
                  <span class="amount">{call.duration_ms === undefined ? "" : `${duration(call.duration_ms)}, `}{bytes(call.bytes)}</span>
                </summary>
                {call.suspect && <p class="warning">Looks like a failure: <bdi>{call.suspect}</bdi></p>}
                {call.input && <pre class="text input">{call.input}</pre>}
                {call.excerpt === undefined ? <p class="note">{call.bytes === 0 ? "No output." : "The output is left out here."}</p> : <pre class="text">{call.excerpt}</pre>}
                <p class="note">{call.at !== undefined && `${time(call.at, true)} UTC · `}{call.excerpt !== undefined && !call.whole && "an excerpt; all of it: "}<code>{`${worker.path}/${call.file}`}</code></p>
              </details>
            </li>
          );
        })}
      </ol>
      {panel.calls.length === 0 && panel.calls_not_listed === 0 && <p class="calm">No call is recorded.</p>}
      {panel.calls_not_listed > 0 && <p class="note">{`${count(panel.calls_not_listed, "call")} left out for lack of room, those that succeeded first.`}</p>}
      <Origin command={command} path={`${worker.path}/tool_calls/`} />
    </>
  );
}

const DIFF: [string, string][] = [["+++", "file"], ["---", "file"], ["diff ", "file"], ["@@", "hunk"], ["+", "added"], ["-", "removed"], ["#", "note"]];

function Changes({ panel, worker, command }: { panel: PanelData; worker: Worker; command: string }) {
  const lines = panel.changes?.split("\n");
  return (
    <>
      {worker.draft && <p>{`Draft: ${worker.draft.state.replaceAll("_", " ")}. `}<code>{`swarmletfs apply ${quoted(worker.id)}`}</code> shows it and asks before it changes a file.</p>}
      {lines ? (
        <pre class="text diff">{lines.map((line, key) => <span key={key} class={DIFF.find(([start]) => line.startsWith(start))?.[1] ?? ""}>{`${line}\n`}</span>)}</pre>
      ) : <p class="calm">{worker.files_changed ? "There was no room for the changes in this file." : "Its record holds no changes of files."}</p>}
      {(lines || worker.files_changed) && <Origin command={command} path={`${worker.path}/changes.diff`} />}
    </>
  );
}

function Compare(props: PanelProps & { panel: PanelData }) {
  const { overview, at, source, state, panel, change } = props;
  const worker = overview.workers[at]!;
  const found = overview.workers.findIndex((other) => other.id === state.with);
  const other = found < 0 ? undefined : overview.workers[found];
  const data = useLoaded(() => (found < 0 ? Promise.resolve(null) : source.panel(overview, found)), other?.id ?? "", other);
  const peers = useMemo(() => {
    const near = (candidate: Worker) => Number(candidate.parent_id !== undefined && candidate.parent_id === worker.parent_id) * 4 + Number(candidate.run_id === worker.run_id) * 2 + Number(candidate.title === worker.title);
    return overview.workers.map((candidate, place) => ({ place, near: near(candidate) })).filter(({ place }) => place !== at).sort((a, b) => b.near - a.near || a.place - b.place).slice(0, 200);
  }, [overview, at]);
  const facts: [string, (worker: Worker) => string][] = [
    ["End", (w) => w.end], ["Cause", (w) => w.cause ?? ""], ["Began", (w) => (w.begun === undefined ? "" : time(w.begun))], ["Time", (w) => { const ms = lasted(w); return ms === undefined ? "" : duration(ms); }],
    ["Last seen", (w) => { const end = ended(w) ?? parsed(w.last_write); return end === undefined ? "" : time(end); }],
    ["Calls", (w) => String(w.calls?.total ?? "")], ["Failed", (w) => String(w.calls?.failed ?? "")], ["Suspect", (w) => String(w.calls?.suspect ?? "")],
    ["Tokens", (w) => { const tokens = allTokens(w); return tokens === undefined ? "" : rounded(tokens); }], ["Cost", (w) => (w.cost ? `$${w.cost.usd.toFixed(2)}` : "")],
    ["Model", (w) => w.model ?? ""], ["Files", (w) => String(w.files_changed ?? "")],
  ];
  const second = data instanceof Error ? undefined : data;
  const step = (call: Call) => `${call.tool} ${call.input ?? ""}`;
  const only = (panel: PanelData, other: PanelData) => {
    const known = new Set(other.calls.map(step));
    return panel.calls.filter((call) => !known.has(step(call)));
  };
  const both = second ? panel.files.filter((file) => second.files.some((same) => same.path === file.path)) : [];
  return (
    <>
      <p><label>Compare with <select value={state.with ?? ""} onChange={(event) => change({ with: event.currentTarget.value })}>
        <option value="">choose a worker</option>
        {other && !peers.some(({ place }) => place === found) && <option value={other.id}>{`${other.short_id ?? other.id} ${other.title.slice(0, 60)}`}</option>}
        {peers.map(({ place }) => { const peer = overview.workers[place]!; return <option key={peer.id} value={peer.id}>{`${peer.short_id ?? peer.id} ${peer.title.slice(0, 60)}`}</option>; })}
      </select></label></p>
      {other && (
        <>
          <table class="small facts">
            <thead><tr><td /><th scope="col" class="id">{worker.short_id ?? worker.id}</th><th scope="col" class="id">{other.short_id ?? other.id}</th></tr></thead>
            <tbody>{facts.map(([label, fact]) => <tr key={label} class={fact(worker) === fact(other) ? "" : "differs"}><th scope="row">{label}</th><td><bdi>{fact(worker)}</bdi></td><td><bdi>{fact(other)}</bdi></td></tr>)}</tbody>
          </table>
          {second && (
            <>
              <Block title="Files that both changed">{both.length === 0 ? <p class="calm">None.</p> : <ul class="plain">{both.map((file) => <li key={file.path}><bdi class="path">{file.path}</bdi></li>)}</ul>}</Block>
              <Steps title={`Calls only of ${worker.short_id ?? worker.id}`} calls={only(panel, second)} />
              <Steps title={`Calls only of ${other.short_id ?? other.id}`} calls={only(second, panel)} />
            </>
          )}
          <Origin command={`swarmletfs compare${overview.options} ${quoted(worker.id)} ${quoted(other.id)}`} path={`compare/${worker.id}..${other.id}`} />
        </>
      )}
    </>
  );
}

function Steps({ title, calls }: { title: string; calls: Call[] }) {
  return (
    <Block title={title}>
      {calls.length === 0 ? <p class="calm">None.</p> : <ul class="plain">{calls.slice(0, 50).map((call) => <li key={call.seq}><span class={`badge ${sign(call)}`}>{SIGNS[sign(call)]}</span> <strong><bdi>{call.tool}</bdi></strong> <bdi class="input">{call.input ?? ""}</bdi></li>)}</ul>}
      {calls.length > 50 && <p class="note">{count(calls.length - 50, "more call")}</p>}
    </Block>
  );
}
