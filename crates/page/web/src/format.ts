// Numbers and times as text. Times are in UTC, as in the generated files.

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

export function count(n: number, noun: string): string {
  return `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;
}

/** Two or three digits and a unit: 950, 1.2k, 45k, 3.4M. */
export function rounded(n: number): string {
  if (n < 1000) return String(Math.round(n));
  let value = n;
  for (const unit of ["k", "M", "G", "T"]) {
    value /= 1000;
    if (value < 9.95) return value.toFixed(1).replace(/\.0$/, "") + unit;
    if (value < 999.5) return value.toFixed(0) + unit;
  }
  return String(n);
}

export function bytes(n: number): string {
  return n < 1000 ? `${n} B` : `${rounded(n)}B`;
}

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < MINUTE) return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)}s`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)}m ${Math.floor((ms % MINUTE) / 1000)}s`;
  if (ms < DAY) return `${Math.floor(ms / HOUR)}h ${Math.floor((ms % HOUR) / MINUTE)}m`;
  return `${Math.floor(ms / DAY)}d ${Math.floor((ms % DAY) / HOUR)}h`;
}

/** A duration in one unit: 3m, 5h, 2d. */
export function age(ms: number): string {
  if (ms < MINUTE) return `${Math.max(0, Math.floor(ms / 1000))}s`;
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)}m`;
  if (ms < 2 * DAY) return `${Math.floor(ms / HOUR)}h`;
  return `${Math.floor(ms / DAY)}d`;
}

/** A time as 2026-02-15 14:03, or with seconds. */
export function time(at: number, seconds = false): string {
  const date = new Date(at);
  if (Number.isNaN(date.getTime())) return "";
  return date.toISOString().replace("T", " ").slice(0, seconds ? 19 : 16);
}

export function usd(n: number): string {
  return `$${n.toFixed(n < 1 ? 3 : 2)}`;
}

export function parsed(time: string | undefined): number | undefined {
  const at = time === undefined ? NaN : Date.parse(time);
  return Number.isNaN(at) ? undefined : at;
}
