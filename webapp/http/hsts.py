"""Strict-Transport-Security (RFC 6797): browsers come back by https alone, for so many seconds.

What could go wrong: a host is locked out of http that serves something else there, as the header
holds for every port of the name, and nobody can take it back before its time. So the operator has
to ask for it; and never for the names below (includeSubDomains), which are not ours to decide.
"""

from datetime import timedelta

from webapp.http.connection import ASGIApp, Message, Receive, Scope, Send


class StrictTransport:
    """Adds the header to every answer."""

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
