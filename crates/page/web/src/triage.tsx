// The top of the page: who needs a person, what went wrong, and sums.

import { Badge, Limited } from "./parts";
import type { Overview, Section, Worker } from "./data";
import { age, count, parsed, rounded, time, usd } from "./format";

type Open = (at: number, change?: Record<string, string>) => void;

interface TriageProps {
  overview: Overview;
  now: number;
  href: (at: number, change?: Record<string, string>) => string;
  open: Open;
}

/** Number of entries of a list that are shown at first. */
const SHOWN = 8;

export function Triage(props: TriageProps) {
  const { overview } = props;
  const places = (section: Section) =>
    overview.workers.map((_, at) => at).filter((at) => overview.workers[at]!.section === section);
  const since = (at: number) => waitsSince(overview.workers[at]!) ?? Infinity;
  const waiting = places("needs_you").sort((a, b) => since(a) - since(b) || a - b);
  const drafts = overview.workers.map((_, at) => at).filter((at) => {
    const draft = overview.workers[at]!.draft?.state;
    return draft !== undefined && ["waiting", "taken_back", "partly_applied", "unknown"].includes(draft);
  });
  const contradicted = places("contradicted");
  const also: [Section, string][] = [
    ["at_work", "At work"], ["child_failed", "Started workers that failed"],
    ["stopped", "Stopped, cut or abandoned"], ["other", "Other reasons to look"],
  ];
  return (
    <div class="triage">
      <section aria-labelledby="needs-you" class={waiting.length + drafts.length > 0 ? "needs" : ""}>
        <h2 id="needs-you">Needs you {waiting.length + drafts.length > 0 && <span class="number">{waiting.length + drafts.length}</span>}</h2>
        {waiting.length + drafts.length === 0 && <p class="calm">Nobody waits for you.</p>}
        <Limited max={SHOWN} noun="worker" items={waiting.map((at) => <Waiting key={at} at={at} {...props} />)} />
        {drafts.length > 0 && (
          <>
            <h3>Changes that wait for a decision</h3>
            <Limited max={SHOWN} noun="draft" items={drafts.map((at) => <Draft key={at} at={at} {...props} />)} />
          </>
        )}
      </section>
      <div class="columns">
      <section aria-labelledby="went-wrong">
        <h2 id="went-wrong">What went wrong {overview.causes.length > 0 && <span class="number">{overview.causes.reduce((sum, cause) => sum + cause.workers.length, 0)}</span>}</h2>
        {overview.causes.length === 0 && <p class="calm">No failure is recorded.</p>}
        <Limited max={SHOWN} noun="cause" items={overview.causes.map((cause, key) => (
          <li key={key}>
            <bdi class="cause">{cause.cause}</bdi>
            <Names places={cause.workers} {...props} />
          </li>
        ))} />
      </section>
      {contradicted.length > 0 && (
        <section aria-labelledby="contradicted">
          <h2 id="contradicted">Said done, but <span class="number">{contradicted.length}</span></h2>
          <Limited max={SHOWN} noun="worker" items={contradicted.map((at) => <Entry key={at} at={at} kind="contradicted" {...props} />)} />
        </section>
      )}
      {also.map(([section, title]) => {
        const found = places(section);
        return found.length > 0 && (
          <details key={section}>
            <summary><h2>{title}</h2> <span class="number">{found.length}</span></summary>
            <Limited max={SHOWN} noun="worker" items={found.map((at) => <Entry key={at} at={at} {...props} />)} />
          </details>
        );
      })}
      <Sums {...props} />
      </div>
    </div>
  );
}

function Title({ at, overview, href, open, target }: TriageProps & { at: number; target?: Record<string, string> }) {
  const worker = overview.workers[at]!;
  return (
    <a href={href(at, target)} onClick={(event) => { event.preventDefault(); open(at, target); }}>
      <span class="id">{worker.short_id ?? worker.id}</span> <bdi>{worker.title || "(no title)"}</bdi>
    </a>
  );
}

function waitsFor(worker: Worker) {
  return worker.attention?.reasons.find((reason) => reason.kind === "waits");
}

function waitsSince(worker: Worker): number | undefined {
  return parsed(worker.waiting?.since ?? waitsFor(worker)?.since);
}

function Waiting(props: TriageProps & { at: number }) {
  const worker = props.overview.workers[props.at]!;
  const since = waitsSince(worker);
  return (
    <li>
      <Title {...props} />
      {since !== undefined && <span class="since" title={`since ${time(since)} UTC`}> waiting {age(props.now - since)}</span>}
      <p class="quote"><bdi>{worker.waiting?.for ?? waitsFor(worker)?.line ?? "its record does not say for what"}</bdi></p>
    </li>
  );
}

function Draft(props: TriageProps & { at: number }) {
  const { draft } = props.overview.workers[props.at]!;
  return (
    <li>
      <Title {...props} target={{ panel: "changes" }} />
      <span class="since"> {draft?.files === undefined ? "" : `${count(draft.files, "file")}, +${draft.added ?? 0} -${draft.removed ?? 0}`} {draft?.state.replace("_", " ")}</span>
    </li>
  );
}

/** A worker with the line of its first reason. */
function Entry(props: TriageProps & { at: number; kind?: string }) {
  const worker = props.overview.workers[props.at]!;
  const reasons = worker.attention?.reasons ?? [];
  const reason = reasons.find((reason) => reason.kind === props.kind) ?? reasons[0];
  const line = worker.section === "at_work" ? worker.progress : reason?.line;
  const target: Record<string, string> = reason?.call === undefined ? {} : { panel: "calls", call: String(reason.call) };
  return <li><Title {...props} target={target} /> <Badge worker={worker} /><p class="quote"><bdi>{line ?? worker.progress ?? ""}</bdi></p></li>;
}

/** Links to workers; only the first are named if there are many. */
export function Names({ places, overview, href, open, target }: TriageProps & { places: number[]; target?: Record<string, string> }) {
  const link = (at: number) => {
    const worker: Worker = overview.workers[at]!;
    return (
      <a key={at} href={href(at, target)} title={worker.title} onClick={(event) => { event.preventDefault(); open(at, target); }}>
        <span class="id">{worker.short_id ?? worker.id}</span>
        {places.length <= 3 && <> <bdi class="short">{worker.title}</bdi></>}
      </a>
    );
  };
  return <span class="names">{places.slice(0, 12).map(link)}{places.length > 12 && ` and ${places.length - 12} more`}</span>;
}

/** An amount: ~ marks one that was computed, > one that leaves something out. */
export function cost(sum: { usd: number | null; computed_usd: number; complete: boolean }): string {
  return sum.usd === null ? "" : `${sum.complete ? "" : ">"}${sum.computed_usd > 0 ? "~" : ""}${usd(sum.usd)}`;
}

function Sums(props: TriageProps) {
  const { costs, overlaps, overlaps_not_listed, troubles, skipped, incomplete } = props.overview;
  const notShown = Object.entries(skipped ?? {}).filter(([, n]) => n > 0);
  return (
    <>
      <section aria-labelledby="cost">
        <h2 id="cost">Tokens and cost</h2>
        {costs.groups.length === 0 ? <p class="calm">No record counts tokens.</p> : (
          <table class="small">
            <thead><tr><th scope="col">Model</th><th scope="col" class="amount">Workers</th><th scope="col" class="amount">Tokens</th><th scope="col" class="amount">Cost</th></tr></thead>
            <tbody>
              {costs.groups.slice(0, 12).map((group, key) => (
                <tr key={key}><th scope="row"><bdi>{group.name ?? "not stated"}</bdi></th><td class="amount">{group.workers || ""}</td><td class="amount">{rounded(group.tokens)}</td><td class="amount">{cost(group) || "–"}</td></tr>
              ))}
              <tr class="total"><th scope="row">All</th><td class="amount">{costs.total.workers}</td><td class="amount">{rounded(costs.total.tokens)}</td><td class="amount">{cost(costs.total) || "–"}</td></tr>
              {costs.failed.workers > 0 && <tr><th scope="row">Failed, with what they started</th><td class="amount">{costs.failed.workers}</td><td class="amount">{rounded(costs.failed.tokens)}</td><td class="amount">{cost(costs.failed) || "–"}</td></tr>}
            </tbody>
          </table>
        )}
        {costs.total.usd === null && costs.total.tokens > 0 && <p class="note">No record states a cost; <code>--prices FILE</code> computes it.</p>}
      </section>
      {overlaps.length > 0 && (
        <section aria-labelledby="overlaps">
          <h2 id="overlaps">Files edited by two at once <span class="number">{overlaps.length + overlaps_not_listed}</span></h2>
          <Limited max={SHOWN} noun="file" items={overlaps.map((overlap, key) => (
            <li key={key}><bdi class="path">{overlap.path}</bdi> <Names places={overlap.workers} {...props} target={{ panel: "changes" }} /></li>
          ))} />
          {overlaps_not_listed > 0 && <p class="note">{count(overlaps_not_listed, "more file")}: see <code>summary</code>.</p>}
        </section>
      )}
      {(incomplete || troubles.length > 0 || notShown.length > 0) && (
        <section aria-labelledby="not-read">
          <h2 id="not-read">Not read or not shown</h2>
          <ul class="plain">
            {incomplete && <li>{incomplete}</li>}
            {troubles.map((trouble, key) => <li key={key}><bdi>{trouble}</bdi></li>)}
            {notShown.map(([what, n]) => <li key={what}>{`${n} ${what.replace("_", " ")} in the store`}</li>)}
          </ul>
        </section>
      )}
    </>
  );
}
