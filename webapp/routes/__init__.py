"""The HTTP routes for browsers, providers and operators.

`links` is the page of a question. `redirect` sends the browser to a provider, and `callbacks`
handles the browser's return from a provider or from an author's own service. `webhooks` receives
the webhooks of payment providers. `connections` and `payments` are a person's own pages, and `home`
is the home page. `decisions` is the inbox of questions that a person decides for others. `signin`
and `openers` identify the viewer. A page's route receives a `PageRequest`, calls the service, and
returns a view of `webapp.pages`. `router` lists all routes. A NotShown error carries the page for a
viewer who may not continue.

Guarantees: a GET changes nothing, except when the browser returns from a provider or from an
author's service. A form needs the CSRF token of its page. A webhook is answered with 2xx only after
it is stored. The package never imports `webapp.mcp` or a concrete store, and names no provider.
"""
