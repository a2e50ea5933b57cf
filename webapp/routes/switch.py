"""The dispatcher between our own routes and the served library's application."""

import logging
from http import HTTPStatus

from flows.question import asking
from webapp.http.answer import problem, send_answer
from webapp.http.connection import Receive, Scope, Send
from webapp.http.guard import PROBES
from webapp.http.parts import nothing_to_begin
from webapp.http.root_path import under
from webapp.routes.answers import Answers
from webapp.routes.router import Ours, is_ours, why_unknown
from webapp.server import MCP_PATH, HostedApplication
from webapp.service import Service

_log = logging.getLogger(__name__)


class Switch:
    """Sends each request to our routes, or to the served application if only it has the path.

    `call` is for paths whose first segment is that of the MCP endpoint.
    """

    def __init__(
        self,
        *,
        answers: Answers,
        served: HostedApplication,
        service: Service,
        root_path: str,
    ) -> None:
        parts = {"answers": answers, "served": served}
        self._ours = Ours(service=service, parts=parts, root_path=root_path)
        self._served = served
        self._service = service
        self._root_path = root_path
        self._has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # everything has started by now
            await nothing_to_begin(receive, send)
            return
        if not (is_own := is_ours(scope["path"])) and self._served.has_route(scope):
            await self._serve(scope, receive, send)
            return
        if scope["path"] == f"{MCP_PATH}/" and scope["type"] == "http":  # as the MCP libraries do
            to = {"location": MCP_PATH}
            await send_answer(under(self._root_path, send), HTTPStatus.TEMPORARY_REDIRECT, b"", to)
            return
        why = None if is_own else why_unknown(scope["path"], url=self._service.public_url)
        if why is not None:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("path.unknown: %s", why)
            if scope["type"] == "http" and scope["path"].endswith(PROBES):
                status = HTTPStatus.SERVICE_UNAVAILABLE
                body = problem(status, detail=why, code="path-unknown")
                await send_answer(send, status, body, {"content-type": "application/problem+json"})
                return
        await self._ours(scope, receive, send)

    async def call(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_server = self._served.server is not None
        is_call = has_server and scope["path"] == MCP_PATH and scope["type"] == "http"
        await (self._serve if is_call else self)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The author's own routes may complete questions: in trusted code, or with a return token.
        with asking(self._service.completing):
            await self._served(scope, receive, send)
