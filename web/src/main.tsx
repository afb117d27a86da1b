// The frame of the page: login, navigation, keys.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, login, logout, onLogout } from "./api";
import { ContainerPage } from "./container";
import { NetworksPage } from "./networks";
import { EventsPage, NodePage, type NodeInfo } from "./node";
import { Dialog, Failure, message } from "./parts";
import { ImagesPage, VolumesPage } from "./storage";
import { follow, store, useStore } from "./store";
import { WorkloadsPage } from "./workloads";

const pages = [
  ["node", "Node"],
  ["workloads", "Workloads"],
  ["images", "Images"],
  ["networks", "Networks"],
  ["volumes", "Volumes"],
  ["events", "Events"],
] as const;

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/");
  return { page: parts[0] || "node", rest: parts.slice(1), params: new URLSearchParams(query) };
}

function Login({ done, first }: { done: () => void; first: string }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(first);
  const go = async (e: Event) => {
    e.preventDefault();
    try {
      await login(token.trim());
      done();
    } catch (e) {
      setError(message(e));
    }
  };
  return (
    <main class="login">
      <form onSubmit={go}>
        <h1>Longshore</h1>
        <label for="token">Token</label>
        <input id="token" type="password" autocomplete="off" autofocus value={token} onInput={(e) => setToken(e.currentTarget.value)} />
        <button>Open</button>
        <Failure text={error} />
        <p class="note">
          <code>longshore ui</code> prints an address with the token. The agent's page has the token of <code>ui.token_file</code>.
        </p>
      </form>
    </main>
  );
}

function Help({ close }: { close: () => void }) {
  const keys: [string, string][] = [
    ["g, then n w i e v l", "node, workloads, images, networks, volumes, events"],
    ["j k ↓ ↑", "next, previous row"],
    ["h l ← →", "close, open a group"],
    ["Enter", "open the container"],
    ["/", "filter or search"],
    ["n N", "next, previous match in a log"],
    ["f", "follow a log"],
    ["[ ]", "previous, next tab of a container"],
    ["?", "this help"],
  ];
  return (
    <Dialog title="Keys" close={close}>
      <dl class="keys">
        {keys.map(([k, what]) => (
          <>
            <dt>
              <kbd>{k}</kbd>
            </dt>
            <dd>{what}</dd>
          </>
        ))}
      </dl>
      <form method="dialog" class="buttons">
        <a class="note" href="licenses.txt" target="_blank" rel="noreferrer">
          Licenses
        </a>
        <button autofocus>Close</button>
      </form>
    </Dialog>
  );
}

function Connection({ node }: { node?: NodeInfo }) {
  useStore("agent");
  return (
    <p class={"connection " + (store.down ? "bad" : store.ready ? "ok" : "warn")} role="status">
      <i class="dot" aria-hidden="true" />
      {store.down ? "no answer, trying again" : store.ready ? "live" : "connecting"}
      {node && !node.actions && <span class="owner">read only</span>}
    </p>
  );
}

function Frame() {
  const [at, setAt] = useState(route());
  const [node, setNode] = useState<NodeInfo>();
  const [help, setHelp] = useState(false);
  useEffect(() => {
    const session = new AbortController();
    void follow(session.signal);
    get<NodeInfo>("node", {}, session.signal).then(setNode, () => {});
    const moved = () => setAt(route());
    addEventListener("hashchange", moved);
    return () => {
      session.abort();
      removeEventListener("hashchange", moved);
    };
  }, []);
  useEffect(() => {
    document.title = (node ? node.info.hostname + " – " : "") + "Longshore";
  }, [node]);
  useEffect(() => {
    let g = 0;
    const keys = (e: KeyboardEvent) => {
      const el = e.target as HTMLElement;
      if (e.ctrlKey || e.metaKey || e.altKey || el instanceof HTMLInputElement || el.closest?.(".screen") || document.querySelector("dialog[open]")) return;
      if (e.key === "?") setHelp(true);
      else if (e.key === "g") g = Date.now();
      else if (Date.now() - g < 1000) {
        const to = { n: "node", w: "workloads", i: "images", e: "networks", v: "volumes", l: "events" }[e.key];
        g = 0;
        if (!to) return;
        location.hash = "#/" + to;
      } else if ((e.key === "[" || e.key === "]") && at.page === "c") {
        const tabs = [...document.querySelectorAll<HTMLElement>("[role=tab]")];
        const i = tabs.findIndex((t) => t.getAttribute("aria-selected") === "true");
        tabs[(i + (e.key === "]" ? 1 : -1) + tabs.length) % tabs.length]?.click();
      } else return;
      e.preventDefault();
      e.stopImmediatePropagation();
    };
    document.addEventListener("keydown", keys, true);
    return () => document.removeEventListener("keydown", keys, true);
  }, [at]);
  const here = at.page === "c" ? "workloads" : at.page;
  const owner = at.params.get("owner") ?? "";
  return (
    <div class="frame">
      <nav aria-label="Pages">
        <a class="brand" href="#/node">
          <img src="icon.svg" alt="" width="20" height="20" />
          Longshore
        </a>
        <ul>
          {pages.map(([name, title]) => (
            <li key={name}>
              <a href={"#/" + name} aria-current={here === name ? "page" : undefined}>
                {title}
              </a>
            </li>
          ))}
        </ul>
        <div class="foot">
          <Connection node={node} />
          <button class="quiet" onClick={() => setHelp(true)}>
            keys <kbd>?</kbd>
          </button>
          <button class="quiet" onClick={logout}>
            log out
          </button>
        </div>
      </nav>
      <main>
        {at.page === "node" && <NodePage node={node} />}
        {at.page === "workloads" && <WorkloadsPage key={owner} params={at.params} />}
        {at.page === "c" && at.rest[0] && <ContainerPage key={at.rest[0]} id={at.rest[0]} tab={at.rest[1] || "overview"} actions={!!node?.actions} />}
        {at.page === "images" && <ImagesPage />}
        {at.page === "networks" && <NetworksPage ranges={node?.info.networkRanges ?? []} />}
        {at.page === "volumes" && <VolumesPage />}
        {at.page === "events" && <EventsPage />}
      </main>
      {help && <Help close={() => setHelp(false)} />}
    </div>
  );
}

function App({ first }: { first: string }) {
  const [open, setOpen] = useState(first === "");
  useEffect(() => onLogout(() => setOpen(false)), []);
  return open ? <Frame /> : <Login done={() => setOpen(true)} first={first === "-" ? "" : first} />;
}

async function begin() {
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  let first = localStorage.getItem("longshore-key") ? "" : "-";
  if (token) {
    // The token does not stay in the address, which the browser remembers.
    history.replaceState(null, "", location.pathname + "#/node");
    try {
      await login(decodeURIComponent(token));
      first = "";
    } catch (e) {
      first = message(e);
    }
  } else if (first === "-") {
    // Where certificates identify users, there is no token.
    await login("").then(
      () => (first = ""),
      () => {},
    );
  }
  render(<App first={first} />, document.getElementById("app")!);
}

void begin();
