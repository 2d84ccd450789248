// The data from a server that follows the workers.

import type { AllMarks, Connection, Marks, Overview, Panel, Source, Worker } from "./data";

/** A message of the stream: rows that are new or changed, and the parts of the overview that changed. */
type Change = Partial<Overview> & { now: number; rows: Worker[]; order?: string[] };

/** Key of the token in the storage of this tab. */
const TOKEN = "swarmletfs-token";
/** Times between two attempts to connect, in milliseconds. */
const PAUSE_MIN = 500;
const PAUSE_MAX = 5_000;

/** Takes the token out of the address, so that no link that is copied has it. */
export function takeToken(): void {
  const parts = new URLSearchParams(location.hash.slice(1));
  const token = parts.get("token");
  if (token === null) return;
  sessionStorage.setItem(TOKEN, token);
  parts.delete("token");
  history.replaceState(null, "", `#${parts}`);
}

export function setToken(token: string): void {
  sessionStorage.setItem(TOKEN, token.trim());
}

function ask(path: string, stop?: AbortSignal): Promise<Response> {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(TOKEN) ?? ""}` };
  return fetch(path, { headers, cache: "no-store", ...(stop && { signal: stop }) });
}

async function json<T>(path: string): Promise<T> {
  const answer = await ask(path);
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return (await answer.json()) as T;
}

/** Returns the overview after a change. Rows that did not change stay the same objects. */
function changed(before: Overview | undefined, { rows, order, ...rest }: Change): Overview {
  const known = new Map(before?.workers.map((worker) => [worker.id, worker]));
  for (const row of rows) known.set(row.id, row);
  const ids = order ?? before?.workers.map(({ id }) => id) ?? [];
  const workers = ids.flatMap((id) => known.get(id) ?? []);
  return { ...(before ?? ({} as Overview)), ...rest, workers };
}

/** Calls `take` with the data of each event of a stream, until it ends. */
async function events(answer: Response, take: (data: string) => void): Promise<void> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let pending: string[] = [];
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    pending.push(part.value);
    if (!part.value.includes("\n\n")) continue;
    const found = pending.join("").split("\n\n");
    pending = [found.pop()!];
    for (const event of found) if (event.startsWith("data: ")) take(event.slice(6));
  }
}

export function fromServer(): Source {
  const marks = new Map<string, { worker: Worker; marks: Marks }>();
  return {
    follow(show, say) {
      const stop = new AbortController();
      const follow = async () => {
        let pause = PAUSE_MIN;
        while (!stop.signal.aborted) {
          let overview: Overview | undefined;
          try {
            const answer = await ask("events", stop.signal);
            if (answer.status === 401) return say("refused");
            if (!answer.ok) throw new Error((await answer.text()).trim());
            await events(answer, (data) => {
              overview = changed(overview, JSON.parse(data) as Change);
              show(overview);
              say("live");
              pause = PAUSE_MIN;
            });
          } catch {
            // The server ended, or the network did; both may come back.
          }
          if (stop.signal.aborted) return;
          say("lost");
          await new Promise((done) => setTimeout(done, pause));
          pause = Math.min(pause * 2, PAUSE_MAX);
        }
      };
      say("connecting" satisfies Connection);
      void follow();
      return () => stop.abort();
    },
    async marks(overview): Promise<AllMarks> {
      const missing = overview.workers.filter((worker) => marks.get(worker.id)?.worker !== worker);
      if (missing.length > 0) {
        // An address has a limited length.
        const some = missing.length <= 50 ? missing.map(({ id }) => `id=${encodeURIComponent(id)}`).join("&") : "";
        const found = await json<Record<string, Marks>>(`marks?${some}`);
        for (const worker of missing) if (found[worker.id]) marks.set(worker.id, { worker, marks: found[worker.id]! });
      }
      return new Map([...marks].map(([id, own]) => [id, own.marks]));
    },
    panel: (overview, at) => json<Panel>(`panel?id=${encodeURIComponent(overview.workers[at]!.id)}`),
  };
}
