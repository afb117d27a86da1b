// The frame of checks in a browser.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import puppeteer from "puppeteer-core";

export const args = JSON.parse(process.argv[2]);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

let failed = 0;

/** Runs a check: f throws, or returns something other than true, if it fails. */
export async function check(name, f) {
  try {
    const got = await f();
    if (got !== true) throw new Error(`got ${JSON.stringify(got)}`);
    console.log("ok " + name);
  } catch (e) {
    failed++;
    console.log(`FAIL ${name}: ${String(e.message).replace(/\s+/g, " ").slice(0, 600)}`);
  }
}

export async function launch() {
  return puppeteer.launch({ executablePath: args.chromium, headless: true, args: ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-proxy-server"] });
}

/** Opens a page, and collects the violations of its policy and the errors of its scripts. */
export async function open(browser, url, options = {}) {
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  page.problems = [];
  page.outside = [];
  const home = new URL(url).origin;
  page.on("pageerror", (e) => page.problems.push("error: " + e.message));
  page.on("console", (m) => {
    if (m.type() === "error" && !/status of (4\d\d|503)/.test(m.text())) page.problems.push("console: " + m.text());
  });
  page.on("request", (r) => {
    if (new URL(r.url()).origin !== home) page.outside.push(r.url());
  });
  await page.setViewport({ width: options.width ?? 1280, height: options.height ?? 800, isMobile: !!options.phone, hasTouch: !!options.phone });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: options.dark ? "dark" : "light" }]);
  await page.goto(url);
  return page;
}

export async function go(page, hash, wait) {
  await page.evaluate((h) => (location.hash = h), hash);
  if (wait) await page.waitForSelector(wait, { timeout: 20000 });
}

export function text(page, selector = "body") {
  return page.$eval(selector, (e) => e.innerText);
}

/** Waits until the page's text has all words. */
export async function shows(page, selector, ...words) {
  await page.waitForFunction((s, w) => {
    const e = document.querySelector(s);
    return e && w.every((x) => e.innerText.includes(x));
  }, { timeout: 20000 }, selector, words).catch(async () => {
    const have = await text(page, selector).catch(() => "(no such element)");
    throw new Error(`${selector} has not ${JSON.stringify(words)} but ${have.slice(0, 400)}`);
  });
  return true;
}

export async function picture(page, name) {
  await page.evaluate(() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go))));
  await page.screenshot({ path: join(args.pictures, name + ".png") });
}

/** The serious faults that axe-core finds. */
export async function faults(page) {
  const cdp = await page.createCDPSession();
  await cdp.send("Runtime.evaluate", { expression: axe });
  const found = await page.evaluate(async () => {
    const r = await axe.run(document, { resultTypes: ["violations"] });
    return r.violations.filter((v) => ["serious", "critical"].includes(v.impact)).map((v) => `${v.id}: ${v.nodes.length} × ${v.nodes[0].html.slice(0, 160)} ${v.nodes[0].failureSummary?.slice(0, 200)}`);
  });
  return found.length ? found : true;
}

export function end() {
  process.exitCode = failed ? 1 : 0;
}
