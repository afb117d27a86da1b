// The speed of a page with a thousand containers: the first paint, and the frames of a trace while it scrolls.
import { args, check, end, launch, open } from "./page.mjs";

const browser = await launch();
const page = await open(browser, args.url);
await page.waitForSelector(".frame");

await check("the first paint comes within 300 ms", async () => {
  const all = [];
  for (let i = 0; i < 5; i++) {
    await page.reload();
    await page.waitForSelector(".frame h1");
    all.push(await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 1e9));
  }
  // The best one: this machine does other work too.
  const best = Math.min(...all);
  console.log(`first paint: ${all.map((n) => n.toFixed(0)).join(", ")} ms`);
  return best < 300 || all;
});

await page.evaluate(() => (location.hash = "#/workloads"));
await page.waitForFunction((n) => document.querySelector(".tools [role=status]")?.innerText.includes(String(n)), { timeout: 30000 }, args.containers);
await check("only the visible rows exist", async () => {
  const n = await page.$$eval(".rows .trow", (r) => r.length);
  return (n > 10 && n < 100) || n;
});

await check("thirty frames a second in a trace", async () => {
  let best = 0;
  for (let i = 0; i < 3 && best < 30; i++) {
    await page.tracing.start({ categories: ["devtools.timeline", "disabled-by-default-devtools.timeline", "disabled-by-default-devtools.timeline.frame"] });
    const seconds = await page.evaluate(
      () =>
        new Promise((done) => {
          const el = document.querySelector(".rows");
          const begin = performance.now();
          const step = () => {
            const t = performance.now() - begin;
            if (t > 4000) return done(t / 1000);
            el.scrollTop = ((t / 4000) * (el.scrollHeight - el.clientHeight)) | 0;
            requestAnimationFrame(step);
          };
          requestAnimationFrame(step);
        }),
    );
    const trace = JSON.parse(new TextDecoder().decode(await page.tracing.stop()));
    const frames = trace.traceEvents.filter((e) => e.name === "DrawFrame").length;
    best = Math.max(best, frames / seconds);
    console.log(`${frames} frames in ${seconds.toFixed(2)} s`);
  }
  return best >= 30 || best;
});

await check("a row's numbers change", async () => {
  const read = () => page.$eval(".trow.container", (r) => r.innerText);
  await page.evaluate(() => (document.querySelector(".rows").scrollTop = 0));
  const before = await read();
  await page.waitForFunction((b) => document.querySelector(".trow.container").innerText !== b, { timeout: 20000 }, before);
  return true;
});
await browser.close();
end();
