// Requests to the node. The proof is the half of the session that no other program can get.

const PROOF = "firn.proof";

export class ApiError extends Error {
  constructor(status, kind, message) {
    super(message);
    this.status = status;
    this.kind = kind;
  }
}

export const session = { name: "", role: "administer", needs_token: false, version: "", cluster: false };

const ROLES = ["read", "operate", "administer"];

export function may(role) {
  return ROLES.indexOf(session.role) >= ROLES.indexOf(role);
}

function headers(more = {}) {
  const proof = localStorage.getItem(PROOF);
  return proof ? { ...more, "x-firn-proof": proof } : more;
}

async function failure(response) {
  let document = {};
  try {
    document = await response.json();
  } catch {
    // Not one of the node's own answers.
  }
  return new ApiError(response.status, document.error ?? "Refused",
    document.message ?? `the node answered with ${response.status}`);
}

async function request(method, path, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method,
      signal,
      credentials: "same-origin",
      headers: headers(body === undefined ? {} : { "content-type": "application/json" }),
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "Unreachable", "The node does not answer.");
  }
  if (!response.ok) throw await failure(response);
  return response;
}

export async function get(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  const text = query.toString();
  return (await request("GET", text ? `${path}?${text}` : path, undefined, signal)).json();
}

/** A change. Without a session the node refuses changes of pages, so one is opened first. */
export async function change(method, path, body) {
  if (!session.needs_token && !localStorage.getItem(PROOF)) await signIn("");
  const sent = method === "DELETE" ? body : body ?? {};
  try {
    return await (await request(method, path, sent)).json();
  } catch (error) {
    if (session.needs_token || error.status !== 403) throw error;
    await signIn(""); // The session has ended.
    return (await request(method, path, sent)).json();
  }
}

export async function loadSession() {
  Object.assign(session, await get("/v1/session"));
}

export async function signIn(token) {
  localStorage.removeItem(PROOF);
  const found = await (await request("POST", "/v1/session", { token })).json();
  localStorage.setItem(PROOF, found.proof);
  Object.assign(session, found);
}

export async function signOut() {
  try {
    await request("DELETE", "/v1/session");
  } finally {
    localStorage.removeItem(PROOF);
  }
}

const PAUSE_MS = 1000;
const PAUSE_MAX_MS = 15000;

/** Follows server-sent events until the signal; connects again when the connection breaks. */
export async function follow(path, parameters, { event, state, signal }) {
  let pause = PAUSE_MS;
  while (!signal.aborted) {
    try {
      const query = new URLSearchParams(Object.entries(parameters()).filter(([, value]) => value));
      const response = await request("GET", `${path}?${query}`, undefined, signal);
      state("live");
      pause = PAUSE_MS;
      await read(response.body, event);
      state("away");
    } catch (error) {
      if (signal.aborted || error.name === "AbortError") return;
      if (error instanceof ApiError && error.status !== 0 && error.status !== 503) {
        state("failed", error);
        return;
      }
      state("away", error);
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, PAUSE_MAX_MS);
  }
}

async function read(body, event) {
  const decoder = new TextDecoder();
  const reader = body.getReader();
  let left = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (left + decoder.decode(value, { stream: true })).split("\n\n");
    left = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const data = lines.filter((each) => each.startsWith("data: ")).map((each) => each.slice(6));
      if (!data.length) continue;
      const document = JSON.parse(data.join("\n"));
      if (lines.includes("event: failure")) throw new ApiError(500, document.error, document.message);
      event(document);
    }
  }
}

/** Calls `begin` with a signal while the page is to be seen: hidden pages hold no connection. */
export function whileVisible(outer, begin) {
  let inner = null;
  const look = () => {
    if (document.hidden || outer.aborted) {
      inner?.abort();
      inner = null;
    } else if (inner === null) {
      inner = new AbortController();
      begin(inner.signal);
    }
  };
  document.addEventListener("visibilitychange", look);
  outer.addEventListener("abort", () => {
    document.removeEventListener("visibilitychange", look);
    look();
  });
  look();
}
