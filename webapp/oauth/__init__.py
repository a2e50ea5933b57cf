"""Accounts, acted out: the code is redeemed, the account kept, refreshed and given back.

`code_exchange` is the one place where a code is redeemed, `accounts` the kind `oauth`,
`connections` what is kept, `access_tokens` hands out a token and refreshes it once across
processes, `avatars` fetches pictures, `clients` has our registrations.

Promised: a refresh that two processes want happens once; an account is shared with the tool and the
client that the person allowed, and no other; a dead provider costs one call, not all.
"""
