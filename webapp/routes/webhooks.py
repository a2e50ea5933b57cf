"""The webhook route: what payment providers send to us without a browser.

Risks: a forged delivery ends a question, or an authentic one is lost. A signature is verified over
the exact bytes before they are parsed, and the response is 2xx only after the write. Anybody can
send a hint. So a hint only causes a request to the provider, with a rate limit for each sender, and
the response reveals nothing. Rejected deliveries are counted, but this module does not store them.
If the store cannot be written, the provider is asked to send again.
"""

import json
import logging
from functools import lru_cache
from http import HTTPStatus
from typing import Any

from litestar import Request, post
from litestar.di import NamedDependency
from litestar.exceptions import NotFoundException, ServiceUnavailableException
from litestar.params import FromPath, RawBody
from litestar.response.base import ASGIResponse

from flows.errors import Failed, StoreUnavailable, Unverified
from flows.payments.gateway import Certifies, NoticesOnly
from flows.payments.session import Malformed, Mismatch
from flows.webhooks.signatures import BODY_BYTES_AT_MOST, verify
from webapp.http.rate_limit import address_key
from webapp.service import Service

_log = logging.getLogger(__name__)


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
) -> ASGIResponse:
    """Handle a payment provider's event, or a hint that makes us ask the provider."""
    gateways = service.kinds.payments.flow
    signing, unsigned = gateways.signing.get(seller), gateways.unsigned.get(seller)
    try:
        if signing is not None:
            delivery = verify(
                signing.scheme,
                body=body,
                headers=_headers(request),
                secrets=signing.webhook_secrets,
                now=service.clock(),
                url=f"{service.public_url}/webhooks/{seller}",
            )
            became = await service.webhooks.receive(signing, delivery)
        elif unsigned is not None:
            became = await _hinted(unsigned, body, request=request, service=service)
        else:
            raise NotFoundException
    except (Unverified, Malformed) as error:
        # Malformed: perhaps authentic, but not readable.
        reason = error.reason if isinstance(error, Unverified) else "malformed"
        service.elicitations.telemetry.observer.webhook_answered(seller, reason)
        service.webhooks.log.count_rejected(seller, reason)
        raise
    except StoreUnavailable as error:
        service.elicitations.telemetry.observer.webhook_answered(seller, "not_kept")
        _log.warning("webhook.not_stored", extra={"seller": seller, "why": error.why})
        raise ServiceUnavailableException from error
    _log.info("webhook.processed", extra={"seller": seller, "became": became})
    service.elicitations.telemetry.observer.webhook_answered(seller, became)
    # Every hint gets the same response, so that a sender does not learn which ids exist.
    return _received("hint" if signing is None else became)


async def _hinted(
    gateway: NoticesOnly, body: bytes, *, request: Request[Any, Any, Any], service: Service
) -> str:
    """Ask the provider about a hint. Return the resulting status."""
    name = gateway.seller.name
    sender = address_key(request.scope)
    try:
        if isinstance(gateway, Certifies) and gateway.webhook_ids:
            await service.certificates.verify(
                gateway, body=body, headers=_headers(request), sender=sender
            )
        else:
            service.webhooks.log.hint_limit.require(sender)
        hint = gateway.read_unsigned(body, query=request.scope["query_string"].decode("latin-1"))
        became = "ignored" if hint is None else await service.webhooks.poll_for_notice(name, hint)
    except (Unverified, Malformed):
        # With certificates, only rejected deliveries count for the rate limit, so that the limit
        # does not delay authentic ones.
        service.webhooks.log.hint_limit.require(sender)
        raise
    # the provider's session differs from the request, and a retry would not change that
    except Mismatch as error:
        became = f"other_{error.what}"
    except Failed as error:  # the provider sends the hint again
        service.elicitations.telemetry.observer.webhook_answered(name, "not_asked")
        _log.warning("webhook.provider_unreachable", extra={"seller": name, "why": str(error)})
        raise ServiceUnavailableException from error
    if became not in ("ignored", "asked"):
        service.webhooks.log.count_rejected(name, became)
    return became


@lru_cache(64)
def _received(became: str) -> ASGIResponse:
    """Return a response from a cache: creating one costs as much as verifying a signature."""
    return ASGIResponse(
        body=json.dumps({"received": became}).encode(),
        media_type="application/json",
        status_code=HTTPStatus.OK,
        headers={"cache-control": "no-store"},
    )


def _headers(request: Request[Any, Any, Any]) -> list[tuple[str, str]]:
    return [(k.decode("latin-1"), v.decode("latin-1")) for k, v in request.scope["headers"]]
