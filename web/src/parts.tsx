// The parts that pages share.
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Refused } from "./api";
import type { Obj } from "./store";

/** The tone of a state, for its dot. */
export function tone(o: Obj): string {
  if (o.h === "unhealthy") return "bad";
  switch (o.st) {
    case "running":
    case "ready":
      return "ok";
    case "creating":
    case "restarting":
    case "paused":
      return "warn";
    case "asleep":
      return "calm";
    case "exited":
      return o.x || o.oom ? "bad" : "off";
  }
  return "off";
}

export function stateText(o: Obj): string {
  if (o.t === "c" && o.st === "exited") return o.oom ? "out of memory" : o.x ? `exited ${o.x}` : "exited";
  if (o.st === "running" && o.h) return o.h === "healthy" ? "healthy" : o.h;
  return o.st;
}

export function State({ o }: { o: Obj }) {
  return (
    <span class={"state " + tone(o)}>
      <i class="dot" aria-hidden="true" />
      {stateText(o)}
    </span>
  );
}

/** A use beside its limit. */
export function Meter({ use, limit, label, calm }: { use: number | null | undefined; limit: number | null | undefined; label: string; calm?: boolean }) {
  const share = limit && use !== null && use !== undefined ? Math.min(1, use / limit) : 0;
  return (
    <span class="meter" role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(share * 100)}>
      <i class={share > 0.9 && !calm ? "hot" : ""} style={{ width: `${(share * 100).toFixed(1)}%` }} />
    </span>
  );
}

export function Panel({ title, note, children, wide }: { title: string; note?: ComponentChildren; children: ComponentChildren; wide?: boolean }) {
  return (
    <section class={"panel" + (wide ? " wide" : "")} aria-label={title}>
      <header>
        <h2>{title}</h2>
        {note !== undefined && <span class="note">{note}</span>}
      </header>
      {children}
    </section>
  );
}

export interface Column<T> {
  name: string;
  cell: (row: T) => ComponentChildren;
  num?: boolean;
  grow?: boolean;
  /** Not shown on a narrow screen. */
  minor?: boolean;
  sort?: (a: T, b: T) => number;
}

export function Table<T>({ rows, columns, rowKey, label, empty }: { rows: T[]; columns: Column<T>[]; rowKey: (r: T) => string; label: string; empty: string }) {
  const [by, setBy] = useState<{ i: number; down: boolean } | null>(null);
  if (!rows.length) return <p class="empty">{empty}</p>;
  const shown = by && columns[by.i].sort ? [...rows].sort((a, b) => columns[by.i].sort!(a, b) * (by.down ? -1 : 1)) : rows;
  const css = (c: Column<T>) => (c.num ? "num " : "") + (c.grow ? "grow " : "") + (c.minor ? "minor" : "");
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            {columns.map((c, i) => (
              <th key={c.name} class={css(c)} scope="col" aria-sort={by?.i === i ? (by.down ? "descending" : "ascending") : undefined}>
                {c.sort ? (
                  <button class="sort" onClick={() => setBy({ i, down: by?.i === i ? !by.down : !!c.num })}>
                    {c.name}
                    {by?.i === i ? (by.down ? " ↓" : " ↑") : ""}
                  </button>
                ) : (
                  c.name
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map((r) => (
            <tr key={rowKey(r)}>
              {columns.map((c) => (
                <td key={c.name} class={css(c)}>
                  {c.cell(r)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Calls f for its result at the beginning and when a dependency changes. */
export function useLoad<T>(f: (signal: AbortSignal) => Promise<T>, deps: unknown[]): { data?: T; error?: string; again: () => void } {
  const [state, set] = useState<{ data?: T; error?: string }>({});
  const [n, again] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    f(stop.signal).then(
      (data) => set({ data }),
      (e) => stop.signal.aborted || set((old) => ({ data: old.data, error: message(e) })),
    );
    return () => stop.abort();
  }, [...deps, n]);
  return { ...state, again: () => again((n) => n + 1) };
}

export function message(e: unknown): string {
  if (e instanceof Refused) return e.message;
  return e instanceof Error ? e.message : String(e);
}

export function Failure({ text }: { text?: string }) {
  return text ? (
    <p class="failure" role="alert">
      {text}
    </p>
  ) : null;
}

/** A list of rows of one height, of which only the visible ones exist. */
export function VirtualRows({
  count,
  height,
  row,
  selected,
  ...rest
}: { count: number; height: number; row: (i: number) => JSX.Element; selected: number } & JSX.HTMLAttributes<HTMLDivElement>) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, size: 800 });
  useLayoutEffect(() => {
    const el = box.current!;
    const look = () => setView({ top: el.scrollTop, size: el.clientHeight });
    look();
    el.addEventListener("scroll", look, { passive: true });
    const resized = new ResizeObserver(look);
    resized.observe(el);
    return () => {
      el.removeEventListener("scroll", look);
      resized.disconnect();
    };
  }, []);
  useEffect(() => {
    const el = box.current!;
    if (selected < 0) return;
    const y = selected * height;
    if (y < el.scrollTop) el.scrollTop = y;
    else if (y + height > el.scrollTop + el.clientHeight) el.scrollTop = y + height - el.clientHeight;
  }, [selected]);
  const over = 8;
  const first = Math.max(0, Math.floor(view.top / height) - over);
  const last = Math.min(count, Math.ceil((view.top + view.size) / height) + over);
  const rows = [];
  for (let i = first; i < last; i++) rows.push(row(i));
  return (
    <div ref={box} class="rows" tabIndex={0} {...rest}>
      <div role="presentation" style={{ height: `${count * height}px`, paddingTop: `${first * height}px` }}>
        {rows}
      </div>
    </div>
  );
}

/** A question that stops everything else. */
export function Dialog({ title, close, children }: { title: string; close: () => void; children: ComponentChildren }) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    box.current!.showModal();
  }, []);
  return (
    <dialog ref={box} aria-label={title} onClose={close} onClick={(e) => e.target === box.current && box.current!.close()}>
      <h2>{title}</h2>
      {children}
    </dialog>
  );
}

export function Tabs({ names, at, go }: { names: string[]; at: string; go: (name: string) => void }) {
  const move = (e: KeyboardEvent) => {
    const step = e.key === "ArrowRight" ? 1 : e.key === "ArrowLeft" ? -1 : 0;
    if (!step) return;
    const next = names[(names.indexOf(at) + step + names.length) % names.length];
    go(next);
    (e.currentTarget as HTMLElement).querySelector<HTMLElement>(`[data-tab="${next}"]`)?.focus();
  };
  return (
    <div class="tabs" role="tablist" onKeyDown={move}>
      {names.map((n) => (
        <button key={n} role="tab" data-tab={n} id={"tab-" + n} aria-selected={n === at} aria-controls="tabpanel" tabIndex={n === at ? 0 : -1} onClick={() => go(n)}>
          {n}
        </button>
      ))}
    </div>
  );
}

export function link(o: Obj): string {
  return "#/c/" + o.id;
}
