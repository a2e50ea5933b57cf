"""An account at a provider, by the authorization code flow with PKCE (RFC 6749, 7636, 9700).

Terms: a *provider* is the declaration of a service, a *client* is this server's registration
there, a *connection* is a stored account, and an `Account` is what a tool gets. Each exchange with
a provider is a generator that yields httpx requests and receives responses. It does no I/O itself.

The flow: `discovery` (RFC 8414) -> `OauthFlow.begin`, with state, PKCE and nonce -> the
browser returns -> parameters, state and `iss` (RFC 9207) are checked -> `OauthFlow.finish` redeems
the code, once -> the id_token or the provider's own API says whose account it is -> `connection`.
Later: `refresh`, `revocation`. `device_flow` (RFC 8628) is for a terminal. `sign_in` and
`access_token` verify people and callers at the server's own issuer.

Guarantees: state, PKCE, nonce, issuer and binding are checked here. A provider's declaration can
turn off only PKCE (never for a public client) and the nonce (if the provider's API names the
person). A code is redeemed once. An account has the scopes that were granted, not requested.
"""
