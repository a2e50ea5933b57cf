"""Wrong settings of keys, service accounts and exchanges are reported at start and by doctor."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from flows.oauth.provider import Client, PersonProbe, Provider, ProviderKey, TokenExchange
from flows.providers import openid
from tests.support.clock import Clock
from tests.support.mcp_server import eventually
from tests.support.wrong_provider import (
    HUB,
    ID,
    SECRET,
    WrongProvider,
    logged_texts,
    outbound_to,
    served,
)
from webapp.cli.examination import Finding, Surroundings, certificate_end, examine_outside
from webapp.settings.identity import PROVIDER as SIGN_IN
from webapp.settings.identity import IdentitySettings
from webapp.settings.settings import Settings

GRANT = "urn:ietf:params:oauth:grant-type:"
KEYED = Provider(
    name="keyed",
    label="Keyed",
    api=HUB,
    key=ProviderKey(page=f"{HUB}/keys", header="X-Key"),
    person=PersonProbe(url=f"{HUB}/me", id="id", label="email"),
)
ROBOT = Provider(
    name="robot",
    label="Robot",
    token=f"{HUB}/robot",
    api=HUB,
    always=("read",),
    resource=f"{HUB}/api",
    service_account=True,
)
CRM = Provider(
    name="crm",
    label="CRM",
    authorize=f"{HUB}/authorize",
    token=f"{HUB}/crm",
    api=HUB,
    person=PersonProbe(url=f"{HUB}/me", id="id", label="email"),
    exchange=TokenExchange(issuer=HUB, audience="crm-api"),
)
JAG = replace(CRM, exchange=TokenExchange(issuer=HUB, kind="id_jag", audience=HUB))
Reply = Callable[[httpx.Request], httpx.Response]


def answers(status: int, **about: Any) -> Reply:
    return lambda _: httpx.Response(status, **about)


def refuses(error: str, status: int = 400, **more: str) -> Reply:
    return answers(status, json={"error": error, **more})


def issues(**more: Any) -> Reply:
    reply = {"access_token": "a-token", "token_type": "Bearer", "expires_in": 60, **more}
    return answers(200, json=reply)


def untrusted(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed", request=request)


def down(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("All connection attempts failed", request=request)


def to_post_only(request: httpx.Request) -> httpx.Response:
    is_post = b"client_secret=" in request.content
    return (issues() if is_post else refuses("invalid_client", 401))(request)


def exchanging(reply: Reply) -> Reply:
    """Refuse a made-up code as a working provider does, and answer an exchange with `reply`."""
    return lambda request: (refuses("invalid_grant") if b"code=" in request.content else reply)(
        request
    )


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A provider, its replies by path, and the texts that start and doctor report.

    `found` is None if the settings are correct.
    """

    provider: Provider
    replies: Mapping[str, Reply] = field(default_factory=dict[str, Reply])
    there: Mapping[str, Any] = field(default_factory=dict[str, Any])
    found: Sequence[str] | None
    right: str = ""


def keyed(reply: Reply, *found: str, right: str = "", **declared: Any) -> Setup:
    provider = replace(KEYED, **declared)
    return Setup(provider=provider, replies={"/me": reply}, found=found or None, right=right)


def robot(reply: Reply, *found: str, right: str = "", **declared: Any) -> Setup:
    provider = replace(ROBOT, **declared)
    return Setup(provider=provider, replies={"/robot": reply}, found=found or None, right=right)


def crm(reply: Reply, *found: str, right: str = "") -> Setup:
    replies = {"/crm": exchanging(reply)}
    return Setup(provider=CRM, replies=replies, found=found or None, right=right)


REFUSED = "Keyed refuses a made-up API key, as it should"
AT = "correct person.url in [providers.keyed] of elicit.toml"
ALLOW = "allow the grant type client_credentials for this client at Robot"
ALLOW_EXCHANGE = "allow the grant type token-exchange for this client at CRM"
PAGE = answers(200, html="<h1>Hello</h1>")
SETUPS: dict[str, Setup] = {
    "key: correct": keyed(answers(401), right=REFUSED),
    "key: refused with 200 and no person": keyed(answers(200, json={"ok": False}), right=REFUSED),
    "key: wrong address": keyed(answers(404), "answers HTTP 404", AT),
    "key: any key is accepted": keyed(
        answers(200, json={"id": 7, "email": "ada"}), "accepts a made-up API key", AT
    ),
    "key: another status": keyed(answers(204), "accepts a made-up API key (HTTP 204)", AT),
    "key: redirected": keyed(
        answers(302, headers={"location": "https://evil.example/c"}),
        "redirects to 'https://evil.example/c'",
        "no key is sent elsewhere",
    ),
    "key: provider unreachable": keyed(
        down, "cannot be reached: Keyed did not answer", "allow outgoing https"
    ),
    "key: certificate not trusted": keyed(untrusted, "does not trust", "set SSL_CERT_FILE"),
    "key: clock": Setup(
        provider=KEYED,
        replies={"/me": answers(401)},
        there={"clock_is_ahead": timedelta(minutes=5)},
        found=["it is 300 s behind Keyed's", "by NTP"],
    ),
    "service: right": robot(issues(), right="Robot issues a token of this server's own account"),
    "service: wrong secret": robot(
        refuses("invalid_client", 401),
        "refuses this server's client id or secret (invalid_client)",
        "correct ELICIT_ROBOT_CLIENT_ID and ELICIT_ROBOT_CLIENT_SECRET",
    ),
    "service: secret in the body": robot(
        to_post_only,
        "refuses the client secret sent as basic, and accepts it sent as post",
        'write client_auth = "post" in [providers.robot] of elicit.toml',
    ),
    "service: grant not supported": robot(
        refuses("unsupported_grant_type"),
        "does not support the grant type client_credentials (unsupported_grant_type)",
        ALLOW,
    ),
    "service: grant not allowed": robot(
        refuses("unauthorized_client"), "does not let this client use client_credentials", ALLOW
    ),
    "service: no access to the API": robot(
        refuses("access_denied", 403, error_description="Client is not authorized to access it"),
        "(access_denied) ('Client is not authorized to access it')",
        "its access to resource in [providers.robot]",
    ),
    "service: wrong audience": robot(
        refuses("invalid_target"),
        "does not know the API that the token is for (invalid_target)",
        "correct resource in [providers.robot] of elicit.toml",
    ),
    "service: no such scope": robot(
        refuses("invalid_scope"),
        "refuses the scopes read (invalid_scope)",
        "correct always in [providers.robot] of elicit.toml",
    ),
    "service: scope left out": robot(
        issues(scope="write"),
        "issues a token without the scopes read",
        "correct always in [providers.robot]",
    ),
    "service: refused for another reason": robot(
        refuses("invalid_request"), "issues no token of this server's own account", ALLOW
    ),
    "service: token cannot be used": robot(
        issues(token_type="mac"),
        "of a type that this server does not support",
        "correct token_types",
    ),
    "service: a page": robot(PAGE, "answers with a web page", "correct token in"),
    "service: DPoP demanded": robot(
        refuses("invalid_dpop_proof"),
        "requires DPoP (invalid_dpop_proof)",
        "write dpop = true in [providers.robot]",
    ),
    "service: down": robot(down, "cannot be reached: Robot did not answer", "allow outgoing https"),
    "service: untrusted": robot(untrusted, "does not trust", "set SSL_CERT_FILE"),
    "exchange: right": crm(refuses("invalid_request"), right="CRM accepts this server's client id"),
    "exchange: wrong secret": Setup(
        provider=CRM,
        replies={"/crm": refuses("invalid_client", 401)},
        found=["refuses this server's client id or secret", "ELICIT_CRM_CLIENT_SECRET"],
    ),
    "exchange: not supported": crm(
        refuses("unsupported_grant_type"),
        "does not support the grant type token-exchange",
        ALLOW_EXCHANGE,
    ),
    "exchange: not allowed": crm(
        refuses("unauthorized_client", 403),
        "does not let this client use token-exchange (unauthorized_client)",
        ALLOW_EXCHANGE,
    ),
    "exchange: wrong audience": crm(
        refuses("invalid_target"), "correct exchange.audience in [providers.crm] of elicit.toml"
    ),
    "exchange: no such scope": crm(refuses("invalid_scope"), "correct always in [providers.crm]"),
    "exchange: made-up token is exchanged": crm(
        issues(), "exchanges a made-up token", "let it verify the tokens"
    ),
    "assertion: right": Setup(
        provider=JAG,
        replies={"/crm": refuses("invalid_grant")},
        found=None,
        right="hub.example accepts this server's client id and secret, and refuses a made-up token",
    ),
    "assertion: the issuer does not allow it": Setup(
        provider=JAG,
        replies={
            "/crm": refuses("invalid_grant"),
            "/token": exchanging(refuses("unauthorized_client")),
        },
        found=[
            "hub.example does not let this client use token-exchange",
            "exchange.audience in [providers.crm]",
        ],
    ),
}


async def doctor(network: WrongProvider, settings: Settings, clock: Clock) -> list[Finding]:
    async with httpx.AsyncClient(transport=network) as client:
        outbound = outbound_to(network, client)
        around = Surroundings(outbound=outbound, now=clock, certificate=certificate_end)
        return await examine_outside(settings, around)


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
async def test_wrong_setup_is_named_at_start_and_by_doctor(
    clock: Clock, caplog: pytest.LogCaptureFixture, setup: Setup
) -> None:
    # finding: XO8, XO9
    caplog.set_level(logging.INFO)
    replies = {"/robot": issues(), "/crm": refuses("invalid_grant"), **setup.replies}
    network = WrongProvider(clock=clock, replies=replies, **setup.there)
    about: dict[str, Any] = {"provider": setup.provider, "clock": clock}
    if setup.provider.exchange is not None:
        issuer = openid(SIGN_IN, HUB, label="hub.example")
        client = Client(provider=issuer, client_id=ID, client_secret=SECRET)
        about["identity"] = IdentitySettings(client=client)
    async with served(network, **about) as here:
        await eventually(lambda: logged_texts(caplog.records, "registrations.checked"))
        by_start = logged_texts(caplog.records, "registration.wrong").replace('\\"', '"')
        findings = await doctor(network, here.settings, clock)
    by_doctor = "\n".join(f"{one.says} -> {one.fix}" for one in findings if one.standing == "wrong")
    for text in (by_start, by_doctor):
        assert bool(text) is (setup.found is not None), text
        assert all(part in text for part in setup.found or ()), text
    assert setup.right in "\n".join(one.says for one in findings if one.standing == "ok")
    assert network.secrets_sent_to <= {urlsplit(HUB).hostname}


async def test_check_of_a_registration_sends_no_data_of_a_person(clock: Clock) -> None:
    sent = list[dict[str, list[str]]]()

    def reply(request: httpx.Request) -> httpx.Response:
        sent.append(parse_qs(request.content.decode()))
        return refuses("invalid_grant")(request)

    network = WrongProvider(clock=clock, replies={"/crm": reply})
    async with served(network, provider=CRM, clock=clock) as here:
        await doctor(network, here.settings, clock)
    exchange = next(one for one in sent if f"{GRANT}token-exchange" in one["grant_type"])
    assert exchange["audience"] == ["crm-api"]
    assert exchange["subject_token"][0].count(".") == 2
