"""OAuth accounts: redeems codes, stores accounts, refreshes tokens and revokes them.

`code_exchange` is the only place that redeems a code. `accounts` is the kind `oauth`, and
`connections` stores accounts. `access_tokens` returns a token and refreshes it once across
processes. `clients` has this server's registrations.

Guarantees: if two processes want a refresh, it happens once; an account is shared only with the
tool and the client that the person allowed; an unreachable provider costs one call, not all.
"""
