// The terminal of an exec. It is loaded when it is first used.
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { call } from "./api";

/** An element in the place of a style element: its text becomes a style sheet of the document. */
class StyleSheetElement extends HTMLElement {
  #sheet = new CSSStyleSheet();
  #on = false;
  connectedCallback() {
    if (!this.#on) document.adoptedStyleSheets = [...document.adoptedStyleSheets, this.#sheet];
    this.#on = true;
  }
  disconnectedCallback() {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== this.#sheet);
    this.#on = false;
  }
  get sheet() {
    return this.#sheet;
  }
  set textContent(text: string) {
    this.#sheet.replaceSync(text);
  }
}
customElements.define("longshore-style", StyleSheetElement);

export interface Exec {
  id: string;
  owner: string;
  command: string[];
  user: string;
}

/** Runs a program in box until it ends or stop is called. */
export function run(box: HTMLElement, exec: Exec, ended: (why: string) => void): () => void {
  const css = getComputedStyle(document.documentElement);
  const color = (name: string) => css.getPropertyValue(name).trim();
  const term = new Terminal({
    fontFamily: css.getPropertyValue("--mono"),
    fontSize: 13,
    cursorBlink: false,
    screenReaderMode: true,
    scrollback: 5000,
    theme: { background: color("--term"), foreground: color("--term-text"), cursor: color("--term-text"), selectionBackground: "#5b7f8a80" },
  });
  const fit = new FitAddon();
  term.loadAddon(fit);
  term.open(box);
  fit.fit();
  term.focus();
  const stop = new AbortController();
  let name = "";
  let sending = Promise.resolve();
  const send = (what: "input" | "size", body: string | Uint8Array<ArrayBuffer>) => {
    // One after the other, because the order of the keys matters.
    sending = sending.then(() => (name && !stop.signal.aborted ? call(`exec/${name}/${what}`, { method: "POST", body }).then(() => {}) : undefined)).catch(() => {});
  };
  term.onData((data) => {
    const all = new TextEncoder().encode(data);
    for (let i = 0; i < all.length; i += 32768) send("input", all.slice(i, i + 32768));
  });
  term.onBinary((data) => send("input", Uint8Array.from(data, (c) => c.charCodeAt(0))));
  term.onResize(({ cols, rows }) => send("size", JSON.stringify({ cols, rows })));
  const resized = new ResizeObserver(() => fit.fit());
  resized.observe(box);

  const follow = async () => {
    const resp = await call("exec", { method: "POST", signal: stop.signal, body: JSON.stringify({ ...exec, cols: term.cols, rows: term.rows }) });
    const reader = resp.body!.getReader();
    let rest: Uint8Array = new Uint8Array(0);
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return "The connection ended.";
      const joined = new Uint8Array(rest.length + value.length);
      joined.set(rest);
      joined.set(value, rest.length);
      rest = joined;
      while (rest.length >= 5) {
        const size = new DataView(rest.buffer, rest.byteOffset).getUint32(1);
        if (rest.length < 5 + size) break;
        const body = rest.subarray(5, 5 + size);
        switch (rest[0]) {
          case 0:
            name = new TextDecoder().decode(body);
            break;
          case 1:
            term.write(body.slice());
            break;
          case 2:
            return new TextDecoder().decode(body);
        }
        rest = rest.subarray(5 + size);
      }
    }
  };
  follow().then(ended, (e) => ended(stop.signal.aborted ? "" : e.message));
  return () => {
    stop.abort();
    resized.disconnect();
    term.dispose();
  };
}
