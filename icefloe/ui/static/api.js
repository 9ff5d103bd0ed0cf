// Requests for facts, with the token that was in the address of the page.

const KEY = "icefloe-token";

export function takeToken() {
  const given = new URLSearchParams(location.search).get("token");
  if (given) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname + location.hash);
  }
}
export const setToken = (token) => sessionStorage.setItem(KEY, token);

export class ApiError extends Error {
  constructor(status, body) { super(body.error); this.status = status; this.kind = body.kind; }
}

async function answer(path, options = {}) {
  const headers = { authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}`, ...options.headers };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { error: "The server does not answer. Is `icefloe ui` still running?", kind: "Offline" });
  }
  const body = await response.json().catch(() => ({ error: `Status ${response.status}`, kind: "Unknown" }));
  if (!response.ok) throw new ApiError(response.status, body);
  return body;
}

export const get = (path, params = {}, signal) => answer(`/api/${path}?${new URLSearchParams(params)}`, { signal });
export const post = (path, body) => answer(`/api/${path}`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
