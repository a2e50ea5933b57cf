"""The home page, the static assets, and the health checks of this process."""

import gzip
from functools import cache
from http import HTTPStatus
from typing import Any

from litestar import Request, Response, route
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from webapp.http.browser import query_of
from webapp.http.parts import READ, part
from webapp.http.port import proof
from webapp.pages.renderer import name_of, our_files, without_hash
from webapp.pages.views_own import Home, UsersHome
from webapp.routes.page_request import CurrentPage
from webapp.server import HostedApplication
from webapp.service import Service

_answers = part("answers")
_FOREVER = "public, max-age=31536000, immutable"
_SHORTLY = "max-age=3600"
# Images are compressed already.
_TEXTS = frozenset({"text/css", "text/javascript", "image/svg+xml"})


@route("/", http_method=READ)
async def home(page: CurrentPage, served: NamedDependency[HostedApplication]) -> Response[Any]:
    """Show what this server is and how to add it.

    List its tools only for viewers who may call them.
    """
    service = page.service
    if served.server is None:
        return page.answers.page(UsersHome(server=page.answers.server))
    is_closed = service.identity.signing_in is not None or served.has_own_sign_in
    shows_tools = not is_closed or await page.viewer()
    view = Home(
        server=page.answers.server,
        mcp_url=f"{service.public_url}/mcp",
        tools=await served.tools() if shows_tools else (),
        sandbox_url=service.sandbox_url,
    )
    return page.answers.page(view)


@route(["/static/{name:str}", "/static/own/{own:str}"], http_method=READ, sync_to_thread=False)
def static(
    request: Request[Any, Any, Any], name: FromPath[str] = "", own: FromPath[str] = ""
) -> Response[bytes]:
    """Return a static asset of this server, of the brand or of the operator."""
    pages = _answers(request).pages
    asked, files = name or f"own/{own}", {**pages.files, **our_files()}
    plain = asked if asked in files else without_hash(asked)
    if plain not in files:
        raise NotFoundException
    content, media_type = files[plain]
    is_named = plain in pages.brand.files or asked == name_of(plain, content)
    headers = {
        "cache-control": _FOREVER if is_named else _SHORTLY,
        "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
        "x-content-type-options": "nosniff",
        "cross-origin-resource-policy": "same-origin",
    }
    if media_type in _TEXTS:
        headers["vary"] = "accept-encoding"
        if "gzip" in request.headers.get("accept-encoding", ""):
            # Static files only. A compressed page would reveal its CSRF token by its size to an
            # attacker who can put text into the page (BREACH).
            content, headers["content-encoding"] = _compressed(content), "gzip"
    return Response(content, media_type=media_type, headers=headers)


@cache
def _compressed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


@route("/live", http_method=READ, sync_to_thread=False)
def alive() -> Response[dict[str, str]]:
    """Return 200 as long as this process responds: the liveness check of a supervisor."""
    return _response({"status": "ok"}, is_well=True)


@route(["/ready", "/health"], http_method=READ)
async def ready(
    request: Request[Any, Any, Any],
    service: NamedDependency[Service],
    served: NamedDependency[HostedApplication],
) -> Response[dict[str, str]]:
    """Return 200 if the store accepts writes and has free space. Otherwise return 503.

    Return 503 also while the server is draining.

    This is the readiness check of a load balancer.

    With the query parameter `nonce`, the response also contains the server's name and a proof that
    this server uses the caller's store. A request with a nonce does not check the store.
    """
    nonce = next(iter(query_of(request).get("nonce", [])), None)
    is_ready = nonce is not None or await service.readiness.is_ready()
    content = {"status": "ok" if is_ready else "unavailable"}
    if service.is_draining:
        is_ready, content = False, {"status": "draining"}
    if service.sandbox_url is not None:
        content["sandbox"] = service.sandbox_url
    if nonce is not None:
        pepper = service.elicitations.owners.pepper
        if served.server is not None:
            content["server"] = served.server.name
        content["proof"] = proof(pepper, url=service.public_url, nonce=nonce)
    return _response(content, is_well=is_ready)


def _response(content: dict[str, str], *, is_well: bool) -> Response[dict[str, str]]:
    """Return the status without the reason. Only the log has the reason, for the operator."""
    return Response(
        content,
        status_code=HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE,
        headers={"cache-control": "no-store"},
    )
