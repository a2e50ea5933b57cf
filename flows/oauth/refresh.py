"""Refreshing of an account's access token (RFC 6749, 6).

Risks: the account is lost. A provider that rotates tokens ends the old pair when it replies, so
the request is never repeated here, and a missing reply is not treated as a refusal. Only
RefreshTokenGone means that the person has to connect again. No other refusal ends an account here
(see `token_errors`). Another risk: the provider returns the tokens of another person. If the new
id_token names another person, RefreshTokenGone is raised (OpenID Connect Core 1.0, 12.2).
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import httpx
from msgspec.structs import replace

from flows.elicitation.flow import Talk
from flows.errors import ElicitError, Failed
from flows.oauth.connection import Connection, planned
from flows.oauth.discovery import client_auth_now, discover
from flows.oauth.dpop import new_key
from flows.oauth.id_token import owner_of_token, unsigned_claims
from flows.oauth.provider import Client, Provider
from flows.oauth.requests import ApiAccess, ask_token
from flows.oauth.responses import TokenSet, members_of, read_token_reply
from flows.oauth.token_errors import (
    ENDED,
    Refusal,
    TokenRefused,
    no_token_in,
    refusal_in,
    refused,
)

MARGIN_AT_MOST = timedelta(seconds=60)
AS_BEFORE = timedelta(minutes=5)  # a smaller move of the expiry counts as no change
ANOTHER_PERSON = "another_person"


class RefreshTokenGone(ElicitError):
    """The provider no longer refreshes this connection; `reason` is its error code, if any."""

    name = "ELICITATION_ACCOUNT_GONE"
    http_status = 409

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        self.reason = reason
        super().__init__(message)


class OwnerUnknown(Failed):
    """The provider renewed an imported account, and then did not say whose account it is.

    `tokens` has the refresh token to use next, because many providers accept the former one only
    once. The access token must not be used.
    """

    def __init__(self, message: str, *, tokens: TokenSet) -> None:
        self.tokens = tokens
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed:
    """The new pair of tokens with its scopes, and the key that they are bound to, if any."""

    tokens: TokenSet
    scopes: tuple[str, ...]
    dpop_key: str | None = dataclasses.field(default=None, repr=False)


def needs_refresh(connection: Connection, *, now: datetime) -> bool:
    """Return True if the access token has expired, or soon will, and can be refreshed.

    "Soon" is one minute, or a tenth of the token's lifetime if that is shorter.
    """
    if connection.expires_at is None or not connection.is_renewable:
        return False
    life = connection.expires_at - (connection.issued_at or connection.connected_at)
    return now >= connection.expires_at - min(MARGIN_AT_MOST, life / 10)


def refresh(client: Client, connection: Connection, *, now: datetime) -> Talk[Renewed]:
    """Ask once for a new access token.

    After OwnerUnknown, the old pair of tokens may be invalid. After any other Failed, the old pair
    is still valid, unless the provider renewed it and the reply was lost.

    Raises:
        RefreshTokenGone: The person has to connect again.
        OwnerUnknown: The account was imported, and the provider did not say whose it is.
        TokenRefused: The provider refused, and that alone does not prove that the account ended.
        Failed: The provider, or the network, is out of order.
    """
    if connection.is_service:
        return (yield from _own_token(client, connection, now=now))
    provider = client.provider
    if connection.refresh_token is None:
        raise RefreshTokenGone(
            f"{provider.label} sent no refresh token, so this connection cannot be renewed."
        )
    values = {"grant_type": "refresh_token", "refresh_token": connection.refresh_token}
    values |= {**provider.resource_parameter, **dict(provider.refresh_extra)}
    reply, key = yield from _token_reply(client, connection, values, now=now)
    refusal = refusal_in(reply, provider)
    if refusal is not None:
        raise _error_of(refusal, provider)
    says = members_of(reply, provider)
    if provider.token_path and provider.token_path[0] not in says:
        # Slack's first reply has the token in the object at `token_path`. Its replies to a refresh
        # do not.
        provider = dataclasses.replace(provider, token_path=())
    try:
        granted = read_token_reply(reply, provider, now=now, is_bound=key is not None, content=says)
    except Failed:
        raise _error_of(no_token_in(reply, provider), provider) from None
    is_other_person = granted.id_token is not None and _is_of_other_person(
        granted.id_token, connection, provider
    )
    tokens = _completed(granted.tokens, connection)
    if connection.is_unproven and not is_other_person:
        access = ApiAccess(token=tokens.access_token, key=key, now=now)
        try:
            person = yield from owner_of_token(client, access=access)
        except (Failed, httpx.HTTPError) as error:
            why = str(error) if isinstance(error, Failed) else type(error).__name__
            message = f"{provider.label} did not say whose account it renewed: {why}"
            raise OwnerUnknown(message, tokens=tokens) from error
        is_other_person = person.id != connection.person_id
    if is_other_person:
        raise RefreshTokenGone(
            f"{provider.label} renewed this connection for another person than the one who "
            "connected it. The person has to connect it again.",
            reason=ANOTHER_PERSON,
        )
    # Ignore an empty scope, which is not valid (RFC 6749, 3.3): the stored scopes stay.
    scopes = provider.granted(connection.scopes, named=granted.scopes or None)
    return Renewed(tokens=tokens, scopes=scopes, dpop_key=key)


def _completed(tokens: TokenSet, connection: Connection) -> TokenSet:
    """Return the new tokens, with the former refresh token if the reply has none."""
    if tokens.refresh_token is None:
        tokens = dataclasses.replace(tokens, refresh_token=connection.refresh_token)
    if tokens.refresh_expires_at is None and tokens.refresh_token == connection.refresh_token:
        # The former refresh token still ends at the time that an earlier reply named.
        tokens = dataclasses.replace(tokens, refresh_expires_at=connection.refresh_expires_at)
    return tokens


def _own_token(client: Client, connection: Connection, *, now: datetime) -> Talk[Renewed]:
    """Ask for a token of this server's own account, with the client credentials (RFC 6749, 4.4)."""
    provider, requested = client.provider, connection.requested or ()
    values = {"grant_type": "client_credentials", **provider.scope_parameters(requested)}
    values |= {**provider.resource_parameter, **dict(provider.token_extra)}
    reply, key = yield from _token_reply(client, connection, values, now=now)
    refusal = refusal_in(reply, provider)
    if refusal is not None:
        otherwise = (
            f"{provider.label} issues no token to this server's own account there. Only the "
            "server's operator can correct that"
        )
        raise refused(refusal, provider, otherwise=otherwise)
    granted = read_token_reply(reply, provider, now=now, is_bound=key is not None)
    # A refresh token should not come with this grant, and is not needed (RFC 6749, 4.4.3).
    tokens = dataclasses.replace(granted.tokens, refresh_token=None, refresh_expires_at=None)
    scopes = provider.granted(requested, named=granted.scopes or None)
    return Renewed(tokens=tokens, scopes=scopes, dpop_key=key)


def refreshed(connection: Connection, renewed: Renewed, *, now: datetime) -> Connection:
    """Return the connection with its new pair of tokens."""
    former, end = connection.refresh_expires_at, renewed.tokens.refresh_expires_at
    is_moved = end is None or former is None or end - former > AS_BEFORE
    before = connection.end_set_at or connection.issued_at or connection.connected_at
    new = replace(
        connection,
        access_token=renewed.tokens.access_token,
        refresh_token=renewed.tokens.refresh_token,
        expires_at=renewed.tokens.expires_at,
        refresh_expires_at=end,
        end_set_at=now if is_moved else before,
        scopes=renewed.scopes,
        issued_at=now,
        dpop_key=renewed.dpop_key,
        is_unproven=False,
    )
    return planned(new, now=now)


def _token_reply(
    client: Client, connection: Connection, values: Mapping[str, str], *, now: datetime
) -> Talk[tuple[httpx.Response, str | None]]:
    """Send a token request for the connection.

    Return the reply and the key that its tokens are bound to. If the account was connected before
    the operator turned DPoP on, create a key, and return the key only if the provider binds the new
    tokens to it.
    """
    is_new = connection.dpop_key is None and client.provider.dpop
    key = new_key() if is_new else connection.dpop_key
    endpoint, client_auth = yield from _token_endpoint(client, connection)
    reply = yield from ask_token(
        client, endpoint, values, client_auth=client_auth, now=now, key=key
    )
    kind = members_of(reply, client.provider).get("token_type")
    is_bound = not is_new or (isinstance(kind, str) and kind.lower() == "dpop")
    return reply, key if is_bound else None


def _token_endpoint(client: Client, connection: Connection) -> Talk[tuple[str, str]]:
    """Return the endpoint for refreshing, and how this server authenticates there.

    Use the declared endpoint, else the endpoint that redeemed the code, else the discovered one.
    """
    provider = client.provider
    declared = provider.refresh or (None if provider.discovers else provider.token)
    endpoint = declared or connection.token_endpoint
    client_auth = client_auth_now(provider, before=connection.client_auth)
    if endpoint is not None:
        return endpoint, client_auth
    found = yield from discover(provider)
    return found.token, found.client_auth(client_auth)


def _is_of_other_person(token: str, connection: Connection, provider: Provider) -> bool:
    """Return True if the new id_token has another subject or issuer than the first one.

    Return False if the person's id came from the provider's own API: such an id may differ from
    `sub`.
    """
    claims = unsigned_claims(token) if provider.person is None else None
    if claims is None:
        return False
    expected = {"sub": connection.person_id, "iss": connection.issuer}
    return any(
        value is not None and claims.get(name, value) != value for name, value in expected.items()
    )


def _error_of(refusal: Refusal, provider: Provider) -> RefreshTokenGone | TokenRefused:
    # A refresh sends no redirect address, so the refusal cannot be about one.
    if refusal.means == "redirect":
        is_ended = refusal.error in ENDED
        refusal = dataclasses.replace(refusal, means="ended" if is_ended else "unsure")
    if refusal.means != "ended":
        return refused(
            refusal, provider, otherwise=f"{provider.label} did not renew the access token"
        )
    more = f" {refusal.sentence}" if refusal.sentence else ""
    return RefreshTokenGone(
        f"{provider.label} does not renew this connection any more{refusal.shown}, so the "
        f"person has to connect it again.{more}",
        reason=refusal.error or f"HTTP {refusal.status}",
    )
