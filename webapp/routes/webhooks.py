"""Webhooks: what providers tell us without a browser.

What could go wrong: a forged delivery that settles, an authentic one that is lost. The signature is
checked over the exact bytes before anything is read, and 2xx is answered only after the write. What
is refused is counted and written nowhere from here, however much of it comes.
"""

from http import HTTPStatus
from typing import Any

from litestar import Request, Response, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException
from litestar.params import FromPath, RawBody

from flows.checkout import Malformed
from flows.errors import Unverified
from flows.signatures import BODY_BYTES_AT_MOST, STRIPE, verify
from webapp.service import Service


@post(
    "/webhooks/{seller:str}",
    status_code=HTTPStatus.OK,
    request_max_body_size=BODY_BYTES_AT_MOST,
)
async def hooked(
    request: Request[Any, Any, Any],
    seller: FromPath[str],
    body: RawBody,
    service: NamedDependency[Service],
) -> Response[Any]:
    """An event of a payment provider."""
    found = service.kinds.payments.seller(seller)
    if found is None or not found.webhook_secrets:
        raise NotFoundException
    try:
        delivery = verify(
            STRIPE,
            body=body,
            headers=[
                (k.decode("latin-1"), v.decode("latin-1")) for k, v in request.scope["headers"]
            ],
            secrets=found.webhook_secrets,
            now=service.clock(),
        )
        became = await service.hooks.receive(found, delivery)
    except Unverified as error:
        service.inbox.turned_away(seller, error.reason)
        raise
    except Malformed:  # signed, and yet nothing that can be read
        service.inbox.turned_away(seller, "malformed")
        raise
    return Response({"received": became}, headers={"cache-control": "no-store"})
