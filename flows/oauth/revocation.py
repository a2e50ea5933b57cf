"""Revocation of an account's tokens at the provider (RFC 7009, and providers' own APIs).

Risks: a person reads that access was revoked although it was not. The result is True only if the
provider confirmed it, and False if the provider has no revocation endpoint or refuses.
"""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from urllib.parse import quote

import httpx

from flows.elicitation.flow import Talk
from flows.errors import Failed
from flows.oauth.connection import Connection
from flows.oauth.discovery import client_auth_now, client_auth_of, discover
from flows.oauth.provider import Client, Revocation
from flows.oauth.requests import ApiAccess, ask, ask_as, deleted, headers_of, post
from flows.oauth.responses import members_of
from flows.oauth.token_errors import refusal_in

# Errors for a token that has already ended: of the standard (RFC 6750), Slack (two) and Dropbox.
GONE_ALREADY = frozenset(
    {"invalid_token", "token_revoked", "account_inactive", "invalid_access_token"}
)


def revoke(client: Client, connection: Connection, *, now: datetime) -> Talk[bool]:
    """Revoke the tokens and return True if the provider confirmed it.

    If the provider's revocation is of the kind `bearer`, the caller has to refresh an expired
    access token before this call. With an expired access token, the provider refuses the request,
    and the refusal does not show whether the access was revoked.

    Raises:
        Failed: The provider did not reply.
    """
    found = yield from _revocation_of(client, connection)
    if found is None:
        return False
    revocation, client_auth = found
    revoke_token = partial(_revoke_one, client, revocation, client_auth, now=now)
    match revocation.kind:
        case "delete":
            return (yield from _delete(client, connection, revocation))
        case "bearer":
            access = ApiAccess(token=connection.access_token, key=connection.dpop_key, now=now)
            request = httpx.Request("POST", revocation.url, headers=headers_of(client.provider))
            reply = yield from ask_as(access, request, client.provider)
            return _is_gone(reply, client)
        case "json":
            return (yield from revoke_token(connection.access_token))
        case "form":
            return (yield from _revoke_both(connection, revoke_token))


def _revocation_of(client: Client, connection: Connection) -> Talk[tuple[Revocation, str] | None]:
    provider = client.provider
    client_auth = client_auth_now(provider, before=connection.client_auth)
    if provider.revoke is not None or not provider.discovers:
        return None if provider.revoke is None else (provider.revoke, client_auth)
    try:
        metadata = yield from discover(provider)
    except Failed as error:
        if isinstance(error.__cause__, httpx.HTTPError):
            raise
        return None
    if metadata.revoke is None:
        return None
    return Revocation(url=metadata.revoke), client_auth_of(client_auth, metadata.revoke_auths)


def _revoke_both(connection: Connection, revoke_token: Callable[..., Talk[bool]]) -> Talk[bool]:
    """Revoke the refresh token, then the access token.

    Revoking one of the two does not always end the other (RFC 7009, 2.1).
    """
    if connection.refresh_token is None:
        return (yield from revoke_token(connection.access_token))
    if not (yield from revoke_token(connection.refresh_token, hint="refresh_token")):
        return False
    return (yield from revoke_token(connection.access_token, is_second=True))


def _revoke_one(
    client: Client,
    revocation: Revocation,
    client_auth: str,
    token: str,
    *,
    now: datetime,
    hint: str = "access_token",
    is_second: bool = False,
) -> Talk[bool]:
    values = {"token": token}
    if revocation.kind == "form":
        values["token_type_hint"] = hint
    request = post(
        client,
        endpoint=revocation.url,
        values=values,
        client_auth=client_auth,
        body=revocation.kind,
        now=now,
    )
    reply = yield from ask(request, client.provider)
    if is_second and reply.status_code == 400:
        # The provider accepted our credentials for the refresh token, so a refusal now means that
        # the access token has already ended, or that this type of token cannot be revoked.
        refusal = refusal_in(reply, client.provider)
        return refusal is None or refusal.error != "unsupported_token_type"
    return _is_gone(reply, client)


def _delete(client: Client, connection: Connection, revocation: Revocation) -> Talk[bool]:
    url = revocation.url.replace("{client_id}", quote(client.client_id, safe=""))
    request = deleted(url, client=client, values={"access_token": connection.access_token})
    reply = yield from ask(request, client.provider)
    return reply.status_code in (204, 404)


def _is_gone(reply: httpx.Response, client: Client) -> bool:
    refusal = refusal_in(reply, client.provider)
    if refusal is None:
        # Slack can reply with status 200 and "revoked": false.
        is_confirmed = members_of(reply, client.provider).get("revoked") is not False
        return reply.is_success and is_confirmed
    return refusal.error in GONE_ALREADY and not refusal.is_temporary
