// An OpenID provider on loopback, for tests. People sign in with a name and no password.
//
// Each line on standard input is a complete configuration in JSON, which replaces the one before. The
// program then prints the address. Only the keys stay the same. The program ends when its input ends.

import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createServer as createSecureServer } from 'node:https';
import { createInterface } from 'node:readline';
import { text } from 'node:stream/consumers';

import Provider, { errors, interactionPolicy } from 'oidc-provider';

console.info = console.error; // otherwise its notices would be printed between our lines

// With a file that contains a key and a certificate, it serves TLS and can listen on other addresses.
const { PROVIDER_HOST: host = '127.0.0.1', PROVIDER_TLS: tls } = process.env;
const INTERACTION = '/interaction/';
const keys = new Map();

function keyOf({ kid, alg }) {
  if (!keys.has(kid)) {
    const pair = alg.startsWith('Ed')
      ? generateKeyPairSync('ed25519')
      : alg.startsWith('ES')
        ? generateKeyPairSync('ec', { namedCurve: 'P-256' })
        : generateKeyPairSync('rsa', { modulusLength: 2048 });
    keys.set(kid, pair.privateKey.export({ format: 'jwk' }));
  }
  return { ...keys.get(kid), kid, alg, use: 'sig' };
}

function prompts(names) {
  const policy = interactionPolicy.base();
  if (names.includes('select_account')) {
    policy.add(new interactionPolicy.Prompt({ name: 'select_account', requestable: true }), 0);
  }
  return policy;
}

function providerOf(issuer, wanted) {
  const { accounts, resources, seconds } = wanted;
  const alg = wanted.keys[0].alg; // the first key signs
  return new Provider(issuer, {
    clients: wanted.clients,
    clientDefaults: {
      grant_types: ['authorization_code', 'refresh_token'],
      id_token_signed_response_alg: alg,
    },
    jwks: { keys: wanted.keys.map(keyOf) },
    cookies: { keys: [randomBytes(32).toString('hex')] },
    claims: { openid: ['sub'], profile: ['name', 'preferred_username'], email: ['email'] },
    scopes: ['openid', 'offline_access'],
    pkce: { required: () => true },
    enabledJWA: {
      idTokenSigningAlgValues: ['RS256', 'PS256', 'ES256', 'EdDSA'],
      userinfoSigningAlgValues: ['RS256', 'PS256', 'ES256', 'EdDSA'],
    },
    clientAuthMethods: [
      'none', 'client_secret_basic', 'client_secret_post', 'client_secret_jwt', 'private_key_jwt',
    ],
    rotateRefreshToken: true,
    clientBasedCORS: () => false,
    interactions: { url: (_, { uid }) => INTERACTION + uid, policy: prompts(wanted.prompts) },
    ttl: {
      AccessToken: (_, token) => token.resourceServer?.accessTokenTTL ?? seconds.access_token,
      AuthorizationCode: () => 60,
      DeviceCode: () => seconds.device_code,
      Grant: () => 3600,
      IdToken: () => seconds.id_token,
      Interaction: () => 600,
      RefreshToken: () => 3600,
      Session: () => 3600,
    },
    findAccount: (_, sub) =>
      accounts[sub] && { accountId: sub, claims: () => ({ sub, ...accounts[sub] }) },
    features: {
      devInteractions: { enabled: false },
      deviceFlow: { enabled: true },
      dPoP: wanted.dpop
        ? { enabled: true, nonceSecret: randomBytes(32), requireNonce: () => true }
        : { enabled: false },
      jwtUserinfo: { enabled: true },
      pushedAuthorizationRequests: {
        enabled: Boolean(wanted.par),
        requirePushedAuthorizationRequests: wanted.par === 'required',
      },
      introspection: { enabled: true },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        useGrantedResource: () => true,
        getResourceServerInfo(_, resource) {
          if (!Object.hasOwn(resources, resource)) throw new errors.InvalidTarget();
          const { scope, audience = resource, seconds: life, format = 'jwt' } = resources[resource];
          return {
            scope,
            audience,
            accessTokenTTL: life,
            accessTokenFormat: format,
            jwt: { sign: { alg } },
          };
        },
      },
    },
  });
}

async function page(provider, request, response) {
  const { prompt, session } = await provider.interactionDetails(request, response);
  const who = `<label>Who are you? <input type="text" name="login" value="${session?.accountId ?? ''}"></label>`;
  const words = prompt.name === 'consent' ? '' : who;
  response.setHeader('content-type', 'text/html; charset=utf-8');
  response.end(`<!doctype html><html lang="en"><title>${prompt.name}</title>
<form method="post" action="${request.url}">${words}
<label>Go on? <input type="text" name="decision" value="yes"></label><button>Send</button></form></html>`);
}

async function granted(provider, { prompt, params, session, grantId }) {
  const grant = grantId
    ? await provider.Grant.find(grantId)
    : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  const { missingOIDCScope, missingOIDCClaims, missingResourceScopes } = prompt.details;
  if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(' '));
  if (missingOIDCClaims) grant.addOIDCClaims(missingOIDCClaims);
  for (const [resource, scopes] of Object.entries(missingResourceScopes ?? {})) {
    grant.addResourceScope(resource, scopes.join(' '));
  }
  return grant.save();
}

async function answer(provider, request, response) {
  const details = await provider.interactionDetails(request, response);
  const form = new URLSearchParams(await text(request));
  const { name } = details.prompt;
  let result;
  if (form.get('decision') !== 'yes') {
    result = { error: 'access_denied', error_description: 'The person declined.' };
  } else if (name === 'consent') {
    result = { consent: { grantId: await granted(provider, details) } };
  } else {
    result = { [name]: {}, login: { accountId: form.get('login') } };
  }
  await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: true });
}

let current;

function answered(request, response) {
  if (!request.url.startsWith(INTERACTION)) {
    current.callback()(request, response);
    return;
  }
  const act = request.method === 'POST' ? answer : page;
  act(current, request, response).catch((error) => {
    response.statusCode = 400;
    response.end(String(error));
  });
}

const pem = tls && readFileSync(tls);
const server = tls ? createSecureServer({ key: pem, cert: pem }, answered) : createServer(answered);
server.listen(0, host, async () => {
  const issuer = `${tls ? 'https' : 'http'}://${host}:${server.address().port}`;
  for await (const line of createInterface({ input: process.stdin })) {
    try {
      current = providerOf(issuer, JSON.parse(line));
      console.log(JSON.stringify({ issuer }));
    } catch (error) {
      console.log(JSON.stringify({ error: `${error} ${error.error_description ?? ''}` }));
    }
  }
  process.exit();
});
