// The page of one container.
import { useEffect, useRef, useState } from "preact/hooks";
import { get, post } from "./api";
import { Chart } from "./charts";
import { Logs } from "./logs";
import { EventLine } from "./node";
import { Dialog, Failure, Meter, message, Panel, State, Table, Tabs, useLoad } from "./parts";
import { maxPast, pastOf, statsOf, store, useStore, type Event, type Obj } from "./store";
import { bytes, clock, duration, noEscapes, percent, plural, seconds, short, span, stamp } from "./text";

interface Autopsy {
  status?: number;
  code?: number;
  signal?: number;
  lost?: boolean;
  at?: string;
  oom?: { level?: string; victim?: number; main?: boolean; kills?: string };
  asked?: { owner?: string; call?: string; user?: string; signal?: number; at?: string };
  peakBytes?: string;
  limitBytes?: string;
  tail?: string[];
  start?: string;
  verdict?: string;
  lostOutput?: string;
  core?: boolean;
  refused?: string;
  throttled?: string;
}

interface Part {
  verb: string;
  at: string;
  by?: string;
  bytes?: string;
  stages?: { name: string; took?: string }[];
}

interface Full {
  why: {
    container: {
      id: string;
      owner: string;
      key?: string;
      name?: string;
      state: string;
      image?: string;
      imageId?: string;
      command?: string[];
      created?: string;
      started?: string;
      finished?: string;
      pid?: number;
      autopsy?: Autopsy;
      labels?: Record<string, string>;
      ports?: unknown[];
      runtime?: string;
      warnings?: string[];
      addresses?: string[];
      networks?: string[];
      restarts?: number;
      rest?: { phase?: string; since?: string; givenBytes?: string; storedBytes?: string; woken?: string; by?: string };
    };
    execs?: { id: string; args?: string[]; finished?: string; autopsy?: Autopsy }[];
    lostBytes?: string;
    start?: Part[];
    failedTest?: string;
    refused?: { time: string; kind: string; name?: string; address?: string; protocol?: string; port?: number; count?: number; reason?: string }[];
  };
  record?: any;
}

const verbs: Record<string, string> = { pull: "pull of its image", create_sandbox: "sandbox", create: "container", renew: "renewal", start: "start" };

const signals: Record<number, string> = { 1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 6: "SIGABRT", 9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 31: "SIGSYS" };

function signalName(n: number): string {
  return signals[n] ?? "signal " + n;
}

/** The stages of the last start, each at its time. */
function Waterfall({ parts }: { parts: Part[] }) {
  if (!parts.length) return <p class="empty">There is no record of its start.</p>;
  const begin = Math.min(...parts.map((p) => Date.parse(p.at)));
  const took = (p: Part) => (p.stages ?? []).reduce((n, s) => n + seconds(s.took) * 1000, 0);
  const end = Math.max(...parts.map((p) => Date.parse(p.at) + took(p)));
  // Long waits between two verbs belong to the caller, and are drawn short.
  const total = Math.max(end - begin, 0.001);
  const left = (t: number) => ({ left: `${((t / total) * 100).toFixed(2)}%` });
  const bar = (from: number, ms: number) => ({ ...left(from), width: `max(2px, ${((ms / total) * 100).toFixed(2)}%)` });
  return (
    <div class="waterfall" role="table" aria-label="Stages of the last start">
      {parts.map((p) => {
        const at = Date.parse(p.at) - begin;
        let from = at;
        return (
          <div key={p.verb + p.at} role="rowgroup">
            <div class="wrow verb" role="row">
              <span role="cell">{verbs[p.verb] ?? p.verb}</span>
              <span role="cell" class="num">
                {duration(took(p))}
              </span>
              <span role="cell" class="track" title={`at ${stamp(p.at)}${p.by ? ", asked by " + p.by : ""}`}>
                <i style={bar(at, took(p))} />
              </span>
            </div>
            {(p.stages ?? []).map((s) => {
              const ms = seconds(s.took) * 1000;
              const here = from;
              from += ms;
              return (
                <div key={s.name} class="wrow" role="row">
                  <span role="cell">{s.name}</span>
                  <span role="cell" class="num">
                    {duration(ms)}
                  </span>
                  <span role="cell" class="track">
                    <i style={bar(here, ms)} />
                  </span>
                </div>
              );
            })}
          </div>
        );
      })}
      <p class="note">
        {duration(total)} from the first call to the program, the caller's own time included
        {parts.some((p) => p.bytes) && ` · ${bytes(parts.find((p) => p.bytes)!.bytes)} pulled`}
      </p>
    </div>
  );
}

/** Why it ended: what happened, in the order of time. */
function Timeline({ why, o }: { why: Full["why"]; o?: Obj }) {
  const c = why.container;
  const a = c.autopsy;
  const steps: { at?: string; what: string; text?: preact.ComponentChildren; tone?: string }[] = [];
  if (c.created) steps.push({ at: c.created, what: "created" });
  if (c.started) steps.push({ at: c.started, what: "started", text: c.command?.length ? <code>{c.command.join(" ")}</code> : undefined });
  if (c.rest?.since) steps.push({ at: c.rest.since, what: "fell asleep", text: `gave ${bytes(c.rest.givenBytes)} back` });
  if (c.rest?.woken) steps.push({ at: c.rest.woken, what: "woke", text: c.rest.by });
  if (why.failedTest) steps.push({ what: "health check failed", text: why.failedTest, tone: "warn" });
  if (a?.asked) {
    const by = [a.asked.owner, a.asked.call, a.asked.user].filter(Boolean).join(" · ");
    steps.push({ at: a.asked.at, what: `asked to end${a.asked.signal ? " with " + signalName(a.asked.signal) : ""}`, text: by });
  }
  if (a) {
    if (a.oom) {
      steps.push({
        at: a.at,
        what: "out of memory",
        tone: "bad",
        text: `${plural(Number(a.oom.kills ?? 0), "kill")} at the limit of the ${a.oom.level}; the victim was ${a.oom.main ? "the main process" : "another process"}${a.oom.victim ? ", pid " + a.oom.victim : ""}`,
      });
    }
    const how = a.start
      ? "could not start: " + a.start
      : a.lost
        ? "ended while neither agent nor keeper ran: nobody knows how"
        : a.signal
          ? `killed by ${signalName(a.signal)}${a.core ? ", core dumped" : ""}`
          : `exit code ${a.code ?? 0}`;
    const ran = c.started && a.at ? Date.parse(a.at) - Date.parse(c.started) : 0;
    steps.push({ at: a.at, what: "ended", tone: a.status ? "bad" : "ok", text: how + (ran > 0 ? ` after ${ran < 60000 ? duration(ran) : span(ran)}` : "") });
  } else if (c.started) {
    steps.push({ what: c.state, tone: "ok", text: o?.h ? "health: " + o.h : undefined });
  }
  const peak = Number(a?.peakBytes ?? 0);
  const limit = Number(a?.limitBytes ?? 0);
  return (
    <Panel title={a ? "Why it ended" : "So far"} note={a ? undefined : c.state}>
      {a?.verdict && <p class={"verdict " + (a.status ? "bad" : "")}>{a.verdict}</p>}
      <ol class="timeline">
        {steps.map((s, i) => (
          <li key={i} class={s.tone}>
            <time>{s.at ? clock(s.at) : ""}</time>
            <div>
              <b>{s.what}</b>
              {s.text && <p>{s.text}</p>}
            </div>
          </li>
        ))}
      </ol>
      {(peak > 0 || limit > 0) && (
        <p class="peak">
          memory peak {bytes(peak)}
          {limit > 0 && (
            <>
              {" "}
              of {bytes(limit)} <Meter label="Memory peak of the limit" use={peak} limit={limit} />
            </>
          )}
        </p>
      )}
      {Number(a?.refused) > 0 && <p class="note">{plural(Number(a!.refused), "process")} refused at the limit of pids</p>}
      {Number(why.lostBytes) > 0 && <p class="note">{bytes(why.lostBytes)} of output no log could take</p>}
      {!!a?.tail?.length && (
        <>
          <h3>Last output</h3>
          <pre class="output">{a.tail.map(noEscapes).join("\n")}</pre>
        </>
      )}
      {why.execs?.map((x) => (
        <p class="note" key={x.id}>
          exec <code>{(x.args ?? []).join(" ")}</code>: {x.autopsy?.verdict}
        </p>
      ))}
    </Panel>
  );
}

function Use({ id }: { id: string }) {
  useStore("stats");
  const past = pastOf(id);
  const now = statsOf(id);
  if (!now) return null;
  const top = Math.max(100, ...past.cpu.map((n) => n ?? 0));
  const memTop = now.limit ?? Math.max(1, ...past.mem.map((n) => n ?? 0)) * 1.25;
  return (
    <div class="loads two">
      <Panel title="CPU" note="of one CPU">
        <p class="big">{percent(now.cpu)}</p>
        <Chart label="CPU of the container" series={[{ name: "use", values: past.cpu }]} max={top} slots={maxPast} unit={percent} />
      </Panel>
      <Panel title="Memory" note={now.limit ? "of " + bytes(now.limit) : "no limit"}>
        <p class="big">{bytes(now.mem)}</p>
        <Chart label="Memory of the container" series={[{ name: "use", values: past.mem }]} max={memTop} slots={maxPast} unit={bytes} />
      </Panel>
      <dl class="facts line">
        <dt>pids</dt>
        <dd>
          {now.pids ?? "–"}
          {now.pidsLimit ? ` of ${now.pidsLimit}` : ""}
        </dd>
        <dt>written to its root</dt>
        <dd>{bytes(now.root)}</dd>
        <dt>disk</dt>
        <dd>
          {bytes(now.read)} read, {bytes(now.write)} written
        </dd>
        <dt>network</dt>
        <dd>
          {bytes(now.rx)} in, {bytes(now.tx)} out
        </dd>
        <dt>memory peak</dt>
        <dd>{bytes(now.peak)}</dd>
      </dl>
    </div>
  );
}

function Facts({ full }: { full: Full }) {
  const c = full.why.container;
  const spec = full.record?.spec;
  const cpu = spec?.linux?.resources?.cpu;
  const cpus = cpu?.quota > 0 && cpu?.period ? (cpu.quota / cpu.period).toFixed(2) : "no limit";
  return (
    <Panel title="Container">
      <dl class="facts">
        <dt>ID</dt>
        <dd class="mono">{c.id}</dd>
        <dt>owner</dt>
        <dd>
          {c.owner}, key <code>{c.key}</code>
        </dd>
        <dt>image</dt>
        <dd>
          {c.image} <span class="note mono">{short(c.imageId ?? "")}</span>
        </dd>
        <dt>command</dt>
        <dd>
          <code>{(c.command ?? []).join(" ")}</code>
        </dd>
        <dt>runtime</dt>
        <dd>
          {c.runtime || "default"}
          {c.pid ? `, pid ${c.pid}` : ""}
        </dd>
        <dt>CPU limit</dt>
        <dd>{cpus}</dd>
        <dt>restarts</dt>
        <dd>{c.restarts ?? 0}</dd>
        {spec?.process?.user && (
          <>
            <dt>user</dt>
            <dd>
              {spec.process.user.uid}:{spec.process.user.gid}
            </dd>
          </>
        )}
        {c.warnings?.map((w) => (
          <>
            <dt>warning</dt>
            <dd>{w}</dd>
          </>
        ))}
      </dl>
      {c.labels && Object.keys(c.labels).length > 0 && (
        <details>
          <summary>{plural(Object.keys(c.labels).length, "label")}</summary>
          <dl class="facts wide">
            {Object.entries(c.labels)
              .sort(([a], [b]) => a.localeCompare(b))
              .map(([k, v]) => (
                <>
                  <dt class="mono">{k}</dt>
                  <dd class="mono">{v}</dd>
                </>
              ))}
          </dl>
        </details>
      )}
    </Panel>
  );
}

function Mounts({ record }: { record: any }) {
  const list: any[] = record?.spec?.mounts ?? [];
  const own = list.filter((m) => !["proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2"].includes(m.type));
  return (
    <Panel title="Mounts" note={plural(list.length, "mount")}>
      <Table
        label="Mounts"
        empty={list.length ? "Only those of the kernel." : "Its specification is gone."}
        rows={own}
        rowKey={(m) => m.destination}
        columns={[
          { name: "In the container", cell: (m) => <code>{m.destination}</code>, grow: true },
          { name: "Source", cell: (m) => <code>{m.type === "bind" ? m.source : m.type}</code> },
          { name: "Options", cell: (m) => <span class="note">{(m.options ?? []).join(", ")}</span>, minor: true },
        ]}
      />
    </Panel>
  );
}

function Network({ full }: { full: Full }) {
  const n = full.record?.network;
  const c = full.why.container;
  const ports: any[] = n?.ports ?? [];
  return (
    <Panel title="Network" note={(c.networks ?? []).join(", ") || n?.mode}>
      <dl class="facts">
        <dt>addresses</dt>
        <dd class="mono">{(c.addresses ?? []).join("  ") || "–"}</dd>
        <dt>hostname</dt>
        <dd>{n?.hostname || "–"}</dd>
        <dt>gateways</dt>
        <dd class="mono">{(n?.gateways ?? []).join("  ") || "–"}</dd>
        <dt>ports</dt>
        <dd class="mono">{(store.objects.get(c.id)?.p ?? ports.map((p) => JSON.stringify(p))).join("  ") || "none published"}</dd>
      </dl>
      {!!full.why.refused?.length && (
        <>
          <h3>Refused by its egress list</h3>
          <ul class="plain">
            {full.why.refused.map((r, i) => (
              <li key={i}>
                <time>{clock(r.time)}</time> {r.kind} {r.name} {r.address}
                {r.port ? ":" + r.port : ""} {r.protocol} {r.reason}
              </li>
            ))}
          </ul>
        </>
      )}
    </Panel>
  );
}

function Env({ id, record, actions }: { id: string; record: any; actions: boolean }) {
  const [shown, setShown] = useState<string[] | null>(null);
  const [error, setError] = useState("");
  const hidden: string[] = record?.spec?.process?.env ?? [];
  useEffect(() => setShown(null), [id]);
  const show = () =>
    get<Full>("container", { id, env: "show" }).then(
      (f) => setShown(f.record?.spec?.process?.env ?? []),
      (e) => setError(message(e)),
    );
  return (
    <Panel title="Environment" note={plural(hidden.length, "variable")}>
      <Failure text={error} />
      <ul class="env">
        {(shown ?? hidden).map((e, i) => (
          <li key={i}>
            <code>{e.split("=")[0]}</code>
            {shown ? <code class="value">{e.slice(e.indexOf("=") + 1)}</code> : <span class="note">hidden</span>}
          </li>
        ))}
      </ul>
      {actions ? (
        <button onClick={() => (shown ? setShown(null) : show())}>{shown ? "Hide the values" : "Show the values"}</button>
      ) : (
        <p class="note">A page with actions can show the values.</p>
      )}
    </Panel>
  );
}

/** A question before an action on another owner's object. */
function Confirm({ verb, o, yes, close }: { verb: string; o: Obj; yes: () => void; close: () => void }) {
  return (
    <Dialog title={`${verb[0].toUpperCase()}${verb.slice(1)} ${o.n}?`} close={close}>
      <p>
        It belongs to <b>{o.o}</b>. Its orchestrator does not expect this and may undo it. The event log records that this page did it.
      </p>
      <form method="dialog" class="buttons">
        <button autofocus>Cancel</button>
        <button class="danger" onClick={yes}>
          {verb} it, though it is {o.o}'s
        </button>
      </form>
    </Dialog>
  );
}

function Actions({ o, failed }: { o: Obj; failed: (text: string) => void }) {
  const [ask, setAsk] = useState("");
  const [busy, setBusy] = useState("");
  const can: Record<string, string[]> = { running: ["stop", "pause", "sleep"], paused: ["resume", "stop"], asleep: ["wake", "stop"], exited: ["start"], created: ["start"], restarting: ["stop"] };
  const act = async (verb: string) => {
    setBusy(verb);
    failed("");
    try {
      await post("action", { verb, id: o.id, owner: o.o });
    } catch (e) {
      failed(`${verb}: ${message(e)}`);
    }
    setBusy("");
  };
  return (
    <div class="buttons" role="group" aria-label="Actions">
      {(can[o.st] ?? []).map((v) => (
        <button key={v} disabled={busy !== ""} aria-busy={busy === v} onClick={() => (o.o === "cli" ? act(v) : setAsk(v))}>
          {v}
        </button>
      ))}
      {ask && <Confirm verb={ask} o={o} yes={() => act(ask)} close={() => setAsk("")} />}
    </div>
  );
}

function TerminalTab({ o }: { o: Obj }) {
  const box = useRef<HTMLDivElement>(null);
  const [command, setCommand] = useState("sh");
  const [user, setUser] = useState("");
  const [running, setRunning] = useState(false);
  const [ended, setEnded] = useState("");
  const [ask, setAsk] = useState(false);
  const stop = useRef<() => void>();
  useEffect(() => () => stop.current?.(), []);
  const start = async () => {
    setEnded("");
    setRunning(true);
    stop.current?.();
    const { run } = await import("./term");
    stop.current = run(box.current!, { id: o.id, owner: o.o, command: command.trim().split(/\s+/), user }, (why) => {
      setRunning(false);
      setEnded(why);
    });
  };
  return (
    <div class="terminal">
      <form
        class="tools"
        onSubmit={(e) => {
          e.preventDefault();
          if (o.o === "cli") void start();
          else setAsk(true);
        }}
      >
        <input aria-label="Command" value={command} onInput={(e) => setCommand(e.currentTarget.value)} disabled={running} spellcheck={false} />
        <input aria-label="User" placeholder="user" value={user} onInput={(e) => setUser(e.currentTarget.value)} disabled={running} spellcheck={false} size={8} />
        {running ? (
          <button type="button" onClick={() => stop.current?.()}>
            end
          </button>
        ) : (
          <button disabled={o.st !== "running"}>run</button>
        )}
        <span class="note" role="status">
          {running ? "" : ended || "The program ends with this page."}
        </span>
      </form>
      <div class="screen" ref={box} />
      {ask && <Confirm verb="exec in" o={o} yes={() => void start()} close={() => setAsk(false)} />}
    </div>
  );
}

export function ContainerPage({ id, tab, actions }: { id: string; tab: string; actions: boolean }) {
  useStore("objects", "events");
  const o = store.objects.get(id);
  const [failed, setFailed] = useState("");
  const changes = store.events.filter((e) => e.id === id).length;
  const { data, error } = useLoad((s) => get<Full>("container", { id }, s), [id, changes, o?.st]);
  const [events, setEvents] = useState<Event[]>([]);
  useEffect(() => {
    if (tab !== "events") return;
    get<{ events: Event[] | null }>("events", { id, n: "500" }).then(
      (r) => setEvents(r.events ?? []),
      (e) => setFailed(message(e)),
    );
  }, [id, tab, changes]);
  const c = data?.why.container;
  const name = o?.n ?? c?.name ?? c?.key ?? short(id);
  const names = ["overview", "logs", ...(actions ? ["terminal"] : []), "events", "record"];
  return (
    <div class={tab === "logs" || tab === "terminal" ? "fill" : ""}>
      <header class="page">
        <p class="crumb">
          <a href="#/workloads">Workloads</a> / <a href={"#/workloads?owner=" + encodeURIComponent(o?.o ?? "")}>{o?.o ?? c?.owner}</a>
          {o?.g && <> / {o.g}</>}
        </p>
        <div class="title">
          <h1>{name}</h1>
          {o ? <State o={o} /> : <span class="state off">removed</span>}
          {o?.im && <span class="note">{o.im}</span>}
          {actions && o && <Actions o={o} failed={setFailed} />}
        </div>
        <Failure text={failed || error} />
      </header>
      <Tabs names={names} at={tab} go={(t) => location.replace(`#/c/${id}/${t}`)} />
      <div role="tabpanel" id="tabpanel" aria-labelledby={"tab-" + tab} class="tabpanel">
        {tab === "overview" && data && (
          <>
            <Use key={id} id={id} />
            <div class="columns">
              <div>
                <Timeline why={data.why} o={o} />
                <Facts full={data} />
                <Env id={id} record={data.record} actions={actions} />
              </div>
              <div>
                <Panel title="Start">
                  <Waterfall parts={data.why.start ?? []} />
                </Panel>
                <Network full={data} />
                <Mounts record={data.record} />
              </div>
            </div>
          </>
        )}
        {tab === "logs" && <Logs key={id} id={id} />}
        {tab === "terminal" && o && <TerminalTab key={id} o={o} />}
        {tab === "events" && (
          <ol class="events long">
            {[...events].reverse().map((e) => (
              <EventLine key={e.seq} e={e} />
            ))}
          </ol>
        )}
        {tab === "record" && <pre class="output">{JSON.stringify(data?.record ?? null, null, 2)}</pre>}
      </div>
    </div>
  );
}
