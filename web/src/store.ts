// The live data of the node, from one stream. Components use it by topics and are drawn at most once for each frame.
import { useEffect, useReducer } from "preact/hooks";
import { lines } from "./api";

/** A container or a sandbox. The names are those of the server's objects. */
export interface Obj {
  t: "c" | "s";
  id: string;
  o: string;
  n: string;
  g?: string;
  gk?: string;
  sb?: string;
  st: string;
  im?: string;
  ii?: string;
  cmd?: string[];
  cr?: number;
  sa?: number;
  en?: number;
  v?: string;
  x?: number;
  oom?: boolean;
  h?: string;
  r?: number;
  p?: string[];
  a?: string[];
  nw?: string[];
  vo?: string[];
  rt?: string;
  no?: string;
}

export interface Stats {
  cpu: number | null;
  mem: number | null;
  limit: number | null;
  pids: number | null;
  pidsLimit: number | null;
  read: number;
  write: number;
  rx: number;
  tx: number;
  root: number | null;
  peak: number | null;
}

export interface Event {
  seq: number;
  at: number;
  kind: string;
  o?: string;
  key?: string;
  sb?: string;
  id?: string;
  ps?: string;
  no?: string;
}

export interface Load {
  at: string;
  cpuPercent?: number;
  cpus: number;
  memoryBytes?: string;
  memoryTotalBytes?: string;
  swapBytes?: string;
  swapTotalBytes?: string;
  load?: number;
  pressure?: { resource: string; some?: number; full?: number }[];
  disks?: { paths: string[]; totalBytes: string; freeBytes?: string; inodes?: string; freeInodes?: string }[];
}

/** A pull under way. */
export interface Pull {
  owner: string;
  name: string;
  begun?: string;
  status?: string;
  layers?: { blob: string; status?: string; done?: string; total?: string }[];
}

type Pulling = { pulls?: Pull[] };

export type Topic = "objects" | "stats" | "load" | "events" | "pulls" | "agent";

type Message =
  | { k: "all"; set: Obj[] | null; history: Load[] | null; pulling: Pulling | null }
  | { k: "pulls"; p: Pulling }
  | { k: "change"; set: Obj[]; gone: string[] }
  | { k: "stats"; c: (number | string | null)[][] }
  | { k: "load"; l: Load }
  | { k: "event"; e: Event }
  | { k: "agent"; down: boolean };

/** The last rounds of one container, the newest last. */
export interface Past {
  cpu: (number | null)[];
  mem: (number | null)[];
}

export const maxPast = 90;

const maxLoads = 150;
const maxEvents = 500;

export const store = {
  objects: new Map<string, Obj>(),
  stats: new Map<string, Stats>(),
  past: new Map<string, Past>(),
  loads: [] as Load[],
  events: [] as Event[],
  pulls: [] as Pull[],
  /** The page has no connection, or its server has none to the agent. */
  down: false,
  ready: false,
  /** Grows with each change of objects. */
  version: 0,
};

const listeners = new Map<Topic, Set<() => void>>();
const changed = new Set<Topic>();
let frame = 0;

function touch(topic: Topic) {
  changed.add(topic);
  if (frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    const calls = new Set<() => void>();
    for (const t of changed) for (const f of listeners.get(t) ?? []) calls.add(f);
    changed.clear();
    for (const f of calls) f();
  });
}

/** Draws the component again when one of the topics changes. */
export function useStore(...topics: Topic[]) {
  const [, draw] = useReducer((n: number) => n + 1, 0);
  useEffect(() => {
    const f = () => draw(undefined);
    for (const t of topics) {
      if (!listeners.has(t)) listeners.set(t, new Set());
      listeners.get(t)!.add(f);
    }
    return () => topics.forEach((t) => listeners.get(t)!.delete(f));
  }, []);
}

export function statsOf(id: string): Stats | undefined {
  return store.stats.get(id.slice(0, 12));
}

export function pastOf(id: string): Past {
  return store.past.get(id.slice(0, 12)) ?? { cpu: [], mem: [] };
}

function setDown(down: boolean) {
  if (store.down !== down) {
    store.down = down;
    touch("agent");
  }
}

function take(m: Message) {
  switch (m.k) {
    case "all":
      store.objects = new Map((m.set ?? []).map((o) => [o.id, o]));
      store.loads = m.history ?? [];
      store.pulls = m.pulling?.pulls ?? [];
      store.ready = true;
      touch("pulls");
      store.version++;
      touch("objects");
      touch("load");
      touch("agent");
      break;
    case "change":
      for (const o of m.set) store.objects.set(o.id, o);
      for (const id of m.gone) store.objects.delete(id);
      store.version++;
      touch("objects");
      break;
    case "stats": {
      const now = new Map<string, Stats>();
      const past = new Map<string, Past>();
      for (const [id, cpu, mem, limit, pids, pidsLimit, read, write, rx, tx, root, peak] of m.c as any[]) {
        now.set(id, { cpu, mem, limit, pids, pidsLimit, read, write, rx, tx, root, peak });
        const p = store.past.get(id) ?? { cpu: [], mem: [] };
        if (p.cpu.push(cpu) > maxPast) p.cpu.shift();
        if (p.mem.push(mem) > maxPast) p.mem.shift();
        past.set(id, p);
      }
      store.stats = now;
      store.past = past;
      touch("stats");
      break;
    }
    case "load":
      store.loads = [...store.loads.slice(-maxLoads + 1), m.l];
      touch("load");
      break;
    case "pulls":
      store.pulls = m.p.pulls ?? [];
      touch("pulls");
      break;
    case "event":
      store.events = [...store.events.slice(-maxEvents + 1), m.e];
      touch("events");
      break;
    case "agent":
      setDown(m.down);
  }
}

export function addOlderEvents(list: Event[]) {
  const first = store.events[0]?.seq ?? Infinity;
  store.events = [...list.filter((e) => e.seq < first), ...store.events].slice(-maxEvents);
  touch("events");
}

/** Follows the stream until the session ends. A page that nobody sees does not. */
export async function follow(session: AbortSignal) {
  while (!session.aborted) {
    if (document.hidden) {
      await new Promise<void>((go) => document.addEventListener("visibilitychange", () => go(), { once: true }));
      continue;
    }
    const stop = new AbortController();
    const hide = () => document.hidden && stop.abort();
    document.addEventListener("visibilitychange", hide);
    session.addEventListener("abort", () => stop.abort(), { once: true });
    try {
      for await (const batch of lines<Message>("feed", stop.signal)) {
        setDown(false);
        batch.forEach(take);
      }
    } catch {
      // The loop begins again.
    }
    document.removeEventListener("visibilitychange", hide);
    if (stop.signal.aborted) continue;
    setDown(true);
    await new Promise((go) => setTimeout(go, 1000));
  }
}
