// The output of a container: tail, search and follow.
import { useEffect, useRef, useState } from "preact/hooks";
import { lines } from "./api";
import { Failure, message } from "./parts";
import { clock, noEscapes, plural } from "./text";

interface Chunk {
  t: number;
  s: string;
  d: string;
  p?: boolean;
  error?: string;
}

interface Line {
  n: number;
  t: number;
  s: string;
  text: string;
  open: boolean;
}

const maxLines = 20000;
const height = 18;

/** Joins chunks to lines: the parts of a long line are those of its stream. */
function add(list: Line[], chunks: Chunk[]): Line[] {
  const out = list.slice();
  const open = new Map<string, number>();
  for (let i = out.length - 1; i >= 0 && i > out.length - 4; i--) if (out[i].open && !open.has(out[i].s)) open.set(out[i].s, i);
  for (const c of chunks) {
    const text = noEscapes(c.d);
    const at = open.get(c.s);
    if (at !== undefined) {
      if (out[at].text.length < 100000) out[at] = { ...out[at], text: out[at].text + text, open: !!c.p };
      if (!c.p) open.delete(c.s);
      continue;
    }
    out.push({ n: (out[out.length - 1]?.n ?? 0) + 1, t: c.t, s: c.s, text, open: !!c.p });
    if (c.p) open.set(c.s, out.length - 1);
  }
  return out.length > maxLines ? out.slice(out.length - maxLines) : out;
}

function Marked({ text, find }: { text: string; find: string }) {
  if (!find) return <>{text}</>;
  const low = text.toLowerCase();
  const parts = [];
  let from = 0;
  for (let i = low.indexOf(find); i >= 0 && parts.length < 100; i = low.indexOf(find, from)) {
    parts.push(text.slice(from, i), <mark>{text.slice(i, i + find.length)}</mark>);
    from = i + find.length;
  }
  return (
    <>
      {parts}
      {text.slice(from)}
    </>
  );
}

export function Logs({ id }: { id: string }) {
  const [list, setList] = useState<Line[]>([]);
  const [find, setFind] = useState("");
  const [only, setOnly] = useState(false);
  const [follow, setFollow] = useState(true);
  const [times, setTimes] = useState(true);
  const [wrap, setWrap] = useState(false);
  const [hit, setHit] = useState(-1);
  const [error, setError] = useState("");
  const [view, setView] = useState({ top: 0, size: 600 });
  const box = useRef<HTMLDivElement>(null);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const stop = new AbortController();
    let waiting: Chunk[] = [];
    let frame = 0;
    const read = async () => {
      for await (const batch of lines<Chunk>(`logs?id=${encodeURIComponent(id)}&tail=5000&follow=1`, stop.signal)) {
        const bad = batch.find((c) => c.error);
        if (bad) setError(bad.error!);
        waiting = waiting.concat(batch.filter((c) => !c.error));
        frame ||= requestAnimationFrame(() => {
          frame = 0;
          const now = waiting;
          waiting = [];
          setList((old) => add(old, now));
        });
      }
    };
    read().catch((e) => stop.signal.aborted || setError(message(e)));
    return () => {
      stop.abort();
      cancelAnimationFrame(frame);
    };
  }, [id]);
  const word = find.toLowerCase();
  const matches = word ? list.filter((l) => l.text.toLowerCase().includes(word)) : [];
  const shown = only && word ? matches : list;
  useEffect(() => {
    const el = box.current!;
    if (follow) el.scrollTop = el.scrollHeight;
    setView({ top: el.scrollTop, size: el.clientHeight });
  }, [list, follow, only, word, wrap]);
  const go = (step: number) => {
    if (!matches.length) return;
    const next = (hit + step + matches.length) % matches.length;
    setHit(next);
    setFollow(false);
    const i = only ? next : shown.indexOf(matches[next]);
    box.current!.scrollTop = Math.max(0, i * height - box.current!.clientHeight / 2);
  };
  useEffect(() => {
    const keys = (e: KeyboardEvent) => {
      if (e.ctrlKey || e.metaKey || e.target instanceof HTMLInputElement || document.querySelector("dialog[open]")) return;
      if (e.key === "/") input.current!.focus();
      else if (e.key === "n") go(1);
      else if (e.key === "N") go(-1);
      else if (e.key === "f") setFollow(!follow);
      else return;
      e.preventDefault();
    };
    document.addEventListener("keydown", keys);
    return () => document.removeEventListener("keydown", keys);
  });
  const first = wrap ? 0 : Math.max(0, Math.floor(view.top / height) - 20);
  const last = wrap ? Math.min(shown.length, 2000) : Math.min(shown.length, Math.ceil((view.top + view.size) / height) + 20);
  const rows = wrap ? shown.slice(-2000) : shown.slice(first, last);
  return (
    <div class="logs">
      <div class="tools">
        <input
          ref={input}
          type="search"
          placeholder="Search  /"
          aria-label="Search in the log"
          value={find}
          spellcheck={false}
          onInput={(e) => {
            setFind(e.currentTarget.value);
            setHit(-1);
          }}
          onKeyDown={(e) => {
            if (e.key === "Enter") go(e.shiftKey ? -1 : 1);
            if (e.key === "Escape") e.currentTarget.blur();
          }}
        />
        {word && (
          <>
            <span class="note" role="status">
              {hit >= 0 ? `${hit + 1} of ` : ""}
              {plural(matches.length, "match", "matches")}
            </span>
            <button onClick={() => go(-1)} aria-label="Previous match">
              ↑
            </button>
            <button onClick={() => go(1)} aria-label="Next match">
              ↓
            </button>
            <label class="check">
              <input type="checkbox" checked={only} onChange={(e) => setOnly(e.currentTarget.checked)} /> only matches
            </label>
          </>
        )}
        <span class="gap" />
        <label class="check">
          <input type="checkbox" checked={times} onChange={(e) => setTimes(e.currentTarget.checked)} /> times
        </label>
        <label class="check">
          <input type="checkbox" checked={wrap} onChange={(e) => setWrap(e.currentTarget.checked)} /> wrap
        </label>
        <label class="check">
          <input type="checkbox" checked={follow} onChange={(e) => setFollow(e.currentTarget.checked)} /> follow
        </label>
      </div>
      <Failure text={error} />
      <div
        ref={box}
        class={"log" + (wrap ? " wrap" : "")}
        role="log"
        aria-label="Output"
        aria-live="off"
        tabIndex={0}
        onScroll={(e) => {
          const el = e.currentTarget;
          setView({ top: el.scrollTop, size: el.clientHeight });
          const end = el.scrollHeight - el.scrollTop - el.clientHeight < height;
          if (follow !== end && (!end || !word)) setFollow(end);
        }}
      >
        <div style={wrap ? {} : { height: `${shown.length * height}px`, paddingTop: `${first * height}px` }}>
          {rows.map((l) => (
            <div key={l.n} class={"ll " + l.s + (hit >= 0 && matches[hit]?.n === l.n ? " hit" : "")}>
              {times && <time>{clock(l.t)}</time>}
              <span>
                <Marked text={l.text} find={word} />
              </span>
            </div>
          ))}
        </div>
      </div>
      {!list.length && !error && <p class="empty">No output yet.</p>}
    </div>
  );
}
