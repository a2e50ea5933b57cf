"""Strict-Transport-Security (RFC 6797): browsers come back by https alone, for so many seconds.

What could go wrong: a host is locked out of http that serves something else there, as the header
holds for every port of the name, and nobody can take it back before its time. So the operator has
to ask for it; and never for the names below (includeSubDomains), which are not ours to decide.
"""

import re
from collections.abc import Mapping
from datetime import timedelta

from webapp.http.connection import ASGIApp, Message, Receive, Scope, Send

NAME = "ELICIT_HSTS"


def read_hsts(environment: Mapping[str, str], problems: list[str], *, url: str) -> timedelta | None:
    """None where it is not asked for; with 0 seconds browsers forget it."""
    text = environment.get(NAME, "").strip()
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,9}", text):
        problems.append(f"{NAME}: it is a number of seconds, as 86400 for a day.")
        return None
    if not url.startswith("https:"):
        problems.append(f"{NAME}: it is for a server behind https, and ELICIT_URL is {url}.")
    return timedelta(seconds=int(text))


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
