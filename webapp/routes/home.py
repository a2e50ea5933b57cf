"""Home, assets and health."""

from http import HTTPStatus
from pathlib import Path
from typing import Any

from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from webapp.port import proof
from webapp.routes.answers import Answers
from webapp.served import Served
from webapp.service import Service
from webapp.views_home import Home

_STATIC = Path(__file__).resolve().parent.parent / "static"
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# Read once: three small files, and no path of a request ever reaches the disk.
_ASSETS = {
    path.name: (path.read_bytes(), _TYPES[path.suffix])
    for path in _STATIC.iterdir()
    if path.suffix in _TYPES
}


@get("/")
async def home(
    request: Request[Any, Any, Any],
    service: NamedDependency[Service],
    answers: NamedDependency[Answers],
    served: NamedDependency[Served],
) -> Response[Any]:
    """What this server is and how to add it; its tools are named to those only who may call it."""
    is_closed = service.signing_in is not None or served.has_own_sign_in
    knows = not is_closed or await service.identity.viewer(request.scope, request.cookies)
    view = Home(
        server=answers.server,
        mcp_url=f"{service.public_url}/mcp",
        tools=await served.tools() if knows else (),
        sandbox_url=service.sandbox_url,
    )
    return answers.page(view)


@get("/static/{name:str}", sync_to_thread=False)
def static(name: FromPath[str]) -> Response[bytes]:
    """One of our few assets."""
    if name not in _ASSETS:
        raise NotFoundException
    content, media_type = _ASSETS[name]
    return Response(
        content,
        media_type=media_type,
        headers={"cache-control": "max-age=3600", "x-content-type-options": "nosniff"},
    )


@get("/health")
async def health(
    request: Request[Any, Any, Any], service: NamedDependency[Service]
) -> Response[dict[str, str]]:
    """200 if the store answers; with a nonce, the proof that it is the store of whoever asks.

    503 while the process ends.
    """
    await service.elicitations.store.read("~", "pepper", "~")
    told = {"status": "draining" if service.is_draining else "ok"}
    if service.sandbox_url is not None:
        told["sandbox"] = service.sandbox_url
    nonce = request.query_params.get("nonce")
    if nonce is not None:
        pepper = service.elicitations.owners.pepper
        told["proof"] = proof(pepper, url=service.public_url, nonce=nonce)
    status = HTTPStatus.SERVICE_UNAVAILABLE if service.is_draining else HTTPStatus.OK
    return Response(told, status_code=status, headers={"cache-control": "no-store"})
