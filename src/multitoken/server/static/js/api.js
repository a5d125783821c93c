// The server's API: methods, and answers as they stream.

const KEY = "multitoken-key";

export class ApiError extends Error {
  constructor(status, body) {
    super(body?.error?.message ?? `the server answered with status ${status}`);
    this.status = status;
    this.param = body?.error?.param ?? null;
  }
}

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

function headers() {
  const key = apiKey.get();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function checked(response) {
  if (response.ok) return response;
  throw new ApiError(response.status, await response.json().catch(() => null));
}

export async function getMethods() {
  return (await checked(await fetch("/methods", { headers: headers() }))).json();
}

/**
 * Chunks of a streamed answer, up to [DONE].
 * @param {string} path endpoint
 * @param {object} body the request without `stream`
 * @param {AbortSignal} signal ends it; the server then frees its row
 */
export async function* stream(path, body, signal) {
  const request = { method: "POST", headers: headers(), body: JSON.stringify({ ...body, stream: true }), signal };
  const response = await checked(await fetch(path, request));
  for await (const event of events(response.body)) {
    if (event === "[DONE]") return;
    const chunk = JSON.parse(event);
    if (chunk.error) throw new ApiError(response.status, chunk);
    yield chunk;
  }
  throw new Error("the connection ended before the answer did");
}

/** Data of server-sent events, from the bytes of a response. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}
