"""The sandbox: an authorization server and checkouts that work offline, for the demo and tests.

Nothing in the sandbox is real. It is reached only over HTTP, and no flow imports it.
`authorization` simulates GitHub, Slack and an OpenID Connect provider. `checkout` has what all
payment providers have in common: a sale that is opened, paid, refunded and disputed, its payment
page, an API with idempotency keys, and webhooks that can arrive twice, late or never.
`stripe`, `paypal` and `mollie` have what differs: the format of a sale, the buttons of its page,
and the events. `app` serves all these providers on one origin.

A payment works like this: a program opens a sale at the provider's API, the person presses a button
on its page, the sale changes, and the sandbox sends an event to the server.
"""

from webapp.sandbox.settings import Sandbox, new_sandbox

__all__ = ["Sandbox", "new_sandbox"]
