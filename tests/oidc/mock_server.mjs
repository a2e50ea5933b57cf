// Serves oauth2-mock-server on loopback. Everybody who signs in is johndoe. The server prints its
// address.

import { randomUUID } from 'node:crypto';

import { OAuth2Server } from 'oauth2-mock-server';

const server = new OAuth2Server();
await server.issuer.keys.generate('RS256');
// By default, access tokens have no audience, and no resource server accepts them.
server.service.on('beforeTokenSigning', (token, request) => {
  token.payload.jti = randomUUID(); // otherwise two tokens that are issued in the same second are equal
  if (!token.payload.aud) {
    token.payload.aud = request.body.resource;
    token.payload.client_id = request.body.client_id;
  }
});
await server.start(0, '127.0.0.1');
process.stdin.on('data', () => console.log(JSON.stringify({ issuer: server.issuer.url })));
process.stdin.on('end', () => process.exit());
