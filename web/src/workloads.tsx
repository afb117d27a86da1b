// All containers of all owners in one tree.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Meter, State, VirtualRows } from "./parts";
import { statsOf, store, useStore, type Obj } from "./store";
import { ago, bytes, percent, plural, short } from "./text";

interface Row {
  key: string;
  level: number;
  kind: "owner" | "group" | "container";
  name: string;
  sub?: string;
  o?: Obj;
  count?: number;
  running?: number;
}

const rowHeight = 30;

function kindOf(o: Obj): string {
  return o.gk || (o.o === "cri" || o.o === "cri1alpha" ? "pod" : o.o === "mesos" || o.o === "swarm" || o.o === "nomad" ? "task" : "");
}

/** The rows of the tree. A sandbox without a group's name is a group if it has other than one container. */
export function treeRows(objects: Iterable<Obj>, filter: string, owner: string, ended: boolean, closed: Set<string>): Row[] {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const sandboxes = new Map<string, Obj>();
  const perSandbox = new Map<string, number>();
  const containers: Obj[] = [];
  for (const o of objects) {
    if (o.t === "s") {
      sandboxes.set(o.id, o);
      continue;
    }
    perSandbox.set(o.sb ?? "", (perSandbox.get(o.sb ?? "") ?? 0) + 1);
    containers.push(o);
  }
  const owners = new Map<string, Map<string, { name: string; kind: string; list: Obj[] }>>();
  const group = (o: Obj, sb: Obj | undefined) => {
    if (o.g) return { key: o.g, name: o.g, kind: kindOf(o) };
    if (sb && (perSandbox.get(sb.id) ?? 0) !== 1) return { key: sb.id, name: sb.n, kind: kindOf(sb) || "sandbox" };
    return { key: "", name: "", kind: "" };
  };
  const put = (o: Obj, sb: Obj | undefined, leaf: boolean) => {
    if (owner && o.o !== owner) return;
    const g = group(o, sb);
    const text = `${o.n} ${o.g ?? ""} ${o.im ?? ""} ${o.id} ${o.o} ${o.st} ${o.v ?? ""} ${(o.p ?? []).join(" ")} ${(o.a ?? []).join(" ")}`.toLowerCase();
    if (!words.every((w) => text.includes(w))) return;
    if (leaf && !ended && o.st === "exited") return;
    if (!owners.has(o.o)) owners.set(o.o, new Map());
    const groups = owners.get(o.o)!;
    if (!groups.has(g.key)) groups.set(g.key, { name: g.name, kind: g.kind, list: [] });
    if (leaf) groups.get(g.key)!.list.push(o);
  };
  for (const o of containers) put(o, sandboxes.get(o.sb ?? ""), true);
  for (const sb of sandboxes.values()) {
    if (!perSandbox.get(sb.id) && (ended || sb.st !== "stopped")) put(sb, sb, false);
  }
  const rows: Row[] = [];
  const names = (a: string, b: string) => a.localeCompare(b, undefined, { numeric: true });
  for (const [name, groups] of [...owners].sort((a, b) => names(a[0], b[0]))) {
    const all = [...groups.values()].flatMap((g) => g.list);
    const key = "o:" + name;
    rows.push({ key, level: 1, kind: "owner", name, count: all.length, running: all.filter((o) => o.st === "running").length });
    if (closed.has(key)) continue;
    for (const [gkey, g] of [...groups].sort((a, b) => (a[0] === "" ? 1 : b[0] === "" ? -1 : names(a[1].name, b[1].name)))) {
      let level = 2;
      if (gkey !== "") {
        const k = key + "/" + gkey;
        rows.push({ key: k, level, kind: "group", name: g.name, sub: g.kind, count: g.list.length, running: g.list.filter((o) => o.st === "running").length });
        if (closed.has(k)) continue;
        level = 3;
      }
      for (const o of g.list.sort((a, b) => names(a.n, b.n) || (b.cr ?? 0) - (a.cr ?? 0))) rows.push({ key: o.id, level, kind: "container", name: o.n, o });
    }
  }
  return rows;
}

function Cells({ o }: { o: Obj }) {
  const s = statsOf(o.id);
  return (
    <>
      <span role="gridcell">
        <State o={o} />
      </span>
      <span role="gridcell" class="num">
        {percent(s?.cpu)}
      </span>
      <span role="gridcell" class="num use">
        {s ? bytes(s.mem) : "–"}
        {s?.limit ? <small> / {bytes(s.limit)}</small> : null}
        {s?.limit ? <Meter label="Memory of its limit" use={s.mem} limit={s.limit} /> : null}
      </span>
      <span role="gridcell" class="num minor">
        {s?.pids ?? "–"}
        {s?.pidsLimit ? <small> / {s.pidsLimit}</small> : null}
      </span>
      <span role="gridcell" class="num minor">
        {o.r || ""}
      </span>
      <span role="gridcell" class="minor mono" title={(o.p ?? []).join(", ")}>
        {(o.p ?? []).join(", ")}
      </span>
      <span role="gridcell" class="minor dim" title={o.im}>
        {(o.im ?? "").replace(/^docker\.io\/(library\/)?/, "").replace(/^sha256:(.{12}).*/, "$1")}
      </span>
      <span role="gridcell" class="num dim">
        {ago(o.st === "exited" ? o.en : o.sa || o.cr)}
      </span>
    </>
  );
}

export function WorkloadsPage({ params }: { params: URLSearchParams }) {
  useStore("objects", "stats");
  const [filter, setFilter] = useState("");
  const [owner, setOwner] = useState(params.get("owner") ?? "");
  const [ended, setEnded] = useState(true);
  const [closed, setClosed] = useState(new Set<string>());
  const [at, setAt] = useState("");
  const find = useRef<HTMLInputElement>(null);
  const rows = useMemo(() => treeRows(store.objects.values(), filter, owner, ended, closed), [store.version, filter, owner, ended, closed]);
  const owners = useMemo(() => {
    const by = new Map<string, number>();
    for (const o of store.objects.values()) if (o.t === "c") by.set(o.o, (by.get(o.o) ?? 0) + 1);
    return [...by].sort();
  }, [store.version]);
  const index = rows.findIndex((r) => r.key === at);
  // Keys may come faster than the page is drawn.
  const cur = useRef({ at, rows, closed });
  cur.current.rows = rows;
  const select = (key: string) => {
    cur.current.at = key;
    setAt(key);
  };
  const toggle = (key: string) => {
    const next = new Set(cur.current.closed);
    if (!next.delete(key)) next.add(key);
    cur.current.closed = next;
    setClosed(next);
  };
  const open = (r: Row) => {
    if (r.o) location.hash = "#/c/" + r.o.id;
    else toggle(r.key);
  };
  useEffect(() => {
    const keys = (e: KeyboardEvent) => {
      const typing = e.target instanceof HTMLInputElement;
      const { at, rows, closed } = cur.current;
      const index = rows.findIndex((r) => r.key === at);
      if (e.ctrlKey || e.metaKey || e.altKey || document.querySelector("dialog[open]")) return;
      if (e.key === "/" && !typing) {
        find.current!.focus();
        find.current!.select();
      } else if (e.key === "Escape" && typing) {
        setFilter("");
        (e.target as HTMLElement).blur();
      } else if ((!typing && (e.key === "j" || e.key === "k")) || e.key === "ArrowDown" || e.key === "ArrowUp") {
        const next = Math.max(0, Math.min(rows.length - 1, index + (e.key === "j" || e.key === "ArrowDown" ? 1 : -1)));
        if (rows[next]) select(rows[next].key);
      } else if (e.key === "Enter" && index >= 0 && (typing || !(e.target instanceof HTMLButtonElement || e.target instanceof HTMLAnchorElement))) {
        open(rows[index]);
      } else if ((e.key === "h" || e.key === "ArrowLeft" || e.key === "l" || e.key === "ArrowRight") && !typing && index >= 0) {
        const wantClosed = e.key === "h" || e.key === "ArrowLeft";
        if (!rows[index].o && closed.has(rows[index].key) !== wantClosed) toggle(rows[index].key);
      } else return;
      e.preventDefault();
    };
    document.addEventListener("keydown", keys);
    return () => document.removeEventListener("keydown", keys);
  });
  const shown = rows.filter((r) => r.o).length;
  return (
    <div class="fill">
      <header class="page tools">
        <h1>Workloads</h1>
        <input ref={find} type="search" placeholder="Filter  /" aria-label="Filter" value={filter} onInput={(e) => setFilter(e.currentTarget.value)} spellcheck={false} />
        <div class="chips" role="group" aria-label="Owner">
          <button aria-pressed={owner === ""} onClick={() => setOwner("")}>
            all
          </button>
          {owners.map(([name, n]) => (
            <button key={name} aria-pressed={owner === name} onClick={() => setOwner(owner === name ? "" : name)}>
              {name} <small>{n}</small>
            </button>
          ))}
        </div>
        <label class="check">
          <input type="checkbox" checked={ended} onChange={(e) => setEnded(e.currentTarget.checked)} /> ended
        </label>
        <p class="note" role="status">
          {store.ready ? plural(shown, "container") : "…"}
        </p>
      </header>
      <div class="tree" role="treegrid" aria-label="Workloads" aria-rowcount={rows.length + 1} aria-readonly="true">
        <div role="rowgroup" class="headgroup">
          <div class="trow head" role="row" aria-rowindex={1}>
            {["Name", "State", "CPU", "Memory", "Pids", "Restarts", "Ports", "Image", "Age"].map((n, i) => (
              <span key={n} role="columnheader" class={([2, 3, 4, 5, 8].includes(i) ? "num " : "") + ([4, 5, 6, 7].includes(i) ? "minor" : "")}>
                {n}
              </span>
            ))}
          </div>
        </div>
        <VirtualRows
          role="rowgroup"
          aria-label="Rows"
          count={rows.length}
          height={rowHeight}
          selected={index}
          row={(i) => {
            const r = rows[i];
            return (
              <div
                key={r.key}
                class={`trow l${r.level} ${r.kind}` + (r.key === at ? " at" : "")}
                role="row"
                aria-level={r.level}
                aria-rowindex={i + 2}
                aria-expanded={r.o ? undefined : !closed.has(r.key)}
                aria-selected={r.key === at}
                onClick={() => {
                  select(r.key);
                  if (!r.o) toggle(r.key);
                }}
                onDblClick={() => r.o && open(r)}
              >
                <span role="gridcell" class="name">
                  {r.o ? (
                    <a href={"#/c/" + r.o.id} title={`${r.name}\n${short(r.o.id)}`} tabIndex={-1}>
                      {r.name}
                    </a>
                  ) : (
                    <>
                      <i class="fold" aria-hidden="true">
                        {closed.has(r.key) ? "▸" : "▾"}
                      </i>
                      {r.sub && <span class="sub">{r.sub}</span>}
                      <b>{r.name}</b>
                      <small>
                        {r.running} of {r.count}
                      </small>
                    </>
                  )}
                </span>
                {r.o && <Cells o={r.o} />}
              </div>
            );
          }}
        />
        {store.ready && !rows.length && <p class="empty">{filter || owner ? "Nothing matches." : "This node has no containers."}</p>}
      </div>
    </div>
  );
}
