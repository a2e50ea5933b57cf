// An OAuth 2 server on loopback with node-oauth2-server, without OpenID Connect. Everybody is alice.
//
// Each line on standard input is a new configuration in JSON. The program then prints the address.

import OAuth2Server from '@node-oauth/oauth2-server';
import { createServer } from 'node:http';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';

const { Request, Response } = OAuth2Server;
let oauth;

function serverFor({ clients = [] }) {
  const [codes, tokens] = [new Map(), new Map()];
  const withUser = (one, client, user) => ({ ...one, client, user });
  return new OAuth2Server({
    model: {
      getClient: (id, secret) => {
        const found = clients.find((one) => one.client_id === id && (secret === null || one.client_secret === secret));
        return found && { id, redirectUris: found.redirect_uris, grants: ['authorization_code', 'refresh_token'] };
      },
      saveAuthorizationCode: (code, client, user) => {
        codes.set(code.authorizationCode, withUser(code, client, user));
        return codes.get(code.authorizationCode);
      },
      getAuthorizationCode: (code) => codes.get(code),
      revokeAuthorizationCode: (code) => codes.delete(code.authorizationCode),
      saveToken: (token, client, user) => {
        const saved = withUser(token, client, user);
        tokens.set(token.accessToken, saved).set(token.refreshToken, saved);
        return saved;
      },
      getAccessToken: (token) => tokens.get(token),
      getRefreshToken: (token) => tokens.get(token),
      revokeToken: (token) => tokens.delete(token.refreshToken),
      validateScope: (user, client, scope) => scope ?? [],
      verifyScope: () => true,
    },
  });
}

async function answer(request, path, query) {
  const body = Object.fromEntries(new URLSearchParams(await text(request)));
  const asked = new Request({ method: request.method, headers: request.headers, query, body });
  const reply = new Response();
  if (path === '/authorize') {
    await oauth.authorize(asked, reply, { authenticateHandler: { handle: () => ({ id: 'alice' }) } });
  } else if (path === '/token') {
    await oauth.token(asked, reply);
  } else {
    const { user } = await oauth.authenticate(asked, reply);
    reply.body = { ...user, email: 'alice@acme.example' };
  }
  return reply;
}

const server = createServer((request, response) => {
  const { pathname, searchParams } = new URL(request.url, 'http://127.0.0.1');
  answer(request, pathname, Object.fromEntries(searchParams))
    .catch((error) => ({ status: error.code ?? 500, headers: {}, body: { error: error.name } }))
    .then(({ status, headers, body }) => {
      response.writeHead(status, { ...headers, 'content-type': 'application/json' });
      response.end(JSON.stringify(body ?? {}));
    });
});
server.listen(0, '127.0.0.1', async () => {
  for await (const line of createInterface({ input: process.stdin })) {
    oauth = serverFor(JSON.parse(line));
    console.log(JSON.stringify({ issuer: `http://127.0.0.1:${server.address().port}` }));
  }
  process.exit();
});
