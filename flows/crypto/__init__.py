"""Tokens that travel, and the vault that keeps: everything that has to do with a key.

`vault` derives keys from the operator's secrets (HKDF-SHA256), one for each purpose and day, seals
rows under a key of their owner's (AES-256-GCM) and re-wraps those keys. `tokens` makes what stands
in a link, a cookie or a `state`: sealed, signed around that, bound to a purpose, an origin and an
end.

Promised: the newest secret seals and all open; the signature is checked before anything is opened;
a token is judged by what is inside, never by its text; 2 kB at most are looked at.

Imports errors only, and knows no elicitation.
"""
