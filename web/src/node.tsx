// The page of the node.
import { useEffect, useMemo } from "preact/hooks";
import { get } from "./api";
import { Chart } from "./charts";
import { Failure, Meter, Panel, Table, useLoad } from "./parts";
import { addOlderEvents, store, useStore, type Event, type Load } from "./store";
import { bytes, clock, percent, plural, short, stamp } from "./text";

export interface NodeInfo {
  actions: boolean;
  info: {
    hostname: string;
    system?: string;
    cpus: number;
    memoryBytes?: string;
    storage?: string;
    cgroups?: string;
    network?: string;
    networkRanges?: string[];
    version: {
      version: string;
      kernel: string;
      platform: string;
      started?: string;
      pid: number;
      runtimes?: { name: string; default?: boolean; version?: string; problem?: string }[];
      processes?: { name: string; pid: number; version?: string; path?: string; state?: string }[];
      upgradeFailure?: string;
    };
  };
}

interface Finding {
  name: string;
  status: string;
  detail?: string;
  hint?: string;
}

const slots = 150;

function Loads() {
  useStore("load");
  const list = store.loads;
  const now: Load | undefined = list[list.length - 1];
  const cpus = now?.cpus || 1;
  const total = Number(now?.memoryTotalBytes ?? 0);
  const of = (f: (l: Load) => number | undefined) => list.map((l) => f(l) ?? null);
  const pressure = (r: string) => of((l) => l.pressure?.find((p) => p.resource === r)?.some ?? (l.pressure?.some((p) => p.resource === r) ? 0 : undefined));
  const kinds = ["cpu", "memory", "io"];
  const waits = kinds.map((r) => ({ name: r, values: pressure(r) }));
  const top = Math.max(10, ...waits.flatMap((w) => w.values.map((v) => v ?? 0)));
  return (
    <div class="loads">
      <Panel title="CPU" note={now ? `${plural(cpus, "CPU")}${now.load === undefined ? "" : ` · load ${now.load.toFixed(2)}`}` : ""}>
        <p class="big">{percent(now?.cpuPercent === undefined ? null : now.cpuPercent / cpus)}</p>
        <Chart label="Processors" series={[{ name: "use", values: of((l) => (l.cpuPercent === undefined ? undefined : l.cpuPercent / l.cpus)) }]} max={100} slots={slots} unit={percent} />
      </Panel>
      <Panel title="Memory" note={now ? `of ${bytes(total)}` + (Number(now.swapTotalBytes) ? ` · swap ${bytes(now.swapBytes)}` : "") : ""}>
        <p class="big">{bytes(now?.memoryBytes)}</p>
        <Chart label="Memory" series={[{ name: "use", values: of((l) => (l.memoryBytes === undefined ? undefined : Number(l.memoryBytes))) }]} max={total} slots={slots} unit={bytes} />
      </Panel>
      <Panel title="Pressure" note="share of time waiting">
        {now && !now.pressure?.length ? (
          <p class="empty">This kernel reports no pressure.</p>
        ) : (
          <>
            <p class="big three">
              {kinds.map((k, i) => (
                <span key={k} class={"s" + i}>
                  {percent(waits[i].values[list.length - 1])}
                  <small>{k}</small>
                </span>
              ))}
            </p>
            <Chart label="Pressure" series={waits} max={top} slots={slots} unit={percent} />
          </>
        )}
      </Panel>
      <Panel title="Disk" note="in use">
        {(now?.disks ?? []).map((d) => {
          const size = Number(d.totalBytes);
          const free = Number(d.freeBytes ?? 0);
          const inodes = Number(d.inodes ?? 0);
          return (
            <div class="disk" key={d.paths[0]}>
              <p>
                <b>{bytes(size - free)}</b> of {bytes(size)}
                {inodes > 0 && <span class="note"> · {percent((100 * (inodes - Number(d.freeInodes ?? 0))) / inodes)} of inodes</span>}
              </p>
              <Meter label={"Disk of " + d.paths.join(", ")} use={size - free} limit={size} />
              <p class="note mono">{d.paths.join("  ")}</p>
            </div>
          );
        })}
      </Panel>
    </div>
  );
}

function Doctor() {
  const { data, error } = useLoad((s) => get<{ findings: Finding[] | null }>("doctor", {}, s), []);
  const rank = (f: Finding) => ["fail", "warn", "ok"].indexOf(f.status);
  const all = [...(data?.findings ?? [])].sort((a, b) => rank(a) - rank(b));
  const bad = all.filter((f) => f.status !== "ok");
  const good = all.filter((f) => f.status === "ok");
  const item = (f: Finding) => (
    <li key={f.name} class={"finding " + f.status}>
      <span class={"state " + (f.status === "fail" ? "bad" : f.status === "warn" ? "warn" : "ok")}>
        <i class="dot" aria-hidden="true" />
        {f.status}
      </span>
      <div>
        <b>{f.name}</b> {f.detail}
        {f.hint && <p class="note">{f.hint}</p>}
      </div>
    </li>
  );
  return (
    <Panel title="Doctor" note={data ? (bad.length ? plural(bad.length, "finding") : "no finding") : error ? "" : "looking…"}>
      <Failure text={error} />
      <ul class="findings">{bad.map(item)}</ul>
      {good.length > 0 && (
        <details>
          <summary>{plural(good.length, "check")} passed</summary>
          <ul class="findings">{good.map(item)}</ul>
        </details>
      )}
    </Panel>
  );
}

function Owners() {
  useStore("objects");
  const rows = useMemo(() => {
    const by = new Map<string, { owner: string; running: number; other: number; failed: number; ended: number }>();
    for (const o of store.objects.values()) {
      if (o.t !== "c") continue;
      if (!by.has(o.o)) by.set(o.o, { owner: o.o, running: 0, other: 0, failed: 0, ended: 0 });
      const r = by.get(o.o)!;
      if (o.st === "running") r.running++;
      else if (o.st !== "exited") r.other++;
      else if (o.x) r.failed++;
      else r.ended++;
    }
    return [...by.values()].sort((a, b) => a.owner.localeCompare(b.owner));
  }, [store.version]);
  return (
    <Panel title="Containers" note={<a href="#/workloads">all workloads</a>}>
      <Table
        label="Containers by owner"
        empty={store.ready ? "No containers." : "…"}
        rows={rows}
        rowKey={(r) => r.owner}
        columns={[
          { name: "Owner", cell: (r) => <a href={"#/workloads?owner=" + encodeURIComponent(r.owner)}>{r.owner}</a>, grow: true },
          { name: "Running", cell: (r) => r.running, num: true },
          { name: "Other", cell: (r) => r.other || "", num: true },
          { name: "Failed", cell: (r) => (r.failed ? <span class="bad">{r.failed}</span> : ""), num: true },
          { name: "Ended", cell: (r) => r.ended || "", num: true },
        ]}
      />
    </Panel>
  );
}

export function EventLine({ e }: { e: Event }) {
  const o = e.id ? store.objects.get(e.id) : undefined;
  const name = o?.n ?? e.key ?? (e.id ? short(e.id) : "");
  return (
    <li>
      <time dateTime={new Date(e.at).toISOString()} title={stamp(e.at)}>
        {clock(e.at)}
      </time>
      <span class="kind">{e.kind}</span>
      <span class="who">
        {e.id && o ? <a href={"#/c/" + e.id}>{name}</a> : name}
        {e.o && <span class="owner">{e.o}</span>}
      </span>
      {e.no && <span class="text">{e.no}</span>}
    </li>
  );
}

export function useRecentEvents() {
  useEffect(() => {
    if (store.events.length >= 100) return;
    get<{ events: Event[] | null }>("events", { n: "100" }).then(
      (r) => addOlderEvents(r.events ?? []),
      () => {},
    );
  }, []);
}

function Recent() {
  useStore("events");
  useRecentEvents();
  const list = store.events.slice(-40).reverse();
  return (
    <Panel title="Events" note={<a href="#/events">all</a>}>
      {list.length ? (
        <ol class="events">
          {list.map((e) => (
            <EventLine key={e.seq} e={e} />
          ))}
        </ol>
      ) : (
        <p class="empty">No events yet.</p>
      )}
    </Panel>
  );
}

export function EventsPage() {
  useStore("events");
  useRecentEvents();
  return (
    <>
      <header class="page">
        <h1>Events</h1>
        <p class="note">the last {store.events.length}, the newest first</p>
      </header>
      <ol class="events long">
        {[...store.events].reverse().map((e) => (
          <EventLine key={e.seq} e={e} />
        ))}
      </ol>
    </>
  );
}

export function NodePage({ node }: { node?: NodeInfo }) {
  const v = node?.info.version;
  return (
    <>
      <header class="page">
        <h1>{node?.info.hostname ?? "Node"}</h1>
        {node && (
          <p class="note">
            {[node.info.system, "kernel " + v!.kernel, v!.platform, "cgroups " + node.info.cgroups, "network " + node.info.network].filter(Boolean).join(" · ")}
          </p>
        )}
      </header>
      <Loads />
      <div class="columns">
        <div>
          <Doctor />
          <Panel title="Processes" note={v ? `longshore ${v.version}` : ""}>
            {v?.upgradeFailure && <Failure text={"The last upgrade failed: " + v.upgradeFailure} />}
            <Table
              label="Processes of Longshore"
              empty="…"
              rows={v?.processes ?? []}
              rowKey={(p) => p.name + p.pid}
              columns={[
                { name: "Process", cell: (p) => p.name, grow: true },
                { name: "Pid", cell: (p) => p.pid, num: true },
                { name: "Version", cell: (p) => p.version || "unknown" },
                { name: "Program", cell: (p) => (p.state === "replaced" ? <span class="warn">replaced</span> : p.state || "unknown") },
              ]}
            />
            <Table
              label="Runtimes"
              empty=""
              rows={v?.runtimes ?? []}
              rowKey={(r) => r.name}
              columns={[
                { name: "Runtime", cell: (r) => r.name + (r.default ? " (default)" : ""), grow: true },
                { name: "Version", cell: (r) => r.problem ? <span class="note">{r.problem}</span> : r.version },
              ]}
            />
          </Panel>
        </div>
        <div>
          <Owners />
          <Recent />
        </div>
      </div>
    </>
  );
}
