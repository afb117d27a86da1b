// The pages of images and volumes: who holds each byte.
import { useMemo, useState } from "preact/hooks";
import { get } from "./api";
import { Failure, message, Meter, Panel, Table, useLoad } from "./parts";
import { store, useStore, type Obj } from "./store";
import { ago, bytes, plural, short } from "./text";

interface Image {
  id: string;
  owner: string;
  names?: string[];
  digests?: string[];
  sizeBytes?: string;
  unpackedBytes?: string;
  pulled?: string;
  pinned?: boolean;
  platform?: string;
  artifact?: string;
}

interface Held {
  id: string;
  names: { owner: string; name: string }[];
  users: Obj[];
  pinned: boolean;
  size: number;
  pulled?: string;
  artifact?: string;
}

function users(field: (o: Obj) => boolean): Obj[] {
  const list = [];
  for (const o of store.objects.values()) if (o.t === "c" && field(o)) list.push(o);
  return list;
}

function Users({ list }: { list: Obj[] }) {
  const [all, setAll] = useState(false);
  if (!list.length) return <span class="note">none</span>;
  const shown = all ? list : list.slice(0, 3);
  return (
    <span class="users">
      {shown.map((o) => (
        <a key={o.id} href={"#/c/" + o.id}>
          {o.n}
        </a>
      ))}
      {list.length > 3 && (
        <button class="more" onClick={() => setAll(!all)}>
          {all ? "fewer" : `and ${list.length - 3} more`}
        </button>
      )}
    </span>
  );
}

/** One bar of all bytes by their holders. */
function Share({ parts }: { parts: { name: string; bytes: number; css: string }[] }) {
  const total = parts.reduce((n, p) => n + p.bytes, 0);
  return (
    <div class="share">
      <div class="sharebar" role="img" aria-label={parts.map((p) => `${p.name} ${bytes(p.bytes)}`).join(", ")}>
        {parts.map((p) => (
          <i key={p.name} class={p.css} style={{ width: `${total ? (100 * p.bytes) / total : 0}%` }} />
        ))}
      </div>
      <ul>
        {parts.map((p) => (
          <li key={p.name}>
            <i class={p.css} aria-hidden="true" />
            {p.name} <b>{bytes(p.bytes)}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Pulls() {
  useStore("pulls");
  if (!store.pulls.length) return null;
  return (
    <Panel title="Pulls under way" wide>
      {store.pulls.map((p, i) => {
        const layers = p.layers ?? [];
        const sum = (f: "done" | "total") => layers.reduce((n, l) => n + Number(l[f] ?? 0), 0);
        return (
          <div key={i} class="pull">
            <b>{p.name}</b> <span class="owner">{p.owner}</span> <span class="note">{`${layers.length ? `${bytes(sum("done"))} of ${bytes(sum("total"))}` : (p.status ?? "")}${p.begun ? ` · since ${ago(Date.parse(p.begun))}` : ""}`}</span>
            <ul class="parts">
              {layers.map((l) => (
                <li key={l.blob} class="part">
                  <code>{short(l.blob)}</code>
                  <Meter calm use={l.status === "done" || l.status === "exists" ? 1 : Number(l.done ?? 0)} limit={l.status === "done" || l.status === "exists" ? 1 : Number(l.total ?? 0)} label={"progress of " + short(l.blob)} />
                  <span>{bytes(l.total ?? 0)}</span>
                  <span class="note">{l.status}</span>
                </li>
              ))}
            </ul>
          </div>
        );
      })}
    </Panel>
  );
}

interface Part {
  name: string;
  note?: string;
  bytes?: string;
  frees?: string;
  parts?: Part[];
}

/** A part of the disk with those below it, which exist only while it is open. */
function PartRow({ part, whole, opened }: { part: Part; whole: number; opened?: boolean }) {
  const [open, setOpen] = useState(!!opened);
  const row = (
    <span class="part">
      <span>
        <span title={part.name}>{part.name.length > 100 ? part.name.slice(0, 100) + "…" : part.name}</span> {part.note && <span class="note">{part.note}</span>}
      </span>
      <Meter calm use={Number(part.bytes ?? 0)} limit={whole} label={"share of " + part.name} />
      <b>{bytes(part.bytes ?? 0)}</b>
      <span class="note">{part.frees && `prune frees ${bytes(part.frees)}`}</span>
    </span>
  );
  return (
    <li>
      {part.parts ? (
        <details open={open} onToggle={(e) => setOpen(e.currentTarget.open)}>
          <summary>{row}</summary>
          {open && (
            <ul>
              {part.parts.map((p, i) => (
                <PartRow key={i} part={p} whole={whole} />
              ))}
            </ul>
          )}
        </details>
      ) : (
        row
      )}
    </li>
  );
}

/** The tree of "longshore why disk". The agent reads its whole directory for it, so it waits for a click. */
function Disk() {
  const [state, set] = useState<{ parts?: Part[]; error?: string; busy?: boolean }>({});
  const measure = () => {
    set((old) => ({ ...old, busy: true }));
    get<{ tree: { parts?: Part[] } }>("disk/parts").then(
      (d) => set({ parts: d.tree.parts ?? [] }),
      (e) => set({ error: message(e) }),
    );
  };
  const whole = Number(state.parts?.[0]?.bytes ?? 0);
  return (
    <Panel title="What occupies the disk" note="what prune frees is that of longshore system prune --all" wide>
      <Failure text={state.error} />
      {state.parts && (
        <ul class="parts">
          {state.parts.map((p, i) => (
            <PartRow key={i} part={p} whole={whole} opened={i === 0} />
          ))}
        </ul>
      )}
      <button onClick={measure} disabled={state.busy}>
        {state.busy ? "measuring…" : state.parts ? "measure again" : "measure"}
      </button>
    </Panel>
  );
}

export function ImagesPage() {
  useStore("objects");
  const pulls = store.events.filter((e) => e.kind.startsWith("image.")).length;
  useStore("events");
  const { data, error } = useLoad((s) => get<{ list: { images?: Image[] }; usage: { path?: string; bytes?: string; inodes?: string } }>("images", {}, s), [pulls]);
  const rows = useMemo(() => {
    const by = new Map<string, Held>();
    for (const i of data?.list.images ?? []) {
      if (!by.has(i.id)) by.set(i.id, { id: i.id, names: [], users: [], pinned: false, size: Number(i.sizeBytes ?? 0) + Number(i.unpackedBytes ?? 0), pulled: i.pulled, artifact: i.artifact });
      const h = by.get(i.id)!;
      h.pinned ||= !!i.pinned;
      const names = i.names?.length ? i.names : i.digests?.length ? i.digests : [""];
      for (const n of names) h.names.push({ owner: i.owner, name: n });
    }
    for (const o of store.objects.values()) if (o.ii) by.get(o.ii)?.users.push(o);
    return [...by.values()].sort((a, b) => b.size - a.size);
  }, [data, store.version]);
  const sum = (f: (h: Held) => boolean) => rows.filter(f).reduce((n, h) => n + h.size, 0);
  const used = (h: Held) => h.users.length > 0;
  const named = (h: Held) => h.pinned || h.names.some((n) => n.name);
  return (
    <>
      <header class="page">
        <h1>Images</h1>
        <p class="note">
          {data && `${plural(rows.length, "image")} · the store has ${bytes(data.usage.bytes)} in ${data.usage.path ?? ""}; content that images share is there once`}
        </p>
        <Failure text={error} />
      </header>
      <Pulls />
      <Panel title="Who holds the bytes" wide>
        <Share
          parts={[
            { name: "containers", bytes: sum(used), css: "h0" },
            { name: "names and pins only", bytes: sum((h) => !used(h) && named(h)), css: "h1" },
            { name: "nobody", bytes: sum((h) => !used(h) && !named(h)), css: "h2" },
          ]}
        />
      </Panel>
      <Disk />
      <Table
        label="Images"
        empty={data ? "No images." : "…"}
        rows={rows}
        rowKey={(h) => h.id}
        columns={[
          {
            name: "Image",
            grow: true,
            sort: (a, b) => (a.names[0]?.name ?? "").localeCompare(b.names[0]?.name ?? ""),
            cell: (h) => (
              <>
                {h.names.map((n) => (
                  <div key={n.owner + n.name}>
                    {n.name || <span class="note">without a name</span>} <span class="owner">{n.owner}</span>
                  </div>
                ))}
                {h.artifact && <span class="note">{h.artifact}</span>}
              </>
            ),
          },
          { name: "ID", cell: (h) => <code>{short(h.id)}</code>, minor: true },
          { name: "Size", num: true, cell: (h) => bytes(h.size), sort: (a, b) => a.size - b.size },
          { name: "Held by", cell: (h) => <Users list={h.users} />, sort: (a, b) => a.users.length - b.users.length },
          { name: "Pinned", cell: (h) => (h.pinned ? "pinned" : ""), minor: true },
          { name: "Pulled", num: true, cell: (h) => (h.pulled ? ago(Date.parse(h.pulled)) : "–"), minor: true },
        ]}
      />
    </>
  );
}

interface Volume {
  owner: string;
  name: string;
  path?: string;
  created?: string;
  options?: Record<string, string>;
}

interface Usage {
  owner: string;
  name?: string;
  bytes?: string;
}

export function VolumesPage() {
  useStore("objects");
  const { data, error } = useLoad((s) => get<{ list: { volumes?: Volume[] } }>("volumes", {}, s), [store.version]);
  const sizes = useLoad((s) => get<{ usage: { volumes?: Usage[] } }>("disk", {}, s), []);
  const size = new Map((sizes.data?.usage.volumes ?? []).map((u) => [u.owner + "/" + u.name, Number(u.bytes ?? 0)]));
  const rows = (data?.list.volumes ?? []).map((v) => ({ ...v, size: size.get(v.owner + "/" + v.name), users: users((o) => o.o === v.owner && !!o.vo?.includes(v.name)) }));
  return (
    <>
      <header class="page">
        <h1>Volumes</h1>
        <p class="note">{data && plural(rows.length, "volume")}</p>
        <Failure text={error ?? sizes.error} />
      </header>
      <Table
        label="Volumes"
        empty={data ? "No volumes." : "…"}
        rows={rows}
        rowKey={(v) => v.owner + "/" + v.name}
        columns={[
          { name: "Volume", grow: true, sort: (a, b) => a.name.localeCompare(b.name), cell: (v) => <>{/^[0-9a-f]{64}$/.test(v.name) ? short(v.name) : v.name} <span class="owner">{v.owner}</span></> },
          { name: "Size", num: true, sort: (a, b) => (a.size ?? 0) - (b.size ?? 0), cell: (v) => (v.options && Object.keys(v.options).length ? <span class="note">elsewhere</span> : sizes.data ? bytes(v.size) : "…") },
          { name: "Used by", cell: (v) => <Users list={v.users} /> },
          { name: "Directory", cell: (v) => <code>{v.path}</code>, minor: true },
          { name: "Age", num: true, cell: (v) => ago(v.created ? Date.parse(v.created) : undefined), minor: true },
        ]}
      />
    </>
  );
}
