"""The HTTP routes for browsers, providers and operators.

`links` is the page of a question. `redirect` sends the browser to a provider, `callbacks` receives
it back, and `returns` receives it back from an author's own service. `webhooks` receives what
payment providers send. `connections`, `payments` and `home` are a person's own pages, `decisions`
what they decide for others. `signin` and `openers` identify the viewer. A page's route receives a
`PageRequest`, calls the service, and returns a view of `webapp.pages`. `router` lists all routes. A
NotShown error carries the page for a viewer who may not continue.

Guarantees: a GET changes nothing except on the return from a provider. A form needs the CSRF token
of its page. A webhook is answered with 2xx only after it is stored. The package never imports
`webapp.mcp` or a concrete store, and names no provider.
"""
