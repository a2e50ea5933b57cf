"""Which of two applications a request is for: our own routes, or the served library's."""

import logging
from http import HTTPStatus

from flows.question import asking
from webapp.http.address import PLAIN_PATH
from webapp.http.answer import problem, send_answer
from webapp.http.connection import Receive, Scope, Send
from webapp.http.guard import PROBES
from webapp.http.parts import bring, nothing_to_begin
from webapp.http.requests import Bounded
from webapp.http.root_path import under
from webapp.identity.users import note_request
from webapp.routes.answers import Answers
from webapp.routes.router import is_ours, routes
from webapp.server import MCP_PATH, HostedApplication
from webapp.service import Service

_log = logging.getLogger(__name__)


class Switch:
    """Sends a request to our routes, or to the served library's application for paths we lack."""

    def __init__(
        self,
        *,
        answers: Answers,
        served: HostedApplication,
        service: Service,
        root_path: str,
    ) -> None:
        self._ours = Bounded(routes())
        self._served = served
        self._service = service
        self._root_path = root_path
        self._parts = {"service": service, "answers": answers, "served": served}
        self._is_told = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # it all runs by now
            await nothing_to_begin(receive, send)
            return
        if not (is_own := is_ours(scope["path"])) and self._served.has_route(scope):
            # A route of the author's may complete, in trusted code or with a return token.
            with asking(self._service.completing):
                await self._served(scope, receive, send)
            return
        if scope["path"] == f"{MCP_PATH}/" and scope["type"] == "http":  # as the libraries do
            to = {"location": MCP_PATH}
            await send_answer(under(self._root_path, send), HTTPStatus.TEMPORARY_REDIRECT, b"", to)
            return
        if not is_own and (why := self._why_unknown(scope["path"])) is not None:
            if not self._is_told:
                self._is_told = True
                _log.warning("path.unknown: %s", why)
            if scope["type"] == "http" and scope["path"].endswith(PROBES):
                status = HTTPStatus.SERVICE_UNAVAILABLE
                body = problem(status, detail=why, code="path-unknown")
                await send_answer(send, status, body, {"content-type": "application/problem+json"})
                return
        note_request(scope)
        bring(scope, self._parts)
        await self._ours(scope, receive, under(self._root_path, send))

    def _why_unknown(self, path: str) -> str | None:
        """For the operator: what a path says that would be ours without what it begins with."""
        prefix, _, rest = path[1:].partition("/")
        if not (rest and PLAIN_PATH.fullmatch(f"/{prefix}") and is_ours(f"/{rest}")):
            return None
        url = self._service.public_url
        return (
            f"A proxy keeps a path that ELICIT_URL ({url}) lacks: set ELICIT_URL to "
            f"{url}/{prefix}, or have the proxy take it off."
        )
