// Ask a user over the HTTP API, wait for the answer, and end the run.
//
//   ELICIT_URL=https://elicit.example ELICIT_API_KEY=elicit_key_... node ask_a_user.ts ann "order 8"
//
// Node 24 runs this file without other packages (older versions: npx tsx). After an interruption, start
// it again: it resumes the same run.

import { createInterface } from "node:readline/promises";

type Kind = "url" | "oauth" | "payment" | "form" | "confirm" | "secret";
type Question = { kind: Kind; [field: string]: unknown };
type State = {
  id: string | null;
  status: string;
  message: string;
  url: string | null;
  needs_code: boolean;
  content: Record<string, unknown> | null;
};

const OPEN = new Set(["pending", "opened", "exchanging"]);
const GATEWAY_ERRORS = new Set([502, 503, 504]);
const AGAIN = new Set([
  "STORE_UNAVAILABLE", "ELICITATION_TOO_OFTEN", "QUESTION_BUSY", "TOO_MANY_OPEN",
]);
const PATIENCE_MS = 10 * 60 * 1000;

const server = process.env["ELICIT_URL"] ?? "http://127.0.0.1:8765";
const key = process.env["ELICIT_API_KEY"] ?? "";
const [user = "ann", run = "order 8"] = process.argv.slice(2);
const used: string[] = [];
const asked = new Map<string, number>();

/** Return the server's response. Retry with longer pauses while the server does not respond. */
async function send<T>(method: string, path: string, body?: object): Promise<T> {
  const giveUpAt = Date.now() + PATIENCE_MS;
  for (let pause = 100; ; pause = Math.min(2 * pause, 10_000)) {
    let why: unknown;
    try {
      const reply = await fetch(server + path, {
        method,
        headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
        body: body === undefined ? null : JSON.stringify(body),
      });
      if (reply.ok) return (await reply.json()) as T; // a truncated body throws, and is retried
      const problem = await reply.json().catch(() => ({}));
      const isGateway = problem.code === undefined && GATEWAY_ERRORS.has(reply.status);
      if (!isGateway && !AGAIN.has(problem.code)) throw new Refused(problem.detail ?? reply.statusText);
      const seconds = Number(reply.headers.get("retry-after")) || 0; // ignores a date
      pause = Math.max(pause, 1000 * Math.min(seconds, 60));
      why = reply.status;
    } catch (error) {
      if (error instanceof Refused) throw error;
      why = error;
    }
    if (Date.now() > giveUpAt) throw new Error(`${server} does not answer: ${why}`);
    await new Promise((resume) => setTimeout(resume, pause));
  }
}

class Refused extends Error {}

/** Ask the question. `nth` is the number of equal questions that this run has asked before. */
async function ask(question: Question): Promise<State> {
  const place = JSON.stringify(question);
  const nth = asked.get(place) ?? 0;
  asked.set(place, nth + 1);
  let state = await send<State>("POST", "/api/questions", { ...question, user, run, nth });
  if (OPEN.has(state.status)) {
    console.log(`${state.message}\n${state.url}`);
    if (state.needs_code) await askForCode(state);
  }
  while (OPEN.has(state.status)) {
    state = await send<State>("GET", `/api/questions/${state.id}?wait=50`);
  }
  if (state.id !== null) used.push(state.id);
  return state;
}

/** Ask for the code of eight letters that the page shows if ELICIT_BIND=code is set. */
async function askForCode(state: State): Promise<void> {
  const terminal = createInterface({ input: process.stdin, output: process.stdout });
  for (let said: string | null = "Type the eight letters that the page shows."; said !== null; ) {
    const code: string = await terminal.question(`${said} `);
    const path = `/api/questions/${state.id}/user-code`;
    said = (await send<{ says: string | null }>("POST", path, { code })).says;
  }
  terminal.close();
}

const city = await ask({ kind: "form", message: "Which city?" });
if (city.status === "accepted") {
  // Store the answer before you end the run, because the server then deletes it.
  console.log(`Booked in ${city.content?.["response"]}.`);
} else {
  console.log(`Nothing booked: ${city.status}.`);
}
await send("POST", "/api/runs/end", { user, run, questions: used });
