"""Who sent a webhook: signatures by the schemes that providers use.

A *scheme* says which headers and bytes are signed, by which function, how a time is written and how
far it may be off. `signatures` verifies by a scheme and a list of secrets, `certificates` by a
certificate that has to be fetched. A sender's own scheme stands beside its declaration.

Promised: what was not verified is another type than what was; secrets are compared in constant
time; an empty secret means that there is no endpoint; a time that is signed has to be near now.

What could go wrong: a body that is parsed before it is verified, or verified in another spelling
than it was signed in. So bytes come in as they arrived.
"""
