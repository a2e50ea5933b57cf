"""The HTTP requests to a provider, built as its declaration says. Other modules send them.

Risks: the client secret or an access token appears in a URL, which is logged. Both are sent in
headers and bodies only.
"""

import base64
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx
from authlib.common.urls import add_params_to_uri  # type: ignore[import-untyped]
from authlib.oauth2 import rfc7636  # type: ignore[import-untyped]

from flows.errors import Failed
from flows.oauth.client_assertion import TYPE, assertion_of
from flows.oauth.declaration import Carrier
from flows.oauth.dpop import HEADER, proof_of, thumbprint_of, wanted_nonce
from flows.oauth.provider import Client, PersonProbe, Provider

USER_AGENT = "elicit-url"  # GitHub rejects requests without a User-Agent
_ADD_PARAMETERS: Any = add_params_to_uri  # authlib has no types
_RFC7636: Any = rfc7636


def ask(
    request: httpx.Request, provider: Provider
) -> Generator[httpx.Request, httpx.Response, httpx.Response]:
    """Send a request and return the reply. Raises Failed if there is none."""
    try:
        return (yield request)
    except httpx.HTTPError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise Unreachable(
                f"{provider.label} has a certificate that this server does not trust.",
                fix="set SSL_CERT_FILE to a file with your certificate authority, or correct the "
                "certificate there",
                is_lasting=True,
            ) from error
        raise Unreachable(
            f"{provider.label} did not answer.",
            fix="allow outgoing https from this machine to it, and check that it runs",
        ) from error


class Unreachable(Failed):
    """The provider sent no usable reply. `fix` says what the operator can do.

    `is_lasting`: a retry fails until the operator has applied `fix`.
    """

    def __init__(self, message: str, *, fix: str, is_lasting: bool = False) -> None:
        self.fix = fix
        self.is_lasting = is_lasting
        super().__init__(message)


class SetupFault(Failed):
    """A fault that only the operator can correct: a retry fails until then. `fix` says how.

    `why` is for logs: it can contain the provider's own text.
    """

    def __init__(self, message: str, *, fix: str | None = None, why: str | None = None) -> None:
        self.fix = fix
        self.why: str = why or message
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """An access token for a provider's API, with the key that it is bound to, if any."""

    token: str = field(repr=False)
    key: str | None = field(default=None, repr=False)
    now: datetime


def ask_as(
    access: ApiAccess, request: httpx.Request, provider: Provider
) -> Generator[httpx.Request, httpx.Response, httpx.Response]:
    """Send a request with an access token. Raises Failed if there is no reply."""
    carrier = provider.carrier if access.key is None else Carrier(scheme=HEADER)

    def build() -> httpx.Request:
        built = httpx.Request(
            request.method, request.url, headers=request.headers, content=request.content
        )
        carrier.put(built, access.token)
        return built

    return ask_proven(build, provider, key=access.key, token=access.token, now=access.now)


def ask_proven(
    build: Callable[[], httpx.Request],
    provider: Provider,
    *,
    key: str | None,
    now: datetime,
    token: str | None = None,
) -> Generator[httpx.Request, httpx.Response, httpx.Response]:
    """Send a request with a proof of the key.

    If the server asks for its nonce in the proof, send the request once more.

    Sending the request again is safe: a server asks for its nonce before it uses a code or token of
    the request (RFC 9449, 8).
    """
    if key is None:
        return (yield from ask(build(), provider))

    def proven(nonce: str | None = None) -> httpx.Request:
        request = build()
        request.headers[HEADER] = proof_of(
            key, method=request.method, url=request.url, now=now, nonce=nonce, token=token
        )
        return request

    reply = yield from ask(proven(), provider)
    nonce = wanted_nonce(reply)
    return reply if nonce is None else (yield from ask(proven(nonce), provider))


def ask_token(
    client: Client,
    endpoint: str,
    values: Mapping[str, str],
    *,
    client_auth: str,
    now: datetime,
    key: str | None = None,
) -> Generator[httpx.Request, httpx.Response, httpx.Response]:
    """Send a request to a token endpoint, with a proof of the key, and return the reply."""
    provider = client.provider

    def build() -> httpx.Request:
        return post(
            client,
            endpoint=endpoint,
            values=values,
            client_auth=client_auth,
            body=provider.body,
            now=now,
        )

    return ask_proven(build, provider, key=key, now=now)


def authorize_url(endpoint: str | None, parameters: Mapping[str, str]) -> str:
    url: str = _ADD_PARAMETERS(endpoint, [*parameters.items()])
    return url


def authorize_parameters(
    client: Client,
    *,
    redirect_uri: str,
    scopes: tuple[str, ...],
    state: str,
    verifier: str | None,
    nonce: str | None = None,
    account: str | None = None,
    switches: bool = False,
    key: str | None = None,
) -> Mapping[str, str]:
    """Return the authorization request; `switches` lets the person choose another account there.

    A `verifier` of None means that the provider refuses PKCE. `key` is the DPoP key that the tokens
    will be bound to.
    """
    provider = client.provider
    parameters = {
        "response_type": "code",
        provider.client_id_parameter: client.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
    }
    if verifier is not None:
        parameters["code_challenge"] = _RFC7636.create_s256_code_challenge(verifier)
        parameters["code_challenge_method"] = "S256"
    if key is not None:
        parameters["dpop_jkt"] = thumbprint_of(key)
    if provider.response_mode != "query":
        parameters["response_mode"] = provider.response_mode
    more = dict(provider.extra)
    if "offline_access" in scopes:
        more = _with(more, provider.lasting)
    if switches:
        more = _with(more, provider.switch)
    elif provider.account_hint is not None and account is not None:
        more.setdefault(provider.account_hint, account)
    if nonce is not None:
        more["nonce"] = nonce
    more |= provider.scope_parameters(scopes)
    return {**parameters, **provider.resource_parameter, **more}


def _with(parameters: Mapping[str, str], more: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Merge parameters; `more` wins, but `prompt` lists are joined (OIDC Core, 3.1.2.1)."""
    together = dict(parameters) | dict(more)
    prompts = [each.get("prompt", "") for each in (dict(more), parameters)]
    if "prompt" in dict(more) and "prompt" in parameters and "none" not in prompts:
        together["prompt"] = " ".join(dict.fromkeys(" ".join(prompts).split()))
    return together


def get(url: str, *, provider: Provider) -> httpx.Request:
    return httpx.Request("GET", url, headers=headers_of(provider))


def post(
    client: Client,
    *,
    endpoint: str,
    values: Mapping[str, str],
    client_auth: str,
    now: datetime,
    body: str = "form",
) -> httpx.Request:
    """Build a POST with the client's credentials (RFC 6749, 2.3.1; RFC 7523, 2.2).

    With `both`, the client id is in the Basic header and in the body. `basic_raw` omits the
    encoding that the RFC requires for Basic, for servers that do not decode it. `none` is for a
    public client, which sends only its id.
    """
    headers, sent = headers_of(client.provider), dict(values)
    if client_auth in ("basic", "both"):
        headers["Authorization"] = basic_of(client)
    elif client_auth == "basic_raw":
        headers["Authorization"] = _basic(client.client_id, client.client_secret)
    if client_auth not in ("basic", "basic_raw"):
        sent[client.provider.client_id_parameter] = client.client_id
    if client_auth == "post":
        sent["client_secret"] = client.client_secret
    elif client_auth in ("private_key_jwt", "client_secret_jwt"):
        sent["client_assertion_type"] = TYPE
        sent["client_assertion"] = assertion_of(
            client.client_secret,
            client_id=client.client_id,
            audience=endpoint,
            now=now,
            is_key=client_auth == "private_key_jwt",
        )
    if body == "json":
        return httpx.Request("POST", endpoint, json=sent, headers=headers)
    return httpx.Request("POST", endpoint, data=sent, headers=headers)


def asked_who(
    provider: Provider, person: PersonProbe, *, access: ApiAccess
) -> Generator[httpx.Request, httpx.Response, httpx.Response | None]:
    """Ask the provider's API whose account it is. Return None if the probe has no URL."""
    if person.url is None:
        return None
    request = get(person.url, provider=provider)
    if person.post is not None:
        headers = {**request.headers, "Content-Type": "application/json"}
        request = httpx.Request("POST", person.url, content=person.post, headers=headers)
    return (yield from ask_as(access, request, provider))


def deleted(url: str, *, client: Client, values: Mapping[str, str]) -> httpx.Request:
    headers = {**headers_of(client.provider), "Authorization": basic_of(client)}
    return httpx.Request("DELETE", url, json=dict(values), headers=headers)


def basic_of(client: Client) -> str:
    """Return the Basic header value; each part is encoded before joining (RFC 6749, 2.3.1)."""
    return _basic(quote(client.client_id, safe=""), quote(client.client_secret, safe=""))


def _basic(id: str, secret: str) -> str:
    return f"Basic {base64.b64encode(f'{id}:{secret}'.encode()).decode()}"


def headers_of(provider: Provider) -> dict[str, str]:
    agent = provider.user_agent or USER_AGENT
    return {"Accept": "application/json", "User-Agent": agent, **dict(provider.headers)}
