// oauth2-mock-server on loopback: everybody is johndoe. A line on its output says where it is.

import { randomUUID } from 'node:crypto';

import { OAuth2Server } from 'oauth2-mock-server';

const server = new OAuth2Server();
await server.issuer.keys.generate('RS256');
// Without this, its access tokens have no audience, and no resource server accepts them.
server.service.on('beforeTokenSigning', (token, request) => {
  token.payload.jti = randomUUID(); // otherwise two tokens of one second are the same
  if (!token.payload.aud) {
    token.payload.aud = request.body.resource;
    token.payload.client_id = request.body.client_id;
  }
});
await server.start(0, '127.0.0.1');
process.stdin.on('data', () => console.log(JSON.stringify({ issuer: server.issuer.url })));
process.stdin.on('end', () => process.exit());
