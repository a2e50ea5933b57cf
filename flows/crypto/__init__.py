"""Tokens that travel, and the ring of secrets that every key is from.

`vault` derives keys from the operator's secrets (HKDF-SHA256), one for each purpose and day, and
wraps the data keys under which `webapp.records` seals rows. `tokens` makes what stands in a link, a
cookie or a `state`: sealed, signed around that, bound to a purpose, an origin and an end.

Promised: the newest secret seals and all open; the signature is checked before anything is opened;
a token is judged by what is inside, never by its text; 2 kB at most are looked at.

Imports errors only, and knows no elicitation.
"""
