"""OAuth redirects without a server: a provider, an elicitation and the provider's replies."""

from datetime import timedelta
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
from joserfc import jwt
from joserfc.jwk import ECKey

from flows.elicitation.flow import CallbackParams, Redirect, RedirectContext, Talk
from flows.elicitation.states import Asked, Attempt, Elicitation, Status
from flows.oauth.authorization_code import AccountTerms, Grant, OauthFlow
from flows.oauth.provider import Client, Provider
from flows.providers import github, openid
from tests.support.clock import NOON

T = TypeVar("T")
CALLBACK = "https://elicit.example/callback/github"
ISSUER = "https://login.example"
METADATA = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize?tenant=a%20b",
    "token_endpoint": f"{ISSUER}/token",
    "jwks_uri": f"{ISSUER}/jwks",
    "userinfo_endpoint": f"{ISSUER}/userinfo",
}
KEY = ECKey.generate_key("P-256", parameters={"kid": "one"})
ACME = openid("acme", ISSUER)
TRIP = RedirectContext(number=1, return_url=CALLBACK, state="the-state", now=NOON)


def a_flow(provider: Provider = github) -> OauthFlow:
    client = Client(provider=provider, client_id="our id", client_secret="our:secret/%")
    return OauthFlow({provider.name: client})


def an_elicitation(
    provider: Provider = github,
    *,
    scopes: tuple[str, ...] = ("repo", "read:user"),
    account: str | None = None,
    attempt_data: Any = None,
) -> Elicitation:
    terms = AccountTerms(provider=provider.name, client_id="our id", scopes=scopes, account=account)
    asked = Asked(
        server="tools",
        tool="list",
        client=None,
        message="Connect",
        digest="d",
        terms=msgspec.to_builtins(terms),
    )
    return Elicitation(
        id="e1",
        owner="o",
        kind="oauth",
        request=asked,
        dedupe_key="j",
        created_at=NOON,
        expires_at=NOON + timedelta(minutes=5),
        status=Status.OPENED,
        attempt=Attempt(number=1, browser="b", started_at=NOON, kept=attempt_data),
    )


def talked(talk: Talk[T], *replies: httpx.Response) -> tuple[T, list[httpx.Request]]:
    """Run the talk with these replies. Return its result and its requests."""
    asked = []
    waiting = iter(replies)
    try:
        asked.append(next(talk))
        while True:
            asked.append(talk.send(next(waiting)))
    except StopIteration as stop:
        assert next(waiting, None) is None, "the flow must request all replies"
        return stop.value, asked


def departed(
    provider: Provider = github,
    *,
    scopes: tuple[str, ...] = ("repo", "read:user"),
    account: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> tuple[Redirect, Elicitation]:
    """Start the flow.

    Return the redirect and the elicitation that waits for the browser's return.
    """
    flow, asked = a_flow(provider), an_elicitation(provider, scopes=scopes, account=account)
    stored = flow.prepare(asked, TRIP)
    going = an_elicitation(provider, scopes=scopes, account=account, attempt_data=stored)
    replies = [httpx.Response(200, json=metadata or METADATA)] if provider.discovers else []
    departure, _ = talked(flow.begin(going, TRIP), *replies)
    # Encode as JSON and decode, as a stored record is.
    stored = msgspec.json.decode(msgspec.json.encode(departure.attempt_data))
    return departure, an_elicitation(provider, scopes=scopes, account=account, attempt_data=stored)


def parameters_of(url: str) -> dict[str, list[str]]:
    return parse_qs(urlsplit(url).query, keep_blank_values=True)


def arrived(**parameters: str) -> CallbackParams:
    return CallbackParams(parameters=tuple(parameters.items()))


def granted(
    provider: Provider,
    away: Elicitation,
    *replies: httpx.Response,
) -> tuple[Grant, list[httpx.Request]]:
    return talked(a_flow(provider).finish(away, code="the-code", now=NOON), *replies)


def id_token(away: Elicitation, **changes: Any) -> str:
    stored: Any = away.attempt.kept if away.attempt else None
    now = int(NOON.timestamp())
    claims = {
        "iss": ISSUER,
        "sub": "sub-1",
        "aud": "our id",
        "nonce": stored["nonce"],
        "iat": now,
        "exp": now + 300,
        **changes,
    }
    return jwt.encode({"alg": "ES256", "kid": "one"}, claims, KEY)


def key_set() -> httpx.Response:
    return httpx.Response(200, json={"keys": [KEY.as_dict(private=False)]})


OCTOCAT = {"id": 583231, "login": "octocat", "name": "The Octocat"}
