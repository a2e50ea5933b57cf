"""Wrong set-ups of providers: the start, the doctor, the log, the model and the person say so."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from flows.errors import ElicitError
from flows.oauth.provider import Client
from flows.providers import openid
from tests.support.clock import Clock
from tests.support.mcp_server import eventually
from tests.support.wrong_provider import (
    HUB,
    ID,
    SECRET,
    WrongProvider,
    outbound_to,
    served,
    told,
)
from webapp.cli.examination import Surroundings, certificate_end, examine_outside
from webapp.settings.identity import PROVIDER as SIGN_IN
from webapp.settings.identity import IdentitySettings

PROVIDER = openid("hub", HUB, label="Hub")
NAMED = ("registration.wrong",)
USED = ("exchange.failed", "provider.unusable", "provider.failed", "request.not_pushed")
_LONG = b'{"issuer": "' + b"x" * (1024 * 1024) + b'"}'
DISCOVERY = "/.well-known/openid-configuration"


def _untrusted(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError(
        "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate in chain", request=request
    )


def _refused(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("All connection attempts failed", request=request)


def answers(status: int, **about: Any) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(status, **about)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A set-up, and the expected texts: parts of each text, or None if there must be no text.

    `found` is what the start logs and the doctor says. `model` is None if the account arrives.
    """

    there: Mapping[str, Any] = field(default_factory=dict[str, Any])
    declared: Mapping[str, Any] = field(default_factory=dict[str, Any])
    credentials: tuple[str, str] = (ID, SECRET)
    found: Sequence[str] | None
    used: Sequence[str] | None
    model: str | None
    person: str
    ends_at_provider: bool = False


_ISSUER = "issuer in [providers.hub] of elicit.toml must equal the issuer"
_NOT_SET_UP = "Only the server's operator can correct that"
_DIFFERS = "published an issuer that differs"
SETUPS: dict[str, Setup] = {
    "right": Setup(found=None, used=None, model=None, person="is connected"),
    "wrong secret": Setup(
        credentials=(ID, "another"),
        found=[
            "refuses this server's client id or secret (invalid_client)",
            "correct ELICIT_HUB_CLIENT_ID and ELICIT_HUB_CLIENT_SECRET",
        ],
        used=["exchange.failed", "invalid_client"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "wrong client id": Setup(
        credentials=("another", SECRET),
        found=["refuses this server's client id or secret", "correct ELICIT_HUB_CLIENT_ID"],
        used=None,
        model=None,
        person="",
        ends_at_provider=True,
    ),
    "keys down": Setup(
        there={"replies": {"/jwks": answers(500)}},
        found=["the keys of Hub cannot be read", "/jwks answers HTTP 500"],
        used=["exchange.failed", "publishes no usable key"],
        model="publishes no usable key",
        person="publishes no usable key",
    ),
    "keys empty": Setup(
        there={"replies": {"/jwks": answers(200, json={"keys": []})}},
        found=["contain no key that can verify its signatures (0 keys)", "add a key for"],
        used=["exchange.failed", "publishes no usable key"],
        model="publishes no usable key",
        person="publishes no usable key",
    ),
    "pushed requests demanded": Setup(
        there={"demands_par": True}, found=None, used=None, model=None, person="is connected"
    ),
    "pushed requests and wrong secret": Setup(
        there={"demands_par": True},
        credentials=(ID, "another"),
        found=["refuses this server's client id or secret", "ELICIT_HUB_CLIENT_SECRET"],
        used=["request.not_pushed", "invalid_client"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "only private_key_jwt": Setup(
        there={"methods": ["private_key_jwt"], "takes": "private_key_jwt"},
        found=[
            "accepts only private_key_jwt",
            'client_auth = "private_key_jwt"',
            "ELICIT_HUB_CLIENT_SECRET to the private key",
        ],
        used=["exchange.failed", "invalid_client"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "only mutual TLS": Setup(
        there={"methods": ["tls_client_auth"], "takes": "tls"},
        found=["accepts only tls_client_auth", "allow another one for this client"],
        used=["exchange.failed", "invalid_client"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
    "pairwise subjects": Setup(
        there={"metadata": {"subject_types_supported": ["pairwise"]}},
        found=None,
        used=None,
        model=None,
        person="is connected",
    ),
    "only HS256": Setup(
        there={
            "metadata": {"id_token_signing_alg_values_supported": ["HS256"]},
            "algorithm": "HS256",
        },
        found=["signs ID tokens only with HS256", "id_token_signed_response_alg"],
        used=["exchange.failed", "signed with HS256"],
        model="signed with HS256",
        person="signed with HS256",
    ),
    "HS256 for this client": Setup(
        there={"algorithm": "HS256"},
        found=None,
        used=["exchange.failed", "signed with HS256"],
        model="signed with HS256",
        person="signed with HS256",
    ),
    "private certificate authority": Setup(
        there={"replies": {DISCOVERY: _untrusted}},
        found=["certificate that this server does not trust", "set SSL_CERT_FILE"],
        used=["provider.unusable", "does not trust"],
        model="certificate that this server does not trust",
        person="certificate that this server does not trust",
    ),
    "down": Setup(
        there={"replies": {DISCOVERY: _refused}},
        found=["cannot be reached: Hub did not answer", "allow outgoing https"],
        used=["provider.failed", "did not answer"],
        model="waits",
        person="did not answer",
    ),
    "a slash too many": Setup(
        there={"metadata": {"issuer": f"{HUB}/"}},
        found=[f"published the issuer '{HUB}/', and the configured one is '{HUB}'", _ISSUER],
        used=["provider.unusable", f"published the issuer '{HUB}/'"],
        model=_DIFFERS,
        person=_DIFFERS,
    ),
    "http instead of https": Setup(
        there={"metadata": {"issuer": "http://hub.example"}},
        found=["published the issuer 'http://hub.example'", _ISSUER],
        used=["provider.unusable", "'http://hub.example'"],
        model=_DIFFERS,
        person=_DIFFERS,
    ),
    "metadata of another issuer": Setup(
        there={
            "metadata": {
                "issuer": "https://evil.example",
                "token_endpoint": "https://evil.example/t",
            }
        },
        found=["published the issuer 'https://evil.example'", _ISSUER],
        used=["provider.unusable", "'https://evil.example'"],
        model=_DIFFERS,
        person=_DIFFERS,
    ),
    "metadata of a megabyte": Setup(
        there={"replies": {DISCOVERY: answers(200, content=_LONG)}},
        found=["reply is too large", "more than a megabyte"],
        used=["provider.unusable", "too large"],
        model="too large",
        person="too large",
    ),
    "metadata is a page": Setup(
        there={"replies": {DISCOVERY: answers(200, html="<h1>Hello</h1>")}},
        found=["does not publish its endpoints (no JSON)", _ISSUER],
        used=["provider.unusable", "no JSON"],
        model="does not publish its endpoints",
        person="does not publish its endpoints",
    ),
    "no metadata": Setup(
        there={"replies": {DISCOVERY: answers(404)}},
        found=["does not publish its endpoints (HTTP 404)", _ISSUER],
        used=["provider.unusable", "HTTP 404"],
        model="does not publish its endpoints",
        person="does not publish its endpoints",
    ),
    "redirect URI not registered": Setup(
        there={"redirect_uri": "https://tools.example/callback/hub"},
        found=[
            "refuses to redirect people to http://127.0.0.1:",
            "register exactly this redirect URI for the client our-id",
        ],
        used=None,
        model=None,
        person="",
        ends_at_provider=True,
    ),
    "clock off by minutes": Setup(
        there={"clock_is_ahead": timedelta(minutes=5)},
        found=["it is 300 s behind Hub's", "by NTP"],
        used=["exchange.failed", "time of this server's clock"],
        model="time of this server's clock",
        person="time of this server's clock",
    ),
    "DPoP demanded": Setup(
        there={"demands_dpop": True},
        found=["requires DPoP (invalid_dpop_proof)", "write dpop = true in [providers.hub]"],
        used=["exchange.failed", "invalid_dpop_proof"],
        model="requires DPoP",
        person="requires DPoP",
    ),
    "DPoP demanded and declared": Setup(
        there={"demands_dpop": True},
        declared={"dpop": True},
        found=None,
        used=None,
        model=None,
        person="is connected",
    ),
    "token endpoint missing": Setup(
        there={"replies": {"/token": answers(404)}},
        found=[f"the token endpoint {HUB}/token answers HTTP 404", "correct issuer in"],
        used=["exchange.failed", "404"],
        model="did not issue an access token (HTTP 404)",
        person="did not issue an access token (HTTP 404)",
    ),
    "token endpoint redirects": Setup(
        there={"replies": {"/token": answers(307, headers={"location": "https://evil.example/t"})}},
        found=["redirects to 'https://evil.example/t'", "no secret is sent elsewhere"],
        used=["exchange.failed", "307"],
        model="did not issue an access token",
        person="did not issue an access token",
    ),
    "token endpoint wants the secret in the body": Setup(
        there={"methods": [], "takes": "post"},
        found=[
            "refuses the client secret sent as basic, and accepts it sent as post",
            'write client_auth = "post" in [providers.hub] of elicit.toml',
        ],
        used=["exchange.failed", "invalid_client"],
        model=_NOT_SET_UP,
        person=_NOT_SET_UP,
    ),
}

# finding: XO7, XO8, I8, I9


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS)
async def test_wrong_setup_is_named_wherever_it_matters(
    clock: Clock, caplog: pytest.LogCaptureFixture, setup: Setup
) -> None:
    caplog.set_level(logging.INFO)
    network = WrongProvider(clock=clock, **setup.there)
    provider = replace(PROVIDER, **setup.declared)
    about: dict[str, Any] = {"provider": provider, "credentials": setup.credentials}
    async with served(network, clock=clock, **about) as here:
        await eventually(lambda: told(caplog.records, "registrations.checked"))
        _reads(told(caplog.records, *NAMED), setup.found)
        _reads(await _by_doctor(network, here.settings, clock), setup.found)
        caplog.clear()
        asked, person = here.ask(provider=provider), await here.person()
        link = await asked.link()
        page = await person.press(link)
        if page.location is not None and page.location.startswith(HUB):
            back = network.arrive(page.location)
            assert setup.ends_at_provider is (back is None)
            if back is None:
                return
            page = await person.visit(back)
        if page.status != 502:
            page = await person.visit(link)
        assert setup.person in page.text.replace("&#39;", "'"), page.heading
        _reads(told(caplog.records, *USED), setup.used)
        if setup.model == "waits":
            assert not asked.task.done()
        elif setup.model is None:
            assert (await asked.account()).label == "Ada"
        else:
            with pytest.raises(ElicitError) as error:
                await asked.account()
            assert setup.model in str(error.value)
            assert "evil" not in str(error.value) + page.text
    assert network.secrets_sent_to <= {urlsplit(HUB).hostname}


async def _by_doctor(network: WrongProvider, settings: Any, clock: Clock) -> str:
    async with httpx.AsyncClient(transport=network) as client:
        outbound = outbound_to(network, client)
        around = Surroundings(outbound=outbound, now=clock, certificate=certificate_end)
        found = await examine_outside(settings, around)
    return "\n".join(f"{one.says} -> {one.fix}" for one in found if one.standing == "wrong")


def _reads(text: str, parts: Sequence[str] | None) -> None:
    if parts is None:
        assert text == ""
    else:
        plain = text.replace('\\"', '"')
        assert all(part in plain for part in parts), text


async def test_provider_that_repeats_secret_gets_it_into_no_log_and_no_finding(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    said = {"error": "invalid_client", "error_description": f"{SECRET} is wrong"}
    network = WrongProvider(clock=clock, replies={"/token": answers(401, json=said)})
    async with served(network, provider=PROVIDER, clock=clock) as here:
        await eventually(lambda: told(caplog.records, "registrations.checked"))
        found = await _by_doctor(network, here.settings, clock)
    assert "refuses this server's client id or secret" in found
    assert SECRET not in found + str([vars(one) for one in caplog.records])


@dataclass(frozen=True, kw_only=True)
class SignInSetup:
    """A set-up of the issuer where people sign in. `call` is the status of a call at `/mcp`."""

    there: Mapping[str, Any] = field(default_factory=dict[str, Any])
    secret: str = SECRET
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    audience: str = "mcp"
    found: Sequence[str] | None
    used: Sequence[str] | None
    call: int = 200
    model: str | None = None
    person: str | None = None  # None: the person is signed in


_TROUBLE = "are missing or wrong, so nobody can sign in"
SIGN_INS: dict[str, SignInSetup] = {
    "right": SignInSetup(found=None, used=None),
    "pushed requests and DPoP demanded": SignInSetup(
        there={"demands_par": True, "demands_dpop": True},
        settings={"dpop": True},
        found=None,
        used=None,
    ),
    "wrong secret": SignInSetup(
        secret="another",
        found=["correct ELICIT_ISSUER_CLIENT_ID and ELICIT_ISSUER_CLIENT_SECRET"],
        used=["signin.failed", "invalid_client"],
        person=_TROUBLE,
    ),
    "keys down": SignInSetup(
        there={"replies": {"/jwks": answers(500)}},
        found=["/jwks answers HTTP 500"],
        used=["issuer.unavailable", "no usable keys"],
        call=503,
        model="no usable keys",
        person="did not answer, or this server couldn't read the answer",
    ),
    "a slash too many": SignInSetup(
        there={"metadata": {"issuer": f"{HUB}/"}},
        found=["ELICIT_ISSUER must equal the issuer", f"'{HUB}/', and the configured one is"],
        used=["issuer.unavailable", f"published the issuer '{HUB}/'"],
        call=503,
        model="differs from the configured one",
        person=_TROUBLE,
    ),
    "private certificate authority": SignInSetup(
        there={"replies": {DISCOVERY: _untrusted}},
        found=["set SSL_CERT_FILE"],
        used=["issuer.unavailable", "does not trust"],
        call=503,
        model="does not trust",
        person=_TROUBLE,
    ),
    "pairwise subjects": SignInSetup(
        there={"metadata": {"subject_types_supported": ["pairwise"]}},
        found=["gives each client a different subject", "set ELICIT_SUBJECT_CLAIM"],
        used=None,
    ),
    "DPoP demanded": SignInSetup(
        there={"demands_dpop": True},
        found=["requires DPoP", "set ELICIT_ISSUER_DPOP=1"],
        used=["signin.failed", "requires DPoP"],
        person=_TROUBLE,
    ),
    "only private_key_jwt": SignInSetup(
        there={"methods": ["private_key_jwt"], "takes": "key"},
        found=["set ELICIT_ISSUER_CLIENT_AUTH=private_key_jwt"],
        used=["signin.failed", "invalid_client"],
        person=_TROUBLE,
    ),
    "wrong audience": SignInSetup(
        audience="other",
        found=None,
        used=["bearer.refused", "audience"],
        call=401,
        model="not issued for this server",
    ),
}


@pytest.mark.parametrize("setup", SIGN_INS.values(), ids=SIGN_INS)
async def test_wrong_sign_in_is_named_wherever_it_matters(
    clock: Clock, caplog: pytest.LogCaptureFixture, setup: SignInSetup
) -> None:
    # finding: I10
    caplog.set_level(logging.INFO)
    network = WrongProvider(clock=clock, **setup.there)
    issuer = replace(openid(SIGN_IN, HUB, label="hub.example"), **setup.settings)
    client = Client(provider=issuer, client_id=ID, client_secret=setup.secret)
    identity = IdentitySettings(client=client)
    async with served(network, identity=identity, clock=clock) as here:
        await eventually(lambda: told(caplog.records, "registrations.checked"))
        _reads(told(caplog.records, *NAMED), setup.found)
        _reads(await _by_doctor(network, here.settings, clock), setup.found)
        caplog.clear()
        person = await here.person()
        response = await person.press(f"{here.url}/connections", to="/signin")
        if response.location is not None:
            back = network.arrive(response.location)
            assert back is not None
            response = await person.visit(back)
        if setup.person is None:
            assert response.status == 303, response.heading
        else:
            assert response.status == 502
            assert setup.person in response.text.replace("&#39;", "'")
        bearer = network.bearer(f"{here.url}/{setup.audience}")
        asked = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        headers = {**bearer, "accept": "application/json, text/event-stream"}
        answer = await person.browser.post(f"{here.url}/mcp", json=asked, headers=headers)
        # A call without a session gets to the library, which refuses it with 400.
        status = 200 if answer.status_code == 400 else answer.status_code
        assert status == setup.call, answer.text
        if setup.model is not None:
            assert setup.model in answer.text
        _reads(
            told(caplog.records, "signin.failed", "issuer.unavailable", "bearer.refused"),
            setup.used,
        )
    assert network.secrets_sent_to <= {urlsplit(HUB).hostname}
