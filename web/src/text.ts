// Numbers and times as people read them.

export function bytes(n: number | string | null | undefined): string {
  if (n === null || n === undefined) return "–";
  let v = Number(n);
  if (v < 1000) return v + " B";
  for (const unit of ["kB", "MB", "GB", "TB", "PB"]) {
    v /= 1000;
    if (v < 999.5) return (v < 10 ? v.toFixed(2) : v < 100 ? v.toFixed(1) : v.toFixed(0)) + " " + unit;
  }
  return v.toFixed(0) + " EB";
}

export function percent(n: number | null | undefined): string {
  if (n === null || n === undefined) return "–";
  return (n < 9.95 ? n.toFixed(1) : n.toFixed(0)) + " %";
}

export function span(ms: number): string {
  const s = ms / 1000;
  if (s < 60) return Math.max(0, Math.floor(s)) + " s";
  if (s < 3600) return Math.floor(s / 60) + " min";
  if (s < 48 * 3600) return Math.floor(s / 3600) + " h";
  return Math.floor(s / 86400) + " d";
}

export function ago(ms: number | undefined): string {
  return ms ? span(Date.now() - ms) : "–";
}

export function duration(ms: number): string {
  if (ms >= 10000) return (ms / 1000).toFixed(1) + " s";
  if (ms >= 1000) return (ms / 1000).toFixed(2) + " s";
  if (ms >= 1) return ms.toFixed(ms < 10 ? 2 : 1) + " ms";
  return (ms * 1000).toFixed(0) + " µs";
}

/** The seconds of a duration of the API, such as 0.012s. */
export function seconds(text: string | undefined): number {
  return text ? parseFloat(text) : 0;
}

const clockForm = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const dayForm = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "2-digit", day: "2-digit" });

export function clock(t: number | string): string {
  return clockForm.format(new Date(t));
}

export function stamp(t: number | string | undefined): string {
  if (!t) return "–";
  const d = new Date(t);
  return dayForm.format(d) + " " + clockForm.format(d);
}

export function short(id: string): string {
  return id.replace(/^sha256:/, "").slice(0, 12);
}

/** Removes the escape sequences of terminals. */
export function noEscapes(s: string): string {
  return s.replace(/\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])/g, "").replace(/[\x00-\x08\x0b-\x1f\x7f]/g, "");
}

export function plural(n: number, one: string, many = one + "s"): string {
  return n + " " + (n === 1 ? one : many);
}
