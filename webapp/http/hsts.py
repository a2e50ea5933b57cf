"""Strict-Transport-Security (RFC 6797): browsers use only https for this host for some time.

Risks: the header applies to every port of the host and cannot be revoked before it expires, so
other services on the host become unreachable over http. The operator therefore has to enable it. It
never includes subdomains (includeSubDomains), which may not belong to the operator.
"""

from datetime import timedelta

from webapp.http.connection import ASGIApp, Message, Receive, Scope, Send


class StrictTransport:
    """Middleware that adds the header to every response."""

    def __init__(self, app: ASGIApp, *, life: timedelta) -> None:
        self._app = app
        value = f"max-age={int(life.total_seconds())}"
        self._header = (b"strict-transport-security", value.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def adding(message: Message) -> None:
            if message["type"].endswith("http.response.start"):
                message = {**message, "headers": [*message.get("headers", ()), self._header]}
            await send(message)

        await self._app(scope, receive, adding)
