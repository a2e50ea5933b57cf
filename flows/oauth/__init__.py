"""An account at a provider, by the authorization code flow with PKCE (RFC 6749, 7636, 9700).

The words: a *provider* is one declaration, a *client* our registration there, a *connection* an
account as it is kept, an `Account` what a tool gets. A conversation with a provider is a generator
of httpx requests that is sent responses: it opens no connection itself.

The one path: `discovery` (RFC 8414) -> `authorization_code.begin`, which makes state, PKCE and
nonce -> the browser comes back -> parameters, state and `iss` (RFC 9207) are checked -> `finish`
redeems the code, once -> `id_token` or the provider's own API says whose account it is ->
`connection`. Later: `refresh`, `revocation`. `device_flow` (RFC 8628) is for a terminal. `sign_in`
and `access_token` are about people and their callers at the server's own issuer.

Promised: state, PKCE, nonce, issuer and binding are checked here and never by a provider's
declaration; a code is redeemed once; an account leaves with the scopes that were granted, not
asked.
"""
