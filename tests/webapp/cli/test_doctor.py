"""`elicit doctor` on wrong configurations: each problem is found, with the setting to change."""

import json
import re
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from pytest_httpx import HTTPXMock

from flows.payments.stripe.gateway import RIGHTS
from tests.support.cli import called
from tests.support.clock import Clock
from tests.support.oauth_flow import KEY
from tests.support.records import record
from tests.support.sandbox import person_at
from tests.support.shared_stores import STORES
from webapp.cli.doctor import BACKUP_AGE_AT_MOST, examine_store
from webapp.cli.examination import Finding, Surroundings, certificate_end, examine_outside
from webapp.connecting import clock_finding, utc_now
from webapp.http.browser import page_headers
from webapp.http.client import Outbound
from webapp.records.owners import note_backup
from webapp.sandbox.settings import new_sandbox
from webapp.settings.settings import Settings, read_settings
from webapp.stores import open_store

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
URL = "https://elicit.example"
PUBLIC = {"ELICIT_URL": URL, "ELICIT_SECRET": "a" * 32, "ELICIT_PROXIES": "10.0.0.5"}
STRIPE = {
    **PUBLIC,
    "ELICIT_STRIPE_KEY": "sk_test_abc",
    "ELICIT_STRIPE_WEBHOOK_SECRET": "whsec_" + "a" * 32,
}
ISSUER = "https://login.example"
SIGN_IN = {
    **PUBLIC,
    "ELICIT_ISSUER": ISSUER,
    "ELICIT_ISSUER_CLIENT_ID": "abc",
    "ELICIT_ISSUER_CLIENT_SECRET": "def",
}
API = "https://api.stripe.com/v1"
EVERY_EVENT = (
    *("checkout.session.completed", "checkout.session.async_payment_succeeded"),
    *("checkout.session.async_payment_failed", "checkout.session.expired", "charge.refunded"),
    *("charge.dispute.created", "charge.dispute.updated", "charge.dispute.closed"),
    *("refund.updated", "refund.failed"),
)

# Settings for a server on this machine, with the words that the doctor has to report.
SETTINGS: dict[str, tuple[Mapping[str, str], Sequence[str]]] = {
    "unknown setting": ({"ELICIT_STROE": "memory:"}, ["ELICIT_STROE", "ELICIT_STORE"]),
    "http address": ({"ELICIT_URL": "http://elicit.example"}, ["ELICIT_URL", "https"]),
    "no secret": ({"ELICIT_URL": URL}, ["ELICIT_SECRET", "elicit keys new"]),
    "weak secret": ({"ELICIT_SECRET": "short"}, ["ELICIT_SECRET", "elicit keys new"]),
    "memory store": ({"ELICIT_STORE": "memory:"}, ["ELICIT_STORE to sqlite:///"]),
    "unknown type of store": ({"ELICIT_STORE": "mongodb://far/db"}, ["ELICIT_STORE", "sqlite:///"]),
    "provider without a client secret": (
        {"ELICIT_GITHUB_CLIENT_ID": "abc"},
        ["ELICIT_GITHUB_CLIENT_SECRET"],
    ),
    "publishable Stripe key": (
        {"ELICIT_STRIPE_KEY": "pk_test_a", "ELICIT_STRIPE_WEBHOOK_SECRET": "whsec_a"},
        ["ELICIT_STRIPE_KEY", "sk_"],
    ),
}


@pytest.mark.parametrize(("extra", "words"), SETTINGS.values(), ids=SETTINGS)
async def test_wrong_setting_is_named_with_fix(
    tmp_path: Path, extra: Mapping[str, str], words: Sequence[str]
) -> None:
    result = await called("doctor", home=tmp_path, extra=extra)
    assert result.status == 1
    lines = [line for line in result.out.splitlines() if not line.startswith("ok")]
    assert all(word in "\n".join(lines) for word in words), result.out


async def test_wrong_secret_for_store_is_reported(tmp_path: Path) -> None:
    was = await called("payments", "list", home=tmp_path, extra={"ELICIT_SECRET": "a" * 32})
    result = await called("doctor", home=tmp_path, extra={"ELICIT_SECRET": "b" * 32})
    assert (was.status, result.status) == (0, 1)
    assert "set ELICIT_SECRET to that secret" in result.out
    assert "NO  secrets" in result.out
    assert "http://127.0.0.1:8765 (the default port of elicit serve;" in result.out


async def test_moved_store_is_reported_with_new_address(tmp_path: Path) -> None:
    old, new = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    store = await open_store(old)
    await store.write(record("a-1"))
    await store.aclose()
    assert (await called("move", old, new, home=tmp_path)).status == 0
    extra = {"ELICIT_STORE": old, "ELICIT_SECRET": "a" * 32}
    result = await called("doctor", home=tmp_path, extra=extra)
    assert (result.status, f"has moved to {new}: set ELICIT_STORE to that" in result.out) == (
        1,
        True,
    )


async def test_json_output_has_standing_and_fix_of_each_finding(tmp_path: Path) -> None:
    result = await called("doctor", "--json", home=tmp_path, extra={"ELICIT_STORE": "memory:"})
    (found,) = [each for each in json.loads(result.out) if each["standing"] == "wrong"]
    assert (found["subject"], "ELICIT_STORE" in found["fix"], result.status) == ("kept", True, 1)


# A public server: its outgoing and incoming connections.


def settings_of(environment: Mapping[str, str], tmp_path: Path) -> Settings:
    return read_settings({"HOME": str(tmp_path), **environment})


async def examined(
    environment: Mapping[str, str],
    tmp_path: Path,
    *,
    end: datetime | Exception = NOW + timedelta(days=90),
) -> list[Finding]:
    async def resolve(_: str, __: int) -> Sequence[str]:
        return ["93.184.215.14"]

    async def certificate(_: str, __: int) -> datetime:
        if isinstance(end, Exception):
            raise end
        return end

    async with httpx.AsyncClient() as client:
        outbound = Outbound(client, allow_loopback=False, resolve=resolve)
        around = Surroundings(outbound=outbound, now=lambda: NOW, certificate=certificate)
        return await examine_outside(settings_of(environment, tmp_path), around)


def alive(network: HTTPXMock, **about: Any) -> None:
    answer = {"json": {"status": "ok"}, "headers": page_headers(), **about}
    network.add_response(url=f"{URL}/live", **answer)


def at_stripe(
    network: HTTPXMock,
    *endpoints: Mapping[str, Any],
    date: datetime = NOW,
    account: int = 200,
    listing: int = 200,
    rights: Mapping[str, int] = {},
    whole: int = 200,
) -> None:
    """Mock Stripe's API.

    `rights` maps a right to the response status of a request that needs the right. A right that is
    not in `rights` gets the status of a full-access key.
    """
    headers = {"date": format_datetime(date, usegmt=True)}
    network.add_response(
        url=f"{API}/account", json={"id": "acct_1"}, headers=headers, status_code=account
    )
    if account != 401:
        for right, (method, path) in RIGHTS.items():
            status = rights.get(right, 404 if method == "POST" else 200)
            place = API.removesuffix("/v1") + path
            network.add_response(method=method, url=place, json={}, status_code=status)
        place = f"{API}/checkout/sessions?limit=1&expand[]=data.payment_intent.latest_charge"
        network.add_response(url=place, json={}, status_code=whole)
        network.add_response(
            url=f"{API}/webhook_endpoints?limit=100",
            json={"data": list(endpoints)},
            status_code=listing,
        )


def endpoint(*events: str, url: str = f"{URL}/webhooks/stripe", status: str = "enabled") -> Any:
    return {"url": url, "status": status, "enabled_events": list(events)}


def findings_text(found: Sequence[Finding], standing: str) -> str:
    return "\n".join(f"{each.says} -> {each.fix}" for each in found if each.standing == standing)


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"status_code": 421}, ["changes the Host header", "proxy_set_header Host"]),
        ({"status_code": 301, "headers": {"location": "https://x.example"}}, ["ELICIT_URL to"]),
        ({"status_code": 502}, ["cannot reach the server", "--host and --port"]),
        ({"status_code": 404}, ["another program answers", "set ELICIT_URL", "ELICIT_ROOT_PATH"]),
        ({"json": None, "text": "<h1>It works!</h1>"}, ["another program answers"]),
    ],
    ids=["host", "redirect", "no server", "path", "another"],
)
async def test_wrong_answer_at_public_url_is_reported_with_fix(
    tmp_path: Path, httpx_mock: HTTPXMock, about: dict[str, Any], words: Sequence[str]
) -> None:
    alive(httpx_mock, **about)
    text = findings_text(await examined(PUBLIC, tmp_path), "wrong")
    assert all(word in text for word in words), text


async def test_missing_sign_in_is_reported_as_note(tmp_path: Path, httpx_mock: HTTPXMock) -> None:
    alive(httpx_mock, is_reusable=True)
    text = findings_text(await examined(PUBLIC, tmp_path), "note")
    assert "all other questions are refused -> set ELICIT_ISSUER" in text
    by_code = {**PUBLIC, "ELICIT_ANONYMOUS": "code"}
    assert "confirm" not in findings_text(await examined(by_code, tmp_path), "note")


async def test_unreachable_public_url_is_reported(tmp_path: Path, httpx_mock: HTTPXMock) -> None:
    httpx_mock.add_exception(httpx.ConnectError("refused"), url=f"{URL}/live")
    text = findings_text(await examined(PUBLIC, tmp_path), "wrong")
    assert f"{URL}/live cannot be reached from here (refused)" in text
    assert "set ELICIT_URL to the address that people open" in text


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (NOW + timedelta(days=5, hours=1), "ends in 5 days -> renew it"),
        (NOW - timedelta(days=1), "has ended -> renew it"),
        (ssl.SSLCertVerificationError(1, "self-signed"), "with its full chain"),
    ],
    ids=["soon", "ended", "certificate not trusted"],
)
async def test_expiring_or_invalid_certificate_is_reported(
    tmp_path: Path, httpx_mock: HTTPXMock, end: datetime | Exception, words: str
) -> None:
    alive(httpx_mock)
    if isinstance(end, ssl.SSLCertVerificationError):
        end.verify_message = "self-signed"
    assert words in findings_text(await examined(PUBLIC, tmp_path, end=end), "wrong")


async def test_header_removed_by_proxy_is_reported(tmp_path: Path, httpx_mock: HTTPXMock) -> None:
    headers = {name: value for name, value in page_headers().items() if name != "referrer-policy"}
    alive(httpx_mock, headers=headers)
    text = findings_text(await examined({**PUBLIC, "ELICIT_PROXIES": ""}, tmp_path), "note")
    assert "removes or changes referrer-policy" in text
    assert "set ELICIT_PROXIES to its address" in text


@pytest.mark.parametrize(
    ("seconds", "says"),
    [
        (-31, "it is 31 s ahead of Acme's"),
        (-30, "it matches Acme's"),
        (40, "it matches Acme's"),  # the response takes up to 50 s
        (80, "it matches Acme's"),
        (81, "it is 31 s behind Acme's"),
    ],
)
def test_slow_response_is_not_mistaken_for_a_wrong_clock(seconds: int, says: str) -> None:
    reported_at = format_datetime(NOW + timedelta(seconds=seconds))
    found = clock_finding(reported_at, "Acme", between=(NOW, NOW + timedelta(seconds=50)))
    assert found is not None
    assert found.says == says


WRONG_AT_STRIPE: dict[str, tuple[dict[str, Any], Sequence[Any], Sequence[str]]] = {
    "key": ({"account": 401}, [], ["rejects the key", "set ELICIT_STRIPE_KEY"]),
    "no endpoint": ({}, [], ["no webhook endpoint", "ELICIT_STRIPE_WEBHOOK_SECRET"]),
    "another endpoint": (
        {},
        [endpoint("*", url="https://old.example/webhooks/stripe")],
        [f"no webhook endpoint {URL}/webhooks/stripe (it has: https://old.example"],
    ),
    "endpoint disabled": ({}, [endpoint("*", status="disabled")], ["disabled", "enable it"]),
    "too few events": (
        {},
        [endpoint(*EVERY_EVENT[:-5])],
        ["charge.dispute.closed, charge.dispute.created, charge.dispute.updated, refund.failed"],
    ),
    "clock": (
        {"date": NOW - timedelta(minutes=3)},
        [endpoint("*")],
        ["180 s ahead of Stripe's", "NTP"],
    ),
}


@pytest.mark.parametrize(
    ("about", "endpoints", "words"), WRONG_AT_STRIPE.values(), ids=WRONG_AT_STRIPE
)
async def test_wrong_stripe_configuration_is_reported_with_fix(
    tmp_path: Path,
    httpx_mock: HTTPXMock,
    about: dict[str, Any],
    endpoints: Sequence[Any],
    words: Sequence[str],
) -> None:
    alive(httpx_mock)
    at_stripe(httpx_mock, *endpoints, **about)
    text = findings_text(await examined(STRIPE, tmp_path), "wrong")
    assert all(word in text for word in words), text


async def test_restricted_stripe_key_is_a_note_about_unreadable_webhooks(
    tmp_path: Path, httpx_mock: HTTPXMock
) -> None:
    alive(httpx_mock)
    at_stripe(httpx_mock, account=403, listing=403)
    found = await examined(STRIPE, tmp_path)
    assert findings_text(found, "wrong") == ""
    assert "/webhooks/stripe -> let the key read webhook endpoints" in findings_text(found, "note")


@pytest.mark.parametrize("right", [*RIGHTS, None])
async def test_missing_right_of_stripe_key_is_reported(
    tmp_path: Path, httpx_mock: HTTPXMock, right: str | None
) -> None:
    # finding: XM9
    alive(httpx_mock)
    lacking = {} if right is None else {right: 403}
    at_stripe(httpx_mock, endpoint("*"), rights=lacking, whole=403)
    text = findings_text(await examined(STRIPE, tmp_path), "wrong")
    assert f"lacks a permission at Stripe that payments need: {right or 'one of'}" in text
    assert "add this permission to the key at https://dashboard.stripe.com/apikeys" in text
    tried = [one for one in httpx_mock.get_requests() if one.method == "POST"]
    assert all("_of_the_doctor" in one.url.path and not one.content for one in tried)


async def test_unknown_rights_of_stripe_key_are_a_note(
    tmp_path: Path, httpx_mock: HTTPXMock
) -> None:
    # finding: XM9
    alive(httpx_mock)
    at_stripe(httpx_mock, endpoint("*"), rights={"Disputes: read": 500})
    found = await examined(STRIPE, tmp_path)
    assert findings_text(found, "wrong") == ""
    assert "did not report the permissions of the key" in findings_text(found, "note")


async def test_unreachable_stripe_is_a_note(tmp_path: Path, httpx_mock: HTTPXMock) -> None:
    alive(httpx_mock)
    httpx_mock.add_exception(httpx.ConnectError("refused"), url=f"{API}/account")
    found = await examined(STRIPE, tmp_path)
    assert findings_text(found, "wrong") == ""
    assert "could not be reached" in findings_text(found, "note")


async def test_issuer_mismatch_in_discovery_document_is_reported(
    tmp_path: Path, httpx_mock: HTTPXMock
) -> None:
    alive(httpx_mock)
    httpx_mock.add_response(
        url=f"{ISSUER}/.well-known/openid-configuration", json={"issuer": f"{ISSUER}/"}
    )
    text = findings_text(await examined(SIGN_IN, tmp_path), "wrong")
    assert f"{ISSUER} cannot be used" in text
    assert "ELICIT_ISSUER must equal the issuer in its /.well-known/openid-configuration" in text


def at_issuer(network: HTTPXMock, *, more: Mapping[str, Any] | None = None, **answer: Any) -> None:
    """Mock an issuer that answers the browser's authorization request with `answer`.

    `more` is in its metadata.
    """
    network.add_response(
        url=f"{ISSUER}/.well-known/openid-configuration",
        json={
            "issuer": ISSUER,
            "authorization_endpoint": f"{ISSUER}/authorize",
            "token_endpoint": f"{ISSUER}/token",
            "jwks_uri": f"{ISSUER}/jwks",
            **(more or {}),
        },
    )
    network.add_response(url=f"{ISSUER}/jwks", json={"keys": [KEY.as_dict(private=False)]})
    refused = {"error": "invalid_grant"}
    network.add_response(method="POST", url=f"{ISSUER}/token", status_code=400, json=refused)
    network.add_response(url=re.compile(f"{ISSUER}/authorize.*prompt=none"), **answer)


@pytest.mark.parametrize(
    "serves", [None, "http://127.0.0.1:9999"], ids=["registered", "not registered"]
)
async def test_redirect_uri_registration_is_checked_at_issuer(
    tmp_path: Path, clock: Clock, serves: str | None
) -> None:
    own_url = "http://127.0.0.1:8765"
    sandbox = new_sandbox(url="http://127.0.0.1:8766", serves=serves or own_url)
    settings = settings_of(
        {
            "ELICIT_ISSUER": f"{sandbox.url}/oidc",
            "ELICIT_ISSUER_CLIENT_ID": sandbox.client_id,
            "ELICIT_ISSUER_CLIENT_SECRET": sandbox.client_secret,
        },
        tmp_path,
    )
    async with person_at(sandbox, clock=clock) as there:
        outbound = Outbound(there.http, allow_loopback=True)
        around = Surroundings(outbound=outbound, now=clock, certificate=certificate_end)
        found = await examine_outside(settings, around)
    place = f"{own_url}/signin/callback"
    if serves is None:
        assert f"redirects people to {place}" in findings_text(found, "ok")
    else:
        text = findings_text(found, "wrong")
        assert (
            f"refuses to redirect people to {place} -> register exactly this redirect URI" in text
        )
        assert f"client {sandbox.client_id} there, or set ELICIT_ISSUER_CLIENT_ID" in text


@pytest.mark.parametrize(
    "answer",
    [
        {"status_code": 200, "text": "Who are you?"},
        {"status_code": 302, "headers": {"location": "https://elsewhere.example/login"}},
        {"status_code": 429},
    ],
    ids=["200 with a page", "redirect to another host", "429"],
)
async def test_redirect_uri_to_register_is_shown_if_issuer_gives_no_clear_answer(
    tmp_path: Path, httpx_mock: HTTPXMock, answer: dict[str, Any]
) -> None:
    alive(httpx_mock)
    at_issuer(httpx_mock, **answer)
    found = await examined(SIGN_IN, tmp_path)
    assert findings_text(found, "wrong") == ""
    assert f"must have this redirect URI: {URL}/signin/callback" in findings_text(found, "ok")


async def test_offered_dpop_is_shown_with_its_setting(
    tmp_path: Path, httpx_mock: HTTPXMock
) -> None:
    alive(httpx_mock)
    offered = {"dpop_signing_alg_values_supported": ["RS256", "ES256"]}
    at_issuer(httpx_mock, more=offered, status_code=200, text="Who are you?")
    found = findings_text(await examined(SIGN_IN, tmp_path), "ok")
    assert "offers DPoP" in found
    assert "set ELICIT_ISSUER_DPOP=1" in found


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ({}, ["publishes no end_session_endpoint", "does not say that it reports sessions"]),
        (
            {
                "end_session_endpoint": f"{ISSUER}/logout",
                "backchannel_logout_supported": True,
            },
            [f"redirect URI {URL}/signout/done", f"logout URI {URL}/signin/logout"],
        ),
    ],
    ids=["without sign-out", "with sign-out"],
)
async def test_addresses_for_sign_out_are_shown_if_issuer_offers_it(
    tmp_path: Path, httpx_mock: HTTPXMock, more: Mapping[str, Any], lines: Sequence[str]
) -> None:
    alive(httpx_mock)
    at_issuer(httpx_mock, more=more, status_code=200, text="Who are you?")
    found = findings_text(await examined(SIGN_IN, tmp_path), "ok")
    assert all(line in found for line in lines)


@pytest.mark.parametrize("kind", ["postgres", "valkey"])
async def test_clock_difference_to_store_server_is_reported(tmp_path: Path, kind: str) -> None:
    async with STORES[kind](tmp_path) as url:
        settings = settings_of({**PUBLIC, "ELICIT_STORE": url}, tmp_path)

        async def finding(ahead: timedelta) -> Finding:
            """Return the finding about the clock, as if this machine's clock were `ahead`."""
            found = await examine_store(
                settings, outbound=Outbound.none(), clock=lambda: utc_now() + ahead
            )
            (clock,) = [each for each in found if each.subject == "clock"]
            return clock

        assert (await finding(timedelta())).standing == "ok"
        far = await finding(timedelta(hours=1))
        assert (far.standing, "behind this machine's" in far.says) == ("note", True)
        assert "NTP" in (far.fix or "")
        assert "ahead of this machine's" in (await finding(timedelta(hours=-1))).says


async def test_correct_configuration_lists_addresses_to_register(
    tmp_path: Path, httpx_mock: HTTPXMock
) -> None:
    alive(httpx_mock)
    at_stripe(httpx_mock, endpoint(*EVERY_EVENT))
    back = f"{URL}/signin/callback?error=login_required&state=1"
    at_issuer(httpx_mock, status_code=302, headers={"location": back})
    github = {"ELICIT_GITHUB_CLIENT_ID": "abc", "ELICIT_GITHUB_CLIENT_SECRET": "def"}
    httpx_mock.add_response(
        method="POST",
        url="https://github.com/login/oauth/access_token",
        json={"error": "bad_verification_code"},
    )
    found = await examined({**STRIPE, **SIGN_IN, **github}, tmp_path)
    assert {each.standing for each in found} == {"ok"}
    text = findings_text(found, "ok")
    assert f"must have this redirect URI: {URL}/callback/github" in text
    assert f"redirects people to {URL}/signin/callback" in text
    assert f"Stripe sends all events that payments need to {URL}/webhooks/stripe" in text
    assert "it matches Stripe's" in text


EVENTS = {
    **PUBLIC,
    "ELICIT_EVENTS_CRM_URL": "https://crm.example/hooks",
    "ELICIT_EVENTS_CRM_SECRET": "whsec_" + "a" * 32,
}


@pytest.mark.parametrize("status", [200, 401])
async def test_event_webhook_url_with_any_answer_is_reachable(
    tmp_path: Path, httpx_mock: HTTPXMock, status: int
) -> None:
    alive(httpx_mock)
    url = EVENTS["ELICIT_EVENTS_CRM_URL"]
    httpx_mock.add_response(method="HEAD", url=url, status_code=status)
    found = await examined(EVENTS, tmp_path)
    assert "elicit events test crm" in findings_text(found, "ok")


async def test_unreachable_event_webhook_url_is_reported_with_setting(
    tmp_path: Path, httpx_mock: HTTPXMock
) -> None:
    alive(httpx_mock)
    url = EVENTS["ELICIT_EVENTS_CRM_URL"]
    httpx_mock.add_exception(httpx.ConnectError("refused"), method="HEAD", url=url)
    text = findings_text(await examined(EVENTS, tmp_path), "wrong")
    assert "ELICIT_EVENTS_CRM_URL" in text
    assert "ELICIT_TRUSTED_HOSTS" in text


async def test_age_of_last_backup_is_reported(tmp_path: Path) -> None:
    settings = settings_of({}, tmp_path)

    async def finding() -> str:
        found = await examine_store(settings, outbound=Outbound.none(), clock=lambda: NOW)
        (backup,) = [each for each in found if each.subject == "backup"]
        return f"{backup.standing} {backup.says}"

    assert await finding() == "note none was made"
    for age, words in (
        (BACKUP_AGE_AT_MOST + timedelta(hours=1), "note the last was made 2026-02-22"),
        (timedelta(hours=25), "ok the last was made 2026-02-28 11:00 UTC, 1 day ago"),
        (timedelta(hours=5), "ok the last was made 2026-03-01 07:00 UTC, 0 days ago"),
    ):
        store = await open_store(settings.store)
        with suppress(ValueError):
            await note_backup(store, NOW - age)
        await store.aclose()
        assert (await finding()).startswith(words)


async def test_proofs_that_a_declaration_turns_off_are_noted(tmp_path: Path) -> None:
    # finding: XO2
    path = tmp_path / "elicit.toml"
    path.write_text(
        '[providers.acme]\nauthorize = "https://acme.example/a"\ntoken = "https://acme.example/t"\n'
        'api = "https://acme.example"\npkce = false\nnonce = false\n'
        'person = { url = "https://acme.example/me", id = "id", label = "email" }\n',
        "utf-8",
    )
    acme = {"ELICIT_ACME_CLIENT_ID": "abc", "ELICIT_ACME_CLIENT_SECRET": "def"}
    text = findings_text(await examined({"ELICIT_CONFIG": str(path), **acme}, tmp_path), "note")
    assert "Acme is declared with pkce = false" in text
    assert "Acme is declared with nonce = false" in text
