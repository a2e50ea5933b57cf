"""The HTTP requests to a provider, built as its declaration says. Other modules send them.

Risks: the client secret or an access token appears in a URL, which is logged. Both are sent in
headers and bodies only.
"""

import base64
from collections.abc import Collection, Generator, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

import httpx
from authlib.common.urls import add_params_to_uri  # type: ignore[import-untyped]
from authlib.oauth2 import rfc7636  # type: ignore[import-untyped]

from flows.errors import Failed
from flows.oauth.client_assertion import TYPE, assertion_of
from flows.oauth.provider import Client, PersonProbe, Provider

USER_AGENT = "elicit-url"  # GitHub rejects requests without one
_ADD_PARAMETERS: Any = add_params_to_uri  # authlib has no types
_RFC7636: Any = rfc7636


def ask(
    request: httpx.Request, provider: Provider
) -> Generator[httpx.Request, httpx.Response, httpx.Response]:
    """Send a request and return the reply. Raises Failed if there is none."""
    try:
        return (yield request)
    except httpx.HTTPError as error:
        raise Failed(f"{provider.label} did not answer.") from error


def authorize_url(
    client: Client,
    *,
    endpoint: str | None,
    redirect_uri: str,
    scopes: tuple[str, ...],
    state: str,
    verifier: str | None,
    nonce: str | None = None,
    account: str | None = None,
    switches: bool = False,
) -> str:
    """Return the authorize URL; `switches` lets the person choose another account there.

    A `verifier` of None means that the provider refuses PKCE.
    """
    provider = client.provider
    ours = {
        "response_type": "code",
        provider.client_id_parameter: client.client_id,
        "redirect_uri": redirect_uri,
        "state": state,
    }
    if verifier is not None:
        ours["code_challenge"] = _RFC7636.create_s256_code_challenge(verifier)
        ours["code_challenge_method"] = "S256"
    if provider.response_mode != "query":
        ours["response_mode"] = provider.response_mode
    more = dict(provider.extra)
    if "offline_access" in scopes:
        more = _with(more, provider.lasting)
    if switches:
        more = _with(more, provider.switch)
    elif provider.account_hint is not None and account is not None:
        more.setdefault(provider.account_hint, account)
    if nonce is not None:
        more["nonce"] = nonce
    if scopes:
        more[provider.scope_parameter] = provider.scope_separator.join(scopes)
    url: str = _ADD_PARAMETERS(endpoint, [*ours.items(), *more.items()])
    return url


def _with(said: Mapping[str, str], more: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Merge parameters; `more` wins, but `prompt` lists are joined (OIDC Core, 3.1.2.1)."""
    together = dict(said) | dict(more)
    prompts = [each.get("prompt", "") for each in (dict(more), said)]
    if "prompt" in dict(more) and "prompt" in said and "none" not in prompts:
        together["prompt"] = " ".join(dict.fromkeys(" ".join(prompts).split()))
    return together


def get(url: str, *, provider: Provider, token: str | None = None) -> httpx.Request:
    return httpx.Request("GET", url, headers=_headers(provider, token=token))


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

    `both` is Basic with the client id in the body too. `basic_raw` is Basic without the encoding
    that the RFC requires, for servers that do not decode it. `none` is a public client's id.
    """
    headers, sent = _headers(client.provider), dict(values)
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


def auth_of(ways: Collection[str]) -> str:
    """Return `post` if the issuer accepts client_secret_post but not Basic, else `basic`."""
    is_post = "client_secret_post" in ways and "client_secret_basic" not in ways
    return "post" if is_post else "basic"


def asked_who(
    provider: Provider, person: PersonProbe, *, token: str
) -> Generator[httpx.Request, httpx.Response, httpx.Response | None]:
    """Ask the provider's API whose account it is. Return None if the probe has no URL."""
    if person.url is None:
        return None
    return (yield from ask(_probe(person, person.url, provider=provider, token=token), provider))


def _probe(person: PersonProbe, url: str, *, provider: Provider, token: str) -> httpx.Request:
    if person.post is None:
        return get(url, provider=provider, token=token)
    headers = {**_headers(provider, token=token), "Content-Type": "application/json"}
    return httpx.Request("POST", url, content=person.post, headers=headers)


def called(method: str, url: str, *, client: Client, token: str) -> httpx.Request:
    """Build a request with the access token in its Authorization header and no body."""
    return httpx.Request(method, url, headers=_headers(client.provider, token=token))


def deleted(url: str, *, client: Client, values: Mapping[str, str]) -> httpx.Request:
    headers = {**_headers(client.provider), "Authorization": basic_of(client)}
    return httpx.Request("DELETE", url, json=dict(values), headers=headers)


def basic_of(client: Client) -> str:
    """Return the Basic header value; each part is encoded before joining (RFC 6749, 2.3.1)."""
    return _basic(quote(client.client_id, safe=""), quote(client.client_secret, safe=""))


def _basic(id: str, secret: str) -> str:
    return f"Basic {base64.b64encode(f'{id}:{secret}'.encode()).decode()}"


def _headers(provider: Provider, *, token: str | None = None) -> dict[str, str]:
    agent = provider.user_agent or USER_AGENT
    headers = {"Accept": "application/json", "User-Agent": agent, **dict(provider.headers)}
    if token is not None:
        headers["Authorization"] = f"{provider.token_scheme} {token}"
    return headers
