// A client of the official TypeScript libraries that signs its person in, calls one tool, and ends.
//
// Its argument is JSON: which library, where, on which revision, and its registration. Lines on its
// output say where the person is to sign in (what came back is a line on its input), what they are
// asked, and what came of the call.

import { createInterface } from 'node:readline';

const { library, url, revision, client_id, redirect, tool } = JSON.parse(process.argv[2]);
const WHO = { name: 'typescript', version: '1' };
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const kept = {};

function say(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

const provider = {
  redirectUrl: redirect,
  clientMetadata: { client_name: 'typescript', redirect_uris: [redirect] },
  clientInformation: () => ({ client_id }),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => { kept.tokens = tokens; },
  redirectToAuthorization: (to) => say({ authorize: String(to) }),
  saveCodeVerifier: (verifier) => { kept.verifier = verifier; },
  codeVerifier: () => kept.verifier,
};

function answer({ params }) {
  say({ asked: params.url });
  return { action: 'accept' };
}

async function older() {
  const { Client } = await import('@modelcontextprotocol/sdk/client/index.js');
  const { StreamableHTTPClientTransport } = await import(
    '@modelcontextprotocol/sdk/client/streamableHttp.js'
  );
  const { ElicitRequestSchema } = await import('@modelcontextprotocol/sdk/types.js');
  const made = () => {
    const client = new Client(WHO, { capabilities: { elicitation: { url: {} } } });
    client.setRequestHandler(ElicitRequestSchema, answer);
    return client;
  };
  return [made, StreamableHTTPClientTransport];
}

async function newer() {
  const { Client, StreamableHTTPClientTransport } = await import('@modelcontextprotocol/client');
  const mode = revision === '2025-11-25' ? 'legacy' : { pin: revision };
  const made = () => {
    const client = new Client(WHO, {
      capabilities: { elicitation: { url: {} } },
      versionNegotiation: { mode },
    });
    client.setRequestHandler('elicitation/create', answer);
    return client;
  };
  return [made, StreamableHTTPClientTransport];
}

const [made, Transport] = await (library === 'sdk' ? older() : newer());
const first = new Transport(new URL(url), { authProvider: provider });
try {
  await made().connect(first);
  say({ error: 'it was let in without a token' });
} catch (error) {
  if (error.message !== 'Unauthorized') throw error;
  const { code, iss } = JSON.parse((await lines.next()).value);
  await first.finishAuth(code, iss);
}
const client = made();
await client.connect(new Transport(new URL(url), { authProvider: provider }));
say({ result: (await client.callTool({ name: tool, arguments: {} })).content[0].text });
await client.close();
process.exit();
