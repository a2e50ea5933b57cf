"""The route `/metrics`, for requests with the token of ELICIT_METRICS.

Without ELICIT_METRICS, this server has no metrics page, and the author's application can use the
path. The metrics page runs before all other routes, so that it responds when they are slow.
"""

import secrets
from http import HTTPStatus

from webapp.collector import Collector
from webapp.http.exchange import ASGIApp, Receive, Scope, Send, facts_of, problem, send_answer
from webapp.telemetry.families import MEDIA_TYPE

PATH = "/metrics"
_PROBLEM = "application/problem+json"
_NO_STORE = {"cache-control": "no-store"}


def metrics_page(app: ASGIApp, *, collector: Collector, token: str) -> ASGIApp:
    """Return the application of the metrics page. Paths below the page go to `app`."""

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await app(scope, receive, send)
            return
        is_head = scope["method"] == "HEAD"
        if not is_head and scope["method"] != "GET":
            status, about = HTTPStatus.METHOD_NOT_ALLOWED, {"allow": "GET, HEAD"}
            await _refuse(send, status, about, "Read the metrics with GET.")
        elif not _is_known(facts_of(scope).headers.get(b"authorization", []), token=token):
            status, about = HTTPStatus.UNAUTHORIZED, {"www-authenticate": "Bearer"}
            detail = (
                "Send the token that is set in ELICIT_METRICS, in the header Authorization: Bearer "
                "TOKEN."
            )
            await _refuse(send, status, about, detail)
        else:
            page = await collector.page()
            about = {**_NO_STORE, "content-type": MEDIA_TYPE}
            await send_answer(send, HTTPStatus.OK, page, about, is_head=is_head)

    return route


def _is_known(credentials: list[str], *, token: str) -> bool:
    if len(credentials) != 1:
        return False
    scheme, _, given = credentials[0].partition(" ")
    is_bearer = scheme.lower() == "bearer"
    return secrets.compare_digest(given.strip().encode(), token.encode()) and is_bearer


async def _refuse(send: Send, status: HTTPStatus, about: dict[str, str], detail: str) -> None:
    body = problem(status, detail=detail, code="metrics-refused")
    await send_answer(send, status, body, {**_NO_STORE, "content-type": _PROBLEM, **about})
