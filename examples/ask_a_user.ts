// Ask a user over the HTTP API, wait for what they say, and end the run.
//
//   ELICIT_URL=https://elicit.example ELICIT_API_KEY=elicit_key_... node ask_a_user.ts ann "order 8"
//
// Nothing to install: node 24 runs it as it stands (an older one: npx tsx). Started again, it goes on where it was.

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
const NOBODY = new Set([502, 503, 504]);
const AGAIN = new Set([
  "STORE_UNAVAILABLE", "ELICITATION_TOO_OFTEN", "QUESTION_BUSY", "TOO_MANY_OPEN",
]);
const PATIENCE_MS = 10 * 60 * 1000;

const server = process.env["ELICIT_URL"] ?? "http://127.0.0.1:8765";
const key = process.env["ELICIT_API_KEY"] ?? "";
const [user = "ann", run = "order 8"] = process.argv.slice(2);
const used: string[] = [];
const asked = new Map<string, number>();

/** What the server answers: asked again, after longer pauses, while nobody does. */
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
      if (reply.ok) return (await reply.json()) as T; // one that is cut off is no answer
      const problem = await reply.json().catch(() => ({}));
      const isNobody = problem.code === undefined && NOBODY.has(reply.status);
      if (!isNobody && !AGAIN.has(problem.code)) throw new Refused(problem.detail ?? reply.statusText);
      const seconds = Number(reply.headers.get("retry-after")) || 0; // a date is read as nothing
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

/** Ask it at its place in the run: how many equal ones came before it. */
async function ask(question: Question): Promise<State> {
  const place = JSON.stringify(question);
  const nth = asked.get(place) ?? 0;
  asked.set(place, nth + 1);
  let state = await send<State>("POST", "/api/questions", { ...question, user, run, nth });
  if (OPEN.has(state.status)) {
    console.log(`${state.message}\n${state.url}`);
    if (state.needs_code) await letters(state);
  }
  while (OPEN.has(state.status)) {
    state = await send<State>("GET", `/api/questions/${state.id}?wait=50`);
  }
  if (state.id !== null) used.push(state.id);
  return state;
}

/** With ELICIT_BIND=code the page shows eight letters, and the user types them here. */
async function letters(state: State): Promise<void> {
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
  // Keep what you got before the run ends: from then on the server has it no more.
  console.log(`Booked in ${city.content?.["response"]}.`);
} else {
  console.log(`Nothing booked: ${city.status}.`);
}
await send("POST", "/api/runs/end", { user, run, questions: used });
