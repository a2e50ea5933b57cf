"""The device flow: the person answers in any browser while this server polls (RFC 8628).

Risks: the provider blocks a server that polls too often, so the interval only ever grows. Another
risk: somebody else enters the code, and the connected account then belongs to them. The account's
person is therefore shown before the account is used.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import httpx
from msgspec import Struct, field

from flows.elicitation.flow import Talk
from flows.errors import Denied, Failed, InvalidQuestion
from flows.oauth.authorization_code import Grant, must_reach
from flows.oauth.discovery import discover
from flows.oauth.dpop import new_key
from flows.oauth.id_token import whose_account
from flows.oauth.provider import Client, Provider
from flows.oauth.requests import ApiAccess, ask, ask_token, post
from flows.oauth.responses import (
    TokenSet,
    members_of,
)
from flows.oauth.token_errors import Refusal, refusal_in, refused, tokens_in
from flows.origin import origin_of

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"
INTERVAL = timedelta(seconds=5)
INTERVAL_AT_MOST = timedelta(seconds=300)
LIFE_AT_MOST = timedelta(hours=1)
CODE_AT_MOST = 4096
USER_CODE_AT_MOST = 64
_DECLINED = frozenset({"access_denied", "authorization_declined"})  # the second is Microsoft's


class DeviceCode(Struct, frozen=True, kw_only=True):
    """The user code and address for the person, and the device code to poll with."""

    user_code: str
    verification_uri: str
    verification_uri_complete: str | None = None
    device_code: str
    interval: timedelta
    expires_at: datetime
    scopes: tuple[str, ...]  # as requested
    token_endpoint: str = field(name="token")
    client_auth: str
    userinfo: str | None = None
    jwks: str | None = None
    dpop_key: str | None = None
    issuer: str

    def __repr__(self) -> str:
        return f"DeviceCode({self.verification_uri!r}, expires_at={self.expires_at})"


class Pending(Struct, frozen=True, kw_only=True):
    """The person has not answered yet. Poll again after `interval`, the code's new interval."""

    interval: timedelta


def start(client: Client, scopes: tuple[str, ...], *, now: datetime) -> Talk[DeviceCode]:
    """Request a code for the person. Raises Failed."""
    provider = client.provider
    endpoint, token, userinfo, jwks = provider.device, provider.token, None, None
    client_auth, methods = str(provider.client_auth), tuple[str, ...]()
    if provider.discovers:
        found = yield from discover(provider)
        endpoint = endpoint or found.device
        token, userinfo, jwks = found.token, found.userinfo, found.jwks
        client_auth, methods = found.client_auth(client_auth), found.client_auths
    if endpoint is None or token is None:
        raise Failed(
            f"{provider.label} does not support connecting without a browser on this machine."
        )
    asked = provider.scopes_to_request(scopes)
    values = {"client_id": client.client_id, **provider.resource_parameter}
    if asked:
        values["scope"] = provider.scope_separator.join(asked)
    request = post(client, endpoint=endpoint, values=values, client_auth=client_auth, now=now)
    reply = yield from ask(request, provider)
    refusal = refusal_in(reply, provider)
    if refusal is not None:
        otherwise = f"{provider.label} sent no user code"
        raise refused(refusal, provider, otherwise=otherwise, methods=methods)
    says = members_of(reply, provider)
    user_code = _text(says.get("user_code"), USER_CODE_AT_MOST)
    device_code = _text(says.get("device_code"), CODE_AT_MOST)
    # Google names the member `verification_url`.
    uri = _address(says.get("verification_uri") or says.get("verification_url"))
    life = _seconds(says.get("expires_in"))
    if user_code is None or device_code is None or uri is None or life is None:
        raise Failed(f"{provider.label} sent a user code that cannot be used.")
    return DeviceCode(
        user_code=user_code,
        verification_uri=uri,
        verification_uri_complete=_address(says.get("verification_uri_complete")),
        device_code=device_code,
        interval=min(_seconds(says.get("interval")) or INTERVAL, INTERVAL_AT_MOST),
        expires_at=now + min(life, LIFE_AT_MOST),
        scopes=asked,
        token_endpoint=token,
        client_auth=client_auth,
        userinfo=userinfo,
        jwks=jwks,
        dpop_key=new_key() if provider.dpop else None,
        issuer=provider.issuer or origin_of(token),
    )


def poll(
    client: Client,
    code: DeviceCode,
    *,
    now: datetime,
    on_tokens: Callable[[TokenSet], None] = lambda _: None,
) -> Talk[Grant | Pending]:
    """Check whether the person has answered. `on_tokens` is as in `OauthFlow.finish`.

    Raises:
        Denied: The person declined.
        Failed: The code has expired, or the provider refused.
    """
    provider = client.provider
    if now >= code.expires_at:
        raise Failed(f"The code for {provider.label} was not entered in time.")
    values = {
        "grant_type": GRANT_TYPE,
        "device_code": code.device_code,
        "client_id": client.client_id,
        **provider.resource_parameter,
    }
    try:
        reply = yield from ask_token(
            client,
            code.token_endpoint,
            values,
            client_auth=code.client_auth,
            now=now,
            key=code.dpop_key,
        )
    except Failed as error:
        if not isinstance(error.__cause__, httpx.HTTPError):
            raise
        return _later(code.interval * 2)  # RFC 8628, 3.5
    refusal = refusal_in(reply, provider)
    if refusal is not None:
        asked_for = _seconds(members_of(reply, provider).get("interval"))
        return _after_refusal(refusal, code, provider, asked_for=asked_for)
    granted = tokens_in(reply, provider, now=now, is_bound=code.dpop_key is not None)
    on_tokens(granted.tokens)
    person, details = yield from whose_account(
        client,
        access=ApiAccess(token=granted.tokens.access_token, key=code.dpop_key, now=now),
        others={
            "reply": granted.members,
            "callback": {},
            "tenant": provider.tenant,
            "id_token": {},
        },
        userinfo=code.userinfo,
        issuer=code.issuer,
        jwks=code.jwks,
    )
    must_reach(provider, details)
    return Grant(
        tokens=granted.tokens,
        scopes=provider.granted(code.scopes, named=granted.scopes),
        person=person,
        details=details,
        tenant=provider.tenant,
        dpop_key=code.dpop_key,
        issuer=code.issuer,
        asked=code.scopes,
        names_scopes=bool(granted.scopes),
    )


def _after_refusal(
    refusal: Refusal, code: DeviceCode, provider: Provider, *, asked_for: timedelta | None
) -> Pending:
    if refusal.error == "authorization_pending":
        return _later(code.interval)
    if refusal.error == "slow_down":
        return _later(max(code.interval + INTERVAL, asked_for or INTERVAL))
    if refusal.error in _DECLINED:
        raise Denied(f"The person declined at {provider.label}.")
    if refusal.error == "expired_token":
        raise Failed(f"The code for {provider.label} was not entered in time.")
    if refusal.is_temporary:
        return _later(code.interval * 2)
    raise refused(refusal, provider, otherwise=f"{provider.label} did not issue an access token")


def _later(interval: timedelta) -> Pending:
    return Pending(interval=min(interval, INTERVAL_AT_MOST))


def _text(value: Any, at_most: int) -> str | None:
    is_valid = isinstance(value, str) and 0 < len(value) <= at_most
    return value if is_valid and value.isascii() and value.isprintable() else None


def _seconds(value: Any) -> timedelta | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**9:
        return None
    return timedelta(seconds=value)


def _address(value: Any) -> str | None:
    """Return the address if a person can be sent to it, else None."""
    try:
        return value if isinstance(value, str) and origin_of(value) else None
    except InvalidQuestion:
        return None
