// Requests to the server: each has a deadline, and fails with an error that people can read.

const DEADLINE_MS = 20_000;

/** What the server answered instead of a result. */
export class ApiError extends Error {
  constructor(identifier, message) {
    super(message);
    this.identifier = identifier;
  }
}

/** The JSON at a path. */
export function get(path, parameters = {}, options = {}) {
  return send("GET", path + query(parameters), undefined, options);
}

/** Posts JSON and returns the JSON of the answer. */
export function post(path, body = {}, options = {}) {
  return send("POST", path, body, options);
}

/** Parameters as the end of a URL; empty ones are left out. */
export function query(parameters) {
  const used = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return used.length ? `?${new URLSearchParams(used)}` : "";
}

async function send(method, path, body, { signal, deadline = DEADLINE_MS } = {}) {
  const limit = AbortSignal.timeout(deadline);
  let response;
  try {
    response = await fetch(path, {
      method,
      // A page of another site cannot add the header; the server refuses changes without it.
      headers: method === "GET" ? {} : { "content-type": "application/json", "x-swanlake-request": "1" },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
    });
  } catch (failure) {
    if (signal?.aborted) throw failure;
    if (limit.aborted) throw new ApiError("TIMEOUT", `The server gave no answer within ${deadline / 1000} s.`);
    throw new ApiError("UNREACHABLE", "The server cannot be reached.");
  }
  if (response.status === 401) logIn();
  const isJson = response.headers.get("content-type")?.startsWith("application/json");
  const answer = isJson ? await response.json() : {};
  if (!response.ok) throw new ApiError(answer.error ?? `HTTP ${response.status}`, answer.message ?? response.statusText);
  return answer;
}

/** Leaves for the login page, which leads back. */
export function logIn() {
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
}
