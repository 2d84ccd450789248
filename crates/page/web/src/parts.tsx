// Small parts that several views share.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Worker } from "./data";
import { count } from "./format";

/** Signs of outcomes: a shape and a word, so that no color is needed. */
export const SIGNS: Record<string, string> = {
  ok: "✓", failed: "✗", suspect: "◆", unknown: "○", not_run: "–", "not run": "–", running: "▶", waiting: "?",
};

/** Returns the class that colors a worker. */
export function tone(worker: Worker): string {
  switch (worker.section) {
    case "at_work": return "running";
    case "needs_you": return "waiting";
    case "failed": return "failed";
    case "contradicted": case "child_failed": return "suspect";
    default: return worker.outcome ?? "unknown";
  }
}

export function Badge({ worker }: { worker: Worker }) {
  const kind = tone(worker);
  return <span class={`badge ${kind}`}><span aria-hidden="true">{SIGNS[kind] ?? "○"}</span> {worker.end}</span>;
}

/** A command or a path that gives the same, with a button that copies it. */
export function Origin({ command, path }: { command?: string; path?: string }) {
  return (
    <p class="origin">
      {command && <Copied text={command} label="command" />}
      {path && <Copied text={path} label="path in the mount" />}
    </p>
  );
}

function Copied({ text, label }: { text: string; label: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = () => {
    // Not every browser lets a file on disk write to the clipboard. The text can be selected.
    navigator.clipboard?.writeText(text).then(() => setCopied(true), () => {});
  };
  return (
    <span class="copied">
      <code title={label}>{text}</code>
      <button type="button" onClick={copy} aria-label={`Copy the ${label}`}>{isCopied ? "copied" : "copy"}</button>
    </span>
  );
}

/** A list of which the first items are shown until the reader asks for all. */
export function Limited({ items, max, noun }: { items: ComponentChildren[]; max: number; noun: string }) {
  const [isOpen, setOpen] = useState(false);
  const hidden = items.length - max;
  return (
    <>
      <ul class="plain">{isOpen || hidden <= 0 ? items : items.slice(0, max)}</ul>
      {hidden > 0 && (
        <button type="button" class="more" onClick={() => setOpen(!isOpen)}>
          {isOpen ? "show fewer" : `show ${count(hidden, `more ${noun}`)}`}
        </button>
      )}
    </>
  );
}

/** The part of a long list that is in sight: rows of one height, with the space before and after. */
export function useWindow(rows: number, height: number, selected: number) {
  const box = useRef<HTMLDivElement>(null);
  const [range, setRange] = useState<[number, number]>([0, 60]);
  const [isPrinting, setPrinting] = useState(false);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const update = () => {
      const first = Math.max(0, Math.floor(element.scrollTop / height) - 10);
      const last = Math.ceil((element.scrollTop + element.clientHeight) / height) + 10;
      setRange((before) => (before[0] === first && before[1] === last ? before : [first, last]));
    };
    update();
    element.addEventListener("scroll", update, { passive: true });
    const resized = new ResizeObserver(update);
    resized.observe(element);
    const print = matchMedia("print");
    const printed = () => setPrinting(print.matches);
    print.addEventListener("change", printed);
    return () => {
      element.removeEventListener("scroll", update);
      resized.disconnect();
      print.removeEventListener("change", printed);
    };
  }, [height, rows]);
  useEffect(() => {
    const element = box.current;
    if (!element || selected < 0) return;
    const [top, bottom] = [selected * height, (selected + 1) * height];
    if (top < element.scrollTop) element.scrollTop = top;
    else if (bottom > element.scrollTop + element.clientHeight - height) element.scrollTop = bottom - element.clientHeight + height;
  }, [selected, height]);
  const [first, last] = isPrinting ? [0, Math.min(rows, PRINTED_MAX)] : [Math.min(range[0], rows), Math.min(range[1], rows)];
  return { box, first, last, isPrinting };
}

/** Maximum number of rows on paper. */
export const PRINTED_MAX = 1000;

/** Loads something, and again for each version of it; meanwhile the version before is there. */
export function useLoaded<T>(load: () => Promise<T>, name: string, version: unknown): T | undefined | Error {
  const [found, setFound] = useState<{ name: string; value: T | Error }>();
  useEffect(() => {
    let isCurrent = true;
    load().then(
      (value) => isCurrent && setFound({ name, value }),
      (error) => isCurrent && setFound({ name, value: error instanceof Error ? error : new Error(String(error)) }),
    );
    return () => { isCurrent = false; };
  }, [name, version]);
  return found?.name === name ? found.value : undefined;
}
