"""Pushed authorization requests: the server sends the request, the browser only the request's id.

Risks (RFC 9126): a reply leads the browser to a request that someone else wrote. So the id in the
reply must be a URN, which an authorization server can only look up, and not an address that it
would fetch. Another risk is an issuer that publishes the endpoint and does not let this client use
it. In that case the browser carries the parameters, as without PAR, unless the issuer requires the
endpoint.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Final

from flows.elicitation.flow import Talk
from flows.errors import Failed
from flows.oauth.discovery import Metadata
from flows.oauth.provider import Client
from flows.oauth.requests import ask_proven, authorize_url, post
from flows.oauth.responses import members_of
from flows.oauth.token_errors import UNAUTHORIZED_CLIENT, refusal_in, refused

_REQUEST_URI: Final = re.compile(r"urn:[A-Za-z0-9][A-Za-z0-9-]{0,31}:[\x21-\x7e]{1,700}")


def address_to_leave_to(
    client: Client,
    metadata: Metadata,
    parameters: Mapping[str, str],
    *,
    client_auth: str,
    now: datetime,
    key: str | None = None,
) -> Talk[str]:
    """Return the address for the browser, after pushing the request if the issuer supports PAR.

    Raises:
        TokenRefused: The issuer refused the request, before the person was sent there.
        Failed: The issuer requires a pushed request and did not accept it.
    """
    if metadata.par is None:
        if metadata.requires_par:
            raise Failed(
                f"{client.provider.label} requires pushed authorization requests, and publishes no "
                "endpoint for them."
            )
        return authorize_url(metadata.authorize, parameters)
    try:
        pushed = yield from _pushed(
            client,
            metadata.par,
            parameters,
            client_auth=client_auth,
            methods=metadata.client_auths,
            now=now,
            key=key,
        )
    except _NotPushed as error:
        if metadata.requires_par:
            raise Failed(str(error)) from error
        return authorize_url(metadata.authorize, parameters)
    name = client.provider.client_id_parameter
    return authorize_url(metadata.authorize, {name: client.client_id, "request_uri": pushed})


class _NotPushed(Failed):
    """The endpoint does not work for this client; the request itself may be valid."""


def _pushed(
    client: Client,
    endpoint: str,
    parameters: Mapping[str, str],
    *,
    client_auth: str,
    methods: tuple[str, ...],
    now: datetime,
    key: str | None,
) -> Talk[str]:
    provider = client.provider
    build = partial(
        post, client, endpoint=endpoint, values=parameters, client_auth=client_auth, now=now
    )
    try:
        reply = yield from ask_proven(build, provider, key=key, now=now)
    except Failed as error:
        raise _NotPushed(str(error)) from error
    refusal = refusal_in(reply, provider)
    if refusal is not None:
        otherwise = f"{provider.label} refused"
        if refusal.is_temporary or refusal.error in (None, UNAUTHORIZED_CLIENT):
            raise _NotPushed(f"{otherwise}{refusal.shown}.")
        raise refused(refusal, provider, otherwise=otherwise, methods=methods)
    pushed = members_of(reply, provider).get("request_uri")
    if pushed is None:
        raise _NotPushed(f"{provider.label} did not accept the pushed authorization request.")
    if not isinstance(pushed, str) or not _REQUEST_URI.fullmatch(pushed):
        raise Failed(f"{provider.label} answered the pushed authorization request with a wrong id.")
    return pushed
