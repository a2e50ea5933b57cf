"""What browsers, providers and operators reach over HTTP.

`links` is the page of a question, `callbacks` and `redirect` the way to a provider and back,
`returns` the way back to an author's own service, `webhooks` what payment providers send;
`connections`, `payments`, `home` are a person's own pages, `decisions` what they decide for others,
`signin` and `openers` say who looks. A route of a page is given a `PageRequest`, which is read
once, asks the service, and answers with a view of `webapp.pages`; `router` has them all. Whoever
may not go on is told so by the page that a NotShown carries.

Promised: a GET changes nothing; a POST has a token of its page; a webhook is answered 2xx only
after it is durable. Never imports `webapp.mcp` or a concrete store, and knows no provider by name.
"""
