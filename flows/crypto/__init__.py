"""Encrypted tokens, and the ring of secrets from which all keys are derived.

`Ring` derives keys from the operator's secrets (HKDF-SHA256), one for each purpose and day, and
wraps the data keys with which `webapp.records` encrypts rows. `Tokens` creates the content of
links, cookies and `state` parameters: encrypted, then signed, and bound to a purpose, an origin and
an expiry.

Guarantees: the newest secret encrypts, and all secrets decrypt. The signature is checked before
anything is decrypted. Compare two tokens by their contents, not by their texts: the same content
can be written as different base64 texts. Tokens above 2 kB are rejected.

This package imports errors only, and does not depend on elicitations.
"""
