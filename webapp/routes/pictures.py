"""A connected person's picture, from our own origin: the page loads nothing from elsewhere.

What could go wrong: somebody else's, and bytes of others that a browser takes for a page of ours.
So an account is looked up as on its page, and what is sent can only be shown.
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

# Kept nowhere, as the page: after signing out no browser has it. What we keep is enough.
_HEADERS = {
    **page_headers(),
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "content-disposition": "inline",
}


@get(HERE + "/{id:str}/picture")
async def picture(page: NamedDependency[PageRequest], id: FromPath[str]) -> Response[Any]:
    """The picture; nothing (204) where there is none, and the page shows the letter beneath.

    Raises NotFoundException for an account that is not there, for somebody else's, and for whoever
    is nobody here.
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
        shown = await service.pictures.get(found.picture, provider=provider, owner=viewer.owner)
    if shown is None:
        return Response(None, status_code=HTTPStatus.NO_CONTENT, headers=_HEADERS)
    return Response(shown.content, media_type=shown.media_type, headers=_HEADERS)
