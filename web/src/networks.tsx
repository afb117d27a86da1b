// Networks as a picture: the node's ports at the left, a lane for each network, the sandboxes in it.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { get } from "./api";
import { Failure, stateText, tone, useLoad } from "./parts";
import { store, useStore, type Obj } from "./store";
import { plural } from "./text";

interface Network {
  name: string;
  subnets?: { range: string; gateway?: string }[];
  internal?: boolean;
  interface?: string;
  members?: { container: string; addresses?: string[]; running?: boolean }[];
}

interface Box {
  o: Obj;
  name: string;
  address: string;
  ports: string[];
}

interface Lane {
  name: string;
  note: string;
  boxes: Box[];
}

const boxW = 172;
const boxH = 42;
const gap = 10;
const portW = 168;
const maxBoxes = 60;

/** The sandboxes of each network. A sandbox is drawn as its container if it has one. */
function lanes(networks: Network[], ranges: string[]): Lane[] {
  const byName = new Map<string, Lane>();
  const lane = (name: string) => {
    if (!byName.has(name)) {
      const n = networks.find((n) => n.name === name);
      const note = n ? [...(n.subnets ?? []).map((s) => s.range), n.interface, n.internal ? "internal" : ""].filter(Boolean).join(" · ") : name === "bridge" || name === "builtin" ? ranges.join(" · ") : "";
      byName.set(name, { name, note, boxes: [] });
    }
    return byName.get(name)!;
  };
  for (const n of networks) lane(n.name);
  const perSandbox = new Map<string, Obj[]>();
  for (const o of store.objects.values()) if (o.t === "c") perSandbox.set(o.sb!, [...(perSandbox.get(o.sb!) ?? []), o]);
  for (const sb of store.objects.values()) {
    if (sb.t !== "s" || sb.st !== "ready") continue;
    const list = (perSandbox.get(sb.id) ?? []).filter((c) => c.st !== "exited");
    const o = list[0] ?? sb;
    const names = o.t === "c" && o.nw?.length ? o.nw : [sb.nw?.[0] || "none"];
    names.forEach((n, i) => {
      const members = networks.find((x) => x.name === n)?.members ?? [];
      const member = members.find((m) => list.some((c) => c.id === m.container));
      const address = member?.addresses?.join(" ") ?? (i === 0 ? (sb.a ?? []).join(" ") : "");
      lane(n).boxes.push({ o, name: list.length === 1 ? o.n : (sb.g ?? sb.n), address, ports: i === 0 ? (sb.p ?? []) : [] });
    });
  }
  return [...byName.values()].sort((a, b) => b.boxes.length - a.boxes.length || a.name.localeCompare(b.name));
}

export function NetworksPage({ ranges }: { ranges: string[] }) {
  useStore("objects");
  const { data, error } = useLoad((s) => get<{ list: { networks?: Network[] } }>("networks", {}, s), [store.version]);
  const frame = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(900);
  useLayoutEffect(() => {
    const look = () => setWidth(Math.max(300, frame.current!.clientWidth));
    look();
    const resized = new ResizeObserver(look);
    resized.observe(frame.current!);
    return () => resized.disconnect();
  }, []);
  const all = lanes(data?.list.networks ?? [], ranges);
  const narrow = width < 620;
  const left = narrow ? 0 : portW + 70;
  const columns = Math.max(1, Math.floor((width - left - 2 * gap) / (boxW + gap)));
  let y = 0;
  const drawn = all.map((l) => {
    const boxes = l.boxes.sort((a, b) => b.ports.length - a.ports.length || a.name.localeCompare(b.name, undefined, { numeric: true })).slice(0, maxBoxes);
    const rows = Math.max(1, Math.ceil(boxes.length / columns));
    const lane = { ...l, y, h: 30 + rows * (boxH + gap), boxes: boxes.map((b, i) => ({ ...b, x: left + gap + (i % columns) * (boxW + gap), y: y + 30 + Math.floor(i / columns) * (boxH + gap) })), more: l.boxes.length - boxes.length };
    y += lane.h + 16;
    return lane;
  });
  const ports = drawn.flatMap((l) => l.boxes.flatMap((b) => b.ports.map((p) => ({ p, b }))));
  const portY = (i: number) => 8 + i * 24;
  const height = Math.max(y, narrow ? 0 : portY(ports.length)) + 4;
  return (
    <>
      <header class="page">
        <h1>Networks</h1>
        <p class="note">
          {plural(all.length, "network")}, {plural(all.reduce((n, l) => n + l.boxes.length, 0), "attached sandbox", "attached sandboxes")}, {plural(ports.length, "published port")}
        </p>
        <Failure text={error} />
      </header>
      <div ref={frame} class="map">
        <svg width={width} height={height} role="group" aria-label="Networks, their sandboxes and published ports">
          {!narrow &&
            ports.map(({ p, b }, i) => (
              <g key={b.o.id + p} class="port">
                <rect x={0.5} y={portY(i) + 0.5} width={portW} height={20} rx={4} />
                <text x={8} y={portY(i) + 14}>
                  {p.length > 25 ? p.slice(0, 24) + "…" : p}
                  <title>{p}</title>
                </text>
                <path d={`M${portW + 1},${portY(i) + 10} C${portW + 45},${portY(i) + 10} ${b.x - 45},${b.y + boxH / 2} ${b.x},${b.y + boxH / 2}`} />
              </g>
            ))}
          {drawn.map((l) => (
            <g key={l.name} class="lane">
              <rect x={left + 0.5} y={l.y + 0.5} width={width - left - 1} height={l.h - 1} rx={8} />
              <text class="lname" x={left + gap} y={l.y + 19}>
                {l.name}
                <tspan class="lnote" dx={8}>
                  {l.note} {l.more > 0 ? `and ${l.more} more sandboxes` : ""}
                </tspan>
              </text>
              {l.boxes.map((b) => {
                const content = (
                  <>
                    <rect x={b.x + 0.5} y={b.y + 0.5} width={boxW - 1} height={boxH - 1} rx={5} />
                    <circle class={tone(b.o)} cx={b.x + 12} cy={b.y + 15} r={3.5} />
                    <text x={b.x + 22} y={b.y + 19}>
                      {b.name.length > 20 ? b.name.slice(0, 19) + "…" : b.name}
                    </text>
                    <text class="address" x={b.x + 12} y={b.y + 34}>
                      {b.address.length > 26 ? b.address.slice(0, 25) + "…" : b.address || b.o.o}
                    </text>
                    <title>{`${b.name}\n${b.o.o}, ${stateText(b.o)}\n${b.address}\n${b.ports.join("\n")}`}</title>
                  </>
                );
                return b.o.t === "c" ? (
                  <a key={b.o.id} class="box" href={"#/c/" + b.o.id}>
                    {content}
                  </a>
                ) : (
                  <g key={b.o.id} class="box">
                    {content}
                  </g>
                );
              })}
              {!l.boxes.length && (
                <text class="address" x={left + gap} y={l.y + 48}>
                  no sandbox
                </text>
              )}
            </g>
          ))}
        </svg>
      </div>
    </>
  );
}
