// The checks of each page on a node with containers of several owners.
import { args, check, end, faults, go, launch, open, picture, shows, text } from "./page.mjs";

const browser = await launch();
const { ids } = args;

const page = await open(browser, args.url);
await check("the token leaves the address", async () => {
  await page.waitForSelector(".frame");
  return !page.url().includes("token") && (await page.evaluate(() => location.hash)) === "#/node";
});
await check("no script can read the cookie", async () => (await page.evaluate(() => document.cookie)) === "");
await check("node: doctor's findings", () => shows(page, "[aria-label=Doctor]", "passed"));
await check("node: our processes with versions", () => shows(page, "[aria-label=Processes]", "agent", "keeper", "nest", "current"));
await check("node: containers by owner", () => shows(page, "[aria-label=Containers]", "cli", "cri", "docker"));
await check("node: memory in use", () => shows(page, "[aria-label=Memory]", "GB"));
await check("node: disk", () => shows(page, "[aria-label=Disk]", "inodes"));
await check("node: the CPU chart grows", async () => {
  await page.waitForFunction(() => (document.querySelector("[aria-label=CPU] .line")?.getAttribute("d") ?? "").split("L").length > 3, { timeout: 20000 });
  return true;
});
await check("node: events", () => shows(page, "[aria-label=Events]", "container.started", "container.created"));
await check("node: live", () => shows(page, ".connection", "live"));
await check("node: no serious fault", () => faults(page));
await picture(page, "node-light");

await go(page, "#/workloads", ".trow.container");
await check("workloads: all owners", () => shows(page, ".tree", "cli", "cri", "docker", "mesos", "nomad"));
await check("workloads: pod and project", () => shows(page, ".tree", "pod", "default/shop-7d9f", "project", "shop", "job"));
await check("workloads: an end for want of memory", () => shows(page, ".tree", "greedy", "out of memory"));
await check("workloads: a failed end", () => shows(page, ".tree", "exited 3"));
await check("workloads: ports", () => shows(page, ".tree", "18080 → 80/tcp"));
await check("workloads: limits beside use", async () => {
  await page.waitForFunction(() => [...document.querySelectorAll(".trow.container")].some((r) => /web/.test(r.innerText) && /MB \/ 67\.1 MB|kB \/ 67\.1 MB/.test(r.innerText)), { timeout: 20000 });
  return true;
});
await check("workloads: no serious fault", () => faults(page));
await picture(page, "workloads-light");
await check("workloads: / filters", async () => {
  await page.keyboard.press("/");
  await page.keyboard.type("greedy");
  await page.waitForFunction(() => document.querySelectorAll(".trow.container").length === 1);
  return (await text(page, ".trow.container")).includes("greedy");
});
await check("workloads: Escape empties the filter", async () => {
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => document.querySelectorAll(".trow.container").length > 5);
  return true;
});
await check("workloads: j and k move", async () => {
  const at = () => page.$$eval(".rows .trow", (rows) => rows.findIndex((r) => r.classList.contains("at")));
  const places = [];
  for (const key of ["j", "j", "j", "k"]) {
    await page.keyboard.press(key);
    await page.evaluate(() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go))));
    places.push(await at());
  }
  return places.join() === "0,1,2,1" || places;
});
await check("workloads: h closes a group", async () => {
  const before = await page.$$eval(".trow.container", (r) => r.length);
  await page.keyboard.press("k");
  await page.keyboard.press("h");
  await page.waitForFunction((n) => document.querySelectorAll(".trow.container").length < n, {}, before);
  await page.keyboard.press("l");
  await page.waitForFunction((n) => document.querySelectorAll(".trow.container").length === n, {}, before);
  return true;
});
await check("workloads: Enter opens", async () => {
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForSelector("[role=tablist]", { timeout: 5000 });
  return page.url().includes("#/c/");
});
await check("? shows the keys", async () => {
  await page.keyboard.press("?");
  await shows(page, "dialog", "filter or search");
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !document.querySelector("dialog"));
  return true;
});
await check("g w leads to the workloads", async () => {
  await page.keyboard.press("g");
  await page.keyboard.press("w");
  await page.waitForSelector(".tree");
  return true;
});
await check("workloads: an owner alone", async () => {
  await go(page, "#/workloads?owner=docker", ".trow.container");
  await page.waitForFunction(() => document.querySelectorAll(".trow.container").length === 3);
  return true;
});

await go(page, `#/c/${ids.greedy}`, ".timeline");
await check("container: why it ended", () => shows(page, "[aria-label='Why it ended']", "out of memory at the limit of the container", "SIGKILL", "memory peak"));
await check("container: last output", () => shows(page, "[aria-label='Why it ended']", "filling the memory"));
await check("container: the start as a waterfall", () => shows(page, "[aria-label=Start]", "sandbox", "container", "start", "from the first call"));
await check("container: no serious fault", () => faults(page));
await picture(page, "container-ended-light");
await go(page, `#/c/${ids.web}`, ".timeline");
await check("container: use beside the limit", () => shows(page, ".loads.two", "of 67.1 MB"));
await check("container: mounts", () => shows(page, "[aria-label=Mounts]", "/data"));
await check("container: network", () => shows(page, "[aria-label=Network]", "18080 → 80/tcp"));
await check("container: the environment is hidden", async () => {
  await shows(page, "[aria-label=Environment]", "PASSWORD", "hidden");
  return !(await page.content()).includes("geheim");
});
await check("container: the environment when asked", async () => {
  await page.evaluate(() => [...document.querySelectorAll("[aria-label=Environment] button")][0].click());
  return shows(page, "[aria-label=Environment]", "geheim");
});
await picture(page, "container-light");
await check("logs: tail and follow", async () => {
  await go(page, `#/c/${ids.web}/logs`, ".log .ll");
  const last = () => page.$$eval(".ll span", (l) => l[l.length - 1].innerText);
  const before = await last();
  await page.waitForFunction((b) => { const l = document.querySelectorAll(".ll span"); return l[l.length - 1].innerText !== b; }, { timeout: 20000 }, before);
  return true;
});
await check("logs: search", async () => {
  await page.keyboard.press("/");
  await page.keyboard.type("line 1");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".ll.hit mark");
  return shows(page, ".logs .tools", "1 of");
});
await check("logs: no serious fault", () => faults(page));
await picture(page, "logs-light");
await check("events of a container", async () => {
  await go(page, `#/c/${ids.greedy}/events`, ".events li");
  return shows(page, ".events", "container.created", "container.exited");
});
await check("terminal: a program in the container", async () => {
  await go(page, `#/c/${ids.web}/terminal`, ".terminal form");
  await page.click(".terminal form button");
  await page.waitForSelector(".xterm-rows", { timeout: 20000 });
  await page.waitForFunction(() => document.querySelector(".xterm-rows").innerText.includes("#"), { timeout: 20000 });
  await page.keyboard.type("echo $((40+2)) $TERM; stty size\n");
  return shows(page, ".xterm-rows", "42 xterm-256color");
});
await check("terminal: colors without inline styles", async () => {
  await page.keyboard.type("printf '\\033[38;2;10;200;30mGREEN\\033[0m\\n'\n");
  await page.waitForFunction(() => [...document.querySelectorAll(".xterm-rows span")].some((s) => s.innerText.includes("GREEN") && getComputedStyle(s).color === "rgb(10, 200, 30)"), { timeout: 20000 });
  return true;
});
await picture(page, "terminal-light");
await check("terminal: its end", async () => {
  await page.keyboard.type("exit\n");
  return shows(page, ".terminal [role=status]", "exit");
});

await go(page, "#/images", "main table");
await check("images: names, owners and holders", () => shows(page, "main", "busybox", "cri", "cli", "docker", "more"));
await check("images: who holds the bytes", () => shows(page, "[aria-label='Who holds the bytes']", "containers"));
await check("images: what occupies the disk", async () => {
  await page.evaluate(() => document.querySelector("[aria-label='What occupies the disk'] button").click());
  await shows(page, "[aria-label='What occupies the disk'] .parts", "images", "containers", "the node's records", "prune frees");
  await page.evaluate(() => [...document.querySelectorAll(".parts summary")].find((s) => /^images/.test(s.innerText)).click());
  return shows(page, "[aria-label='What occupies the disk'] .parts", "(cli)", "containers use it");
});
await check("images: a pull under way", async () => {
  await shows(page, "[aria-label='Pulls under way']", "busybox:slow", "cri", "downloading");
  return (await page.$$("[aria-label='Pulls under way'] [role=meter]")).length > 0;
});
await check("images: no serious fault", () => faults(page));
await picture(page, "images-light");
await go(page, "#/networks", ".map svg .box");
await check("networks: lanes, sandboxes and ports", () => shows(page, ".map", "backend", "db", "web", "18080"));
await check("networks: no serious fault", () => faults(page));
await picture(page, "networks-light");
await go(page, "#/volumes", "main table");
await check("volumes: size and users", () => shows(page, "main", "data", "cli", "web"));
await check("volumes: no serious fault", () => faults(page));
await picture(page, "volumes-light");

// Texts of containers are only text.
const hacked = () => page.evaluate(() => window.hacked === undefined && !document.querySelector("main img[src=x]") && !document.querySelector("main script"));
for (const [name, hash, wait] of [
  ["workloads", "#/workloads", ".trow.container"],
  ["a pod's name", `#/c/${ids.pod}`, ".timeline"],
  ["labels, command and environment", `#/c/${ids.hostile}`, ".timeline"],
  ["a log", `#/c/${ids.hostile}/logs`, ".ll"],
  ["a record", `#/c/${ids.hostile}/record`, ".output"],
  ["events", "#/events", ".events li"],
  ["networks", "#/networks", ".box"],
]) {
  await check("hostile text: " + name, async () => {
    await go(page, hash, wait);
    if (name !== "events" && name !== "networks") await page.waitForFunction(() => document.body.innerText.includes("onerror") || document.body.textContent.includes("onerror"), { timeout: 20000 });
    return hacked();
  });
}
await check("hostile text: a filter", async () => {
  await go(page, "#/workloads", ".tree");
  await page.keyboard.press("/");
  await page.keyboard.type(args.hostile);
  await page.keyboard.press("Escape");
  return hacked();
});
await check("hostile text: the address", async () => {
  await go(page, `#/c/${encodeURIComponent(args.hostile)}`);
  await page.waitForSelector(".failure");
  return hacked();
});

// Actions.
await check("sleep of another owner's container needs a second confirmation", async () => {
  await go(page, `#/c/${ids.docker}`, ".title .buttons button");
  await page.evaluate(() => [...document.querySelectorAll(".title .buttons button")].find((b) => b.innerText === "stop").click());
  await shows(page, "dialog", "belongs to docker", "event log");
  await faults(page);
  await picture(page, "confirm-light");
  await page.keyboard.press("Escape");
  await page.waitForFunction(() => !document.querySelector("dialog"));
  return shows(page, ".title", "running");
});
await check("another owner's container stops when confirmed", async () => {
  await page.evaluate(() => [...document.querySelectorAll(".title .buttons button")].find((b) => b.innerText === "stop").click());
  await page.waitForSelector("dialog .danger");
  await page.click("dialog .danger");
  await page.waitForFunction(() => document.querySelector(".title .state").innerText.startsWith("exited"), { timeout: 30000 });
  return shows(page, "[aria-label='Why it ended']", "asked to end", "web page");
});
await check("our own container stops and starts at once", async () => {
  await go(page, `#/c/${ids.db}`, ".title .buttons button");
  const press = (name) => page.evaluate((n) => [...document.querySelectorAll(".title .buttons button")].find((b) => b.innerText === n).click(), name);
  await shows(page, ".title .buttons", "stop");
  await press("pause");
  await shows(page, ".title", "paused", "resume");
  await press("resume");
  await shows(page, ".title", "running");
  return true;
});
await check("the policy was never violated, and no script failed", () => (page.problems.length ? page.problems : true));
await check("nothing came from outside", () => (page.outside.length ? page.outside : true));

// Without actions.
const reader = await open(browser, args.readOnly);
await check("read only: it says so", () => shows(reader, "nav", "read only"));
await check("read only: no actions, no terminal", async () => {
  await go(reader, `#/c/${ids.web}`, ".timeline");
  await shows(reader, "[aria-label=Environment]", "PASSWORD");
  return (await reader.$$(".title .buttons button, [data-tab=terminal]")).length === 0;
});
await check("read only: the server refuses an action", async () => {
  const status = await reader.evaluate((id) => fetch("api/action", { method: "POST", headers: { "X-Longshore-Key": localStorage.getItem("longshore-key") }, body: JSON.stringify({ verb: "stop", id }) }).then((r) => r.status), ids.web);
  return status === 403;
});
const stranger = await open(browser, args.readOnly.split("#")[0]);
await check("without a token there is a login", () => shows(stranger, "form", "Token"));
await check("login: no serious fault", () => faults(stranger));
await check("a wrong token is refused", async () => {
  await stranger.type("#token", "wrong");
  await stranger.keyboard.press("Enter");
  return shows(stranger, ".failure", "wrong");
});
await picture(stranger, "login-light");

// Dark, and the width of a phone.
for (const [look, options] of [["dark", { dark: true }], ["phone", { phone: true, width: 390, height: 844 }], ["phone-dark", { phone: true, width: 390, height: 844, dark: true }]]) {
  const p = await open(browser, args.url, options);
  await p.waitForSelector(".events li");
  for (const [name, hash, wait] of [["node", "#/node", ".events li"], ["workloads", "#/workloads", ".trow.container"], ["container-ended", `#/c/${ids.greedy}`, ".timeline"], ["container", `#/c/${ids.web}`, ".timeline"], ["logs", `#/c/${ids.web}/logs`, ".ll"], ["images", "#/images", "main table"], ["networks", "#/networks", ".box"], ["volumes", "#/volumes", "main table"]]) {
    if (look === "phone-dark" && name !== "workloads") continue;
    await go(p, hash, wait);
    if (name === "node") await p.waitForFunction(() => (document.querySelector("[aria-label=CPU] .line")?.getAttribute("d") ?? "").split("L").length > 2, { timeout: 20000 });
    if (name === "workloads") await p.waitForFunction(() => /MB|kB/.test(document.querySelector(".tree").innerText), { timeout: 20000 });
    await picture(p, `${name}-${look}`);
    if (name === "workloads" || name === "container") await check(`${look}, ${name}: no serious fault`, () => faults(p));
    if (look === "phone") await check(`phone, ${name}: nothing is wider than the screen`, () => p.evaluate(() => (document.documentElement.scrollWidth <= innerWidth ? true : document.documentElement.scrollWidth)));
  }
  await p.close();
}
await browser.close();
end();
