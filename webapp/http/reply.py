"""A response that can set several cookies, in its own module: it needs the web framework."""

from collections.abc import Sequence
from typing import Any, cast

from litestar import Response
from litestar.response.base import ASGIResponse

from webapp.http.browser import FirstCookie


class Reply(Response[Any]):
    """A response that can set several cookies; each is a full Set-Cookie header."""

    def __init__(self, content: object, *, sets: Sequence[str] = (), **options: Any) -> None:
        super().__init__(content, **options)
        self.sets = tuple(sets)

    def to_asgi_response(self, *given: Any, **options: Any) -> ASGIResponse:
        response = cast("ASGIResponse", cast("Any", super()).to_asgi_response(*given, **options))
        for cookie in self.sets:
            response.headers.add("set-cookie", cookie)
        if any(isinstance(cookie, FirstCookie) and cookie.clears for cookie in self.sets):
            response.headers["clear-site-data"] = '"storage"'
        return response
