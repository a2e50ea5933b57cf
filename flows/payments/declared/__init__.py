"""Payment providers described as data: a table in `elicit.toml`. `examples/payments` has some.

`declaration` describes a provider's API and webhooks: addresses, where values are in its JSON
(`mapping`), and what is sent (`templates`). `reader` reads a reply by the declaration, and
`gateway` implements flows.payments.gateway with it.

Risks: a declaration accepts another party's claim as a payment. A declaration therefore only says
where values are. The values themselves are compared with the question, as for every other provider.
"""
