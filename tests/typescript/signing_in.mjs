// A client that uses the official TypeScript libraries: it signs its user in, calls one tool, and ends.
//
// Its argument is JSON: the library, the server's address, the revision, and the registration of the
// client. The program prints the address of the sign-in page, and reads the redirect's query from
// standard input. Then it prints each elicitation request, and the result of the call.

import { createInterface } from 'node:readline';

const { library, url, revision, client_id, redirect, tool } = JSON.parse(process.argv[2]);
const WHO = { name: 'typescript', version: '1' };
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const saved = {};

function print(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

const provider = {
  redirectUrl: redirect,
  clientMetadata: { client_name: 'typescript', redirect_uris: [redirect] },
  clientInformation: () => ({ client_id }),
  tokens: () => saved.tokens,
  saveTokens: (tokens) => { saved.tokens = tokens; },
  redirectToAuthorization: (to) => print({ authorize: String(to) }),
  saveCodeVerifier: (verifier) => { saved.verifier = verifier; },
  codeVerifier: () => saved.verifier,
};

function answer({ params }) {
  print({ asked: params.url });
  return { action: 'accept' };
}

async function withEarlierLibrary() {
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

async function withCurrentLibrary() {
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

const [made, Transport] = await (library === 'sdk' ? withEarlierLibrary() : withCurrentLibrary());
const first = new Transport(new URL(url), { authProvider: provider });
try {
  await made().connect(first);
  print({ error: 'it was let in without a token' });
} catch (error) {
  if (error.message !== 'Unauthorized') throw error;
  const { code, iss } = JSON.parse((await lines.next()).value);
  await first.finishAuth(code, iss);
}
const client = made();
await client.connect(new Transport(new URL(url), { authProvider: provider }));
print({ result: (await client.callTool({ name: tool, arguments: {} })).content[0].text });
await client.close();
process.exit();
