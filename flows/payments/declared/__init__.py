"""Payment providers as data: a table in `elicit.toml`, or one of the catalog.

`declaration` says what a provider's API and webhooks look like: addresses, where things stand in
its JSON (`mapping`), what is sent (`templates`). `reader` reads a reply by it, `gateway` speaks by
it, as `flows.payments.gateway` wants of every provider.

What could go wrong: a declaration that takes somebody else's word for money. So it says only where
things stand; what they must be is held against what was asked, as for every other provider.
"""
