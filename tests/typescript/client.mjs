// A client that uses the official TypeScript libraries, like an agent's host.
//
// Its argument is JSON: the library, the server's address, the revision, the capabilities that it
// declares, its answers, and the delay before an answer. Each line on standard input is a call. The
// program prints each elicitation request, each notification of a completed elicitation, and the
// result of each call. It ends when its input ends.

import { createInterface } from 'node:readline';
import { setTimeout } from 'node:timers/promises';

const { library, url, revision, elicitation, answers } = JSON.parse(process.argv[2]);
const WHO = { name: 'typescript', version: '1' };

function print(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

async function answer({ params }) {
  print({ asked: params });
  const { afterSeconds, ...given } = answers.shift() ?? { action: 'accept' };
  if (afterSeconds === 'never') await new Promise(() => {});
  if (afterSeconds) await setTimeout(1000 * afterSeconds);
  return given;
}

function note({ params }) {
  print({ completed: params.elicitationId });
}

async function withEarlierLibrary() {
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

async function withCurrentLibrary() {
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

const [client, speaks] = await (library === 'sdk' ? withEarlierLibrary() : withCurrentLibrary());
print({ speaks, tools: (await client.listTools()).tools.map(({ name }) => name) });
for await (const line of createInterface({ input: process.stdin })) {
  try {
    print({ result: await client.callTool(JSON.parse(line)) });
  } catch (error) {
    const { name, message, code, data } = error;
    print({ error: { name, message, code, data } });
  }
}
await client.close();
