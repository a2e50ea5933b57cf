"""A connected person's picture from our own origin, so that the page loads nothing from elsewhere.

Risks: a picture of another person's account, or third-party bytes that a browser treats as our
page. So the account is looked up as on its page, and the headers allow the bytes only as an image.
"""

from http import HTTPStatus
from typing import Any

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath

from webapp.http.browser import page_headers
from webapp.oauth.clients import place_of
from webapp.routes.connections import HERE
from webapp.routes.page_request import PageRequest

# Browsers must not store the picture: it would remain after signing out. The server caches it.
_HEADERS = {
    **page_headers(),
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "content-disposition": "inline",
}


@get(HERE + "/{id:str}/picture")
async def picture(page: NamedDependency[PageRequest], id: FromPath[str]) -> Response[Any]:
    """Return the picture, or 204 if there is none: the page then shows the account's letter.

    Raises:
        NotFoundException: The account does not exist, is somebody else's, or the caller is
            anonymous.
    """
    service, viewer = page.service, await page.viewer()
    if viewer is None:
        raise NotFoundException
    kept = service.kinds.accounts.connections
    found = await kept.read(viewer.owner, viewer.owner + id)
    if found is None:
        raise NotFoundException
    client, shown = kept.client(found), None
    if found.picture is not None:
        provider = None if client is None else place_of(client)
        shown = await service.avatars.get(found.picture, provider=provider, owner=viewer.owner)
    if shown is None:
        return Response(None, status_code=HTTPStatus.NO_CONTENT, headers=_HEADERS)
    return Response(shown.content, media_type=shown.media_type, headers=_HEADERS)
