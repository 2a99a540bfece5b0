// Calls of the service. What fails is thrown as a Problem that says in words what happened and what to do.

const IDLE_MS = 75_000;

const ADVICE = {
  missing_api_key: ["An API key is needed.", "Enter yours."],
  invalid_api_key: ["This API key is not known.", "Check it, or have one made with: sparring keys create --tenant NAME"],
  wrong_key_scope: ["This is an operator's key.", "Use a tenant's key: sparring keys create --tenant NAME"],
  message_too_long: ["Your message is too long.", "Shorten it and send it again."],
  content_too_large: ["Your message is too long.", "Shorten it and send it again."],
  control_tokens: ["Your message holds characters that steer the model.", "Leave them out and send it again."],
  conversation_busy: ["Your last message is still being answered.", "Send again in a moment: it counts once."],
  request_in_flight: ["Your last message is still being answered.", "Send again in a moment: it counts once."],
  conversation_not_found: ["This conversation is gone.", "Start a new one."],
  conversation_erased: ["This conversation was erased.", "Start a new one."],
  no_adapter: ["No agent is in service yet.", "Try again in a moment."],
};
const ADVICE_BY_STATUS = {
  401: ADVICE.invalid_api_key,
  403: ADVICE.wrong_key_scope,
  422: ["The service did not accept this.", "Change it and send it again."],
  429: ["Too many requests with this key.", "Wait, then send again."],
  503: ["The service is busy.", "Your message was not taken. Send it again in a moment."],
};
const LOST = ["The answer got lost.", "Send again: the message counts once, however often it is sent."];

export class Problem extends Error {
  constructor({ status = 0, code = "unknown", detail = "", retryAfter = 0 }) {
    const [title, advice] = ADVICE[code] ?? ADVICE_BY_STATUS[status] ?? LOST;
    super(title);
    Object.assign(this, { status, code, title, advice, detail, retryAfter });
    // Whether it is certain that the service did not take the message. If not, only the same one may follow.
    this.refused = (status >= 400 && status < 500) || status === 503;
    this.forGood = status === 413 || status === 422;
  }
}

// crypto.randomUUID is missing on plain HTTP; this is not.
export function freshKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class Api {
  constructor(apiKey) {
    this.apiKey = apiKey;
  }

  scenarios = () => this.#json("GET", "/v1/scenarios");
  draw = (name, key) => this.#json("POST", `/v1/scenarios/${encodeURIComponent(name)}/draw`, key);
  show = (id) => this.#json("GET", `/v1/conversations/${encodeURIComponent(id)}`);
  outcome = (id) => this.#json("POST", `/v1/conversations/${encodeURIComponent(id)}/score`);

  // Sends a message and returns the whole answer; `onPreview` gets the reply as far as it is written.
  async send(id, text, key, onPreview) {
    const idle = new Idle();
    const path = `/v1/conversations/${encodeURIComponent(id)}/messages`;
    try {
      const response = await this.#fetch("POST", path, key, { text, stream: true }, idle);
      if (!response.headers.get("content-type")?.startsWith("text/event-stream")) return await response.json();
      let answer = null;
      let written = "";
      for await (const event of events(response.body, idle)) {
        if (event.type === "error") throw problemOf(response, event.data.error, 500);
        if (event.data.delta !== undefined) onPreview((written += event.data.delta));
        else if (event.data.state !== undefined) answer = event.data;
      }
      if (answer === null) throw new Problem({ code: "cut_off", detail: "The reply ended before it was whole." });
      return answer;
    } catch (error) {
      throw asProblem(error);
    } finally {
      idle.stop();
    }
  }

  async #json(method, path, key) {
    const idle = new Idle();
    try {
      return await (await this.#fetch(method, path, key, undefined, idle)).json();
    } catch (error) {
      throw asProblem(error);
    } finally {
      idle.stop();
    }
  }

  async #fetch(method, path, key, body, idle) {
    const headers = { Authorization: `Bearer ${this.apiKey}` };
    if (key) headers["Idempotency-Key"] = key;
    if (body) headers["Content-Type"] = "application/json";
    const response = await fetch(path, {
      method, headers, body: body && JSON.stringify(body), signal: idle.signal, credentials: "omit", cache: "no-store",
    });
    if (!response.ok) {
      const answer = await response.json().catch(() => ({}));
      throw problemOf(response, answer.error, response.status);
    }
    return response;
  }
}

function problemOf(response, error, status) {
  const retryAfter = Number(response.headers.get("retry-after")) || 0;
  return new Problem({ status, code: error?.code, detail: error?.message ?? "", retryAfter });
}

function asProblem(error) {
  if (error instanceof Problem) return error;
  const detail = error.name === "AbortError" ? "No answer came for too long." : "The connection to the service failed.";
  return new Problem({ code: "no_answer", detail });
}

// Gives up on a request of which nothing was heard for long; each piece that arrives starts the time anew.
class Idle {
  #controller = new AbortController();
  #timer = 0;

  constructor() {
    this.heard();
  }

  get signal() {
    return this.#controller.signal;
  }

  heard() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#controller.abort(), IDLE_MS);
  }

  stop() {
    clearTimeout(this.#timer);
  }
}

// Server-sent events with JSON data; ends at [DONE] or with the stream.
async function* events(body, idle) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    idle.heard();
    const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const field = (name) => lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trim());
      const data = field("data").join("\n");
      if (data === "[DONE]") return;
      if (data) yield { type: field("event")[0] ?? "message", data: JSON.parse(data) };
    }
  }
}
