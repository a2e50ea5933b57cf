"""Webhook verification: signatures in the schemes that providers use.

A *scheme* says which headers and bytes are signed, with which function, how the time is written and
how far it may be off. `signatures` verifies by a scheme and a list of secrets, `certificates` by a
certificate that is fetched. A sender's own scheme is next to its declaration.

Guarantees: verified and unverified data have different types. Secrets are compared in constant
time. Without a secret there is no endpoint. A signed time has to be close to now.

Risks: a body is parsed before it is verified, or verified in another encoding than it was signed
in. Bodies are therefore passed as the bytes that arrived.
"""
