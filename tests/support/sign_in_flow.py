"""The redirect to an issuer and back, without a server."""

from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec

from flows.elicitation.flow import CallbackParams, Redirect
from flows.oauth.discovery import Metadata, read_metadata
from flows.oauth.provider import Client
from flows.oauth.sign_in import SignedIn, SignIn
from flows.providers import openid
from tests.support.access_tokens import ISSUER
from tests.support.clock import NOON
from tests.support.oauth_flow import talked

PROVIDER = openid("signin", ISSUER, label="Example Login")
CLIENT = Client(provider=PROVIDER, client_id="our id", client_secret="our:secret/%")
BACK = "https://tools.example/signin/callback"
SAYS = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize?tenant=a",
    "token_endpoint": f"{ISSUER}/token",
    "jwks_uri": f"{ISSUER}/jwks",
}


def metadata(**changes: Any) -> Metadata:
    return read_metadata(httpx.Response(200, json=SAYS | changes), PROVIDER)


def sign_in(claim: tuple[str, ...] = ("sub",)) -> SignIn:
    return SignIn(client=CLIENT, redirect_uri=BACK, claim=claim)


def departed(found: Metadata | None = None) -> tuple[dict[str, list[str]], Any]:
    """Return the parameters of the redirect, and the browser's data after a JSON round trip."""
    departure, _ = talked(sign_in().begin(found or metadata(), now=NOON))
    assert isinstance(departure, Redirect)
    stored = msgspec.json.decode(msgspec.json.encode(departure.attempt_data))
    return parse_qs(urlsplit(departure.url).query), stored


def arrived(stored: Any, **changes: str | None) -> CallbackParams:
    given = {"code": "the-code", "state": stored["state"], **changes}
    return CallbackParams(parameters=tuple((k, v) for k, v in given.items() if v is not None))


def came_back(
    stored: Any,
    *replies: httpx.Response,
    arrival: CallbackParams | None = None,
    found: Metadata | None = None,
    claim: tuple[str, ...] = ("sub",),
) -> tuple[SignedIn, list[httpx.Request]]:
    talk = sign_in(claim).finish(
        arrival or arrived(stored), attempt_data=stored, metadata=found or metadata(), now=NOON
    )
    return talked(talk, *replies)
