// A client of the official TypeScript libraries, as a model's host would run it.
//
// Its argument is JSON: which library, where, on which revision, what it declares, what it answers
// and after how long.
// Each line on its input is a call; lines on its output say what it was asked, which interactions
// it was told are complete, and what came of the call. It ends with its input.

import { createInterface } from 'node:readline';
import { setTimeout } from 'node:timers/promises';

const { library, url, revision, elicitation, answers } = JSON.parse(process.argv[2]);
const WHO = { name: 'typescript', version: '1' };

function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

async function answer({ params }) {
  say({ asked: params });
  const { afterSeconds, ...given } = answers.shift() ?? { action: 'accept' };
  if (afterSeconds === 'never') await new Promise(() => {});
  if (afterSeconds) await setTimeout(1000 * afterSeconds);
  return given;
}

function note({ params }) {
  say({ completed: params.elicitationId });
}

async function older() {
  const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
  const { StreamableHTTPClientTransport } = await import(
    '@modelcontextprotocol/sdk/client/streamableHttp.js'
  );
  const { ElicitRequestSchema, ElicitationCompleteNotificationSchema } = await import(
    '@modelcontextprotocol/sdk/types.js'
  );
  const client = new Client(WHO, { capabilities: elicitation ? { elicitation } : {} });
  if (elicitation) client.setRequestHandler(ElicitRequestSchema, answer);
  client.setNotificationHandler(ElicitationCompleteNotificationSchema, note);
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return [client, client.transport.protocolVersion];
}

async function newer() {
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  const mode = revision === '2025-11-25' ? 'legacy' : { pin: revision };
  const client = new Client(WHO, {
    capabilities: elicitation ? { elicitation } : {},
    versionNegotiation: { mode },
  });
  if (elicitation) client.setRequestHandler('elicitation/create', answer);
  if (mode === 'legacy') client.setNotificationHandler('notifications/elicitation/complete', note);
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  return [client, client.getNegotiatedProtocolVersion()];
}

const [client, speaks] = await (library === 'sdk' ? older() : newer());
say({ speaks, tools: (await client.listTools()).tools.map(({ name }) => name) });
for await (const line of createInterface({ input: process.stdin })) {
  try {
    say({ result: await client.callTool(JSON.parse(line)) });
  } catch (error) {
    const { name, message, code, data } = error;
    say({ error: { name, message, code, data } });
  }
}
await client.close();
