// The calls of the page. A session has two halves: a cookie that no script can read, and a key that only this page's origin has.

const keyName = "longshore-key";
const header = "X-Longshore-Key";

let key = localStorage.getItem(keyName) ?? "";

export class Refused extends Error {
  constructor(readonly status: number, text: string) {
    super(text);
  }
}

/** Called when the server knows no session. */
let loggedOut = () => {};
export function onLogout(f: () => void) {
  loggedOut = f;
}

export async function login(token: string): Promise<void> {
  const resp = await fetch("api/login", { method: "POST", body: token, headers: { [header]: "login" } });
  if (!resp.ok) throw new Refused(resp.status, (await resp.text()).trim());
  key = (await resp.json()).key;
  localStorage.setItem(keyName, key);
}

export function logout() {
  void call("logout", { method: "POST" }).catch(() => {});
  localStorage.removeItem(keyName);
  key = "";
  loggedOut();
}

export async function call(path: string, init: RequestInit = {}): Promise<Response> {
  const resp = await fetch("api/" + path, { ...init, headers: { ...init.headers, [header]: key } });
  if (resp.ok) return resp;
  if (resp.status === 401) loggedOut();
  throw new Refused(resp.status, (await resp.text()).trim() || resp.statusText);
}

export async function get<T>(path: string, params: Record<string, string> = {}, signal?: AbortSignal): Promise<T> {
  const query = new URLSearchParams(params).toString();
  return (await call(query ? path + "?" + query : path, { signal })).json();
}

export function post(path: string, body: unknown): Promise<Response> {
  return call(path, { method: "POST", body: JSON.stringify(body) });
}

/** Yields the JSON documents of an answer, one in each line. */
export async function* lines<T>(path: string, signal: AbortSignal): AsyncGenerator<T[]> {
  const resp = await call(path, { signal });
  const reader = resp.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop()!;
    if (parts.length) yield parts.filter((p) => p !== "").map((p) => JSON.parse(p) as T);
  }
}
