"""The sandbox: an authorization server and checkouts that work offline, for demo and tests.

Nothing in it is real, and it is reached only over HTTP: no flow imports it. `authorization` plays
GitHub, Slack and a provider of OpenID Connect. `checkout` has what all payment providers do alike:
a sale that is opened, paid, refunded and disputed, the page on which a person presses a
button, an API that does a thing once under each key, and webhooks that arrive as badly as a test
asks for. `stripe`, `paypal` and `mollie` have what is their own: how a sale is written, which
buttons its page has, what is told of a change. `beside` serves it with an application that its
author serves.

The path of a payment: a program opens a sale at the provider's API, the person presses a button
of its page, the sale changes in the sales, and the sales tells the server with an event.
"""

from webapp.sandbox.settings import Sandbox, new_sandbox

__all__ = ["Sandbox", "new_sandbox"]
