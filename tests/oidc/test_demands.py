"""Accounts, sign-in and `elicit doctor` at certified providers, in each of their settings."""

import json
from dataclasses import replace

import pytest
from joserfc.jwk import ECKey

from flows.oauth.provider import Client
from flows.oauth.registered_client import RegisteredClient
from flows.oauth.registration import examined
from flows.providers import openid
from tests.oidc.env import OauthServer, OpenIdProvider, real_time, registration
from tests.oidc.settings import (
    CLIENTS,
    KEYS,
    MOCK_SERVER,
    NODE_OAUTH2_SERVER,
    Setting,
    check_account,
    check_sign_in,
)
from tests.support.mcp_server import new_browser
from webapp.http.client import Outbound

# finding: XO7, XO8


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
async def test_account_connects_and_person_signs_in_with_each_setting(
    acme: OpenIdProvider, client: Setting, keys: Setting
) -> None:
    setting = client.with_keys(keys)
    await check_account(acme, setting)
    await check_sign_in(acme, setting)


async def test_account_connects_and_person_signs_in_at_oauth2_mock_server(node: str) -> None:
    with OpenIdProvider(node, program="mock_server.mjs") as server:
        await check_account(server, MOCK_SERVER)
        await check_sign_in(server, MOCK_SERVER)


async def test_node_oauth2_server_connects_account_and_doctor_explains_why_sign_in_fails(
    node: str,
) -> None:
    with OauthServer(node, program="node_oauth2_server.mjs") as server:
        await check_account(server, NODE_OAUTH2_SERVER)
        issuer = Client(
            provider=openid("signin", server.issuer), client_id="id", client_secret="secret"
        )
        async with new_browser() as http:
            pages = RegisteredClient(
                client=issuer, redirect_uri="http://127.0.0.1:1/signin/callback", claim=("sub",)
            )
            talk = examined(pages, now=real_time()())
            report = await Outbound(http, allow_loopback=True).run(talk)
    (wrong,) = report.findings
    assert "does not publish its endpoints" in wrong.says
    assert "ELICIT_ISSUER must equal the issuer" in (wrong.fix or "")


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
@pytest.mark.parametrize("fault", [None, "secret", "redirect", "id"])
async def test_doctor_tells_right_registration_from_wrong_ones(
    acme: OpenIdProvider, client: Setting, fault: str | None
) -> None:
    clock, redirect = real_time(), "http://127.0.0.1:1/callback/acme"
    our = acme.client("acme", **client.declared)
    secret = our.client_secret if client.secret is None else client.secret
    acme.configure(clients=[registration(redirect, **client.client)], **client.provider)
    if fault == "secret" and secret.startswith("{"):
        secret = json.dumps(ECKey.generate_key("P-256", {"kid": "ours"}).as_dict(private=True))
    elif fault == "secret" and secret:
        secret = "another secret that is long enough to sign with"
    our = replace(our, client_secret=secret)
    if fault == "id":
        our = replace(our, client_id="nobody")
    address = f"{redirect}/other" if fault == "redirect" else redirect
    async with new_browser() as http:
        outbound = Outbound(http, allow_loopback=True)
        our_registration = RegisteredClient(client=our, redirect_uri=address)
        report = await outbound.run(examined(our_registration, now=clock()))
    wrong = " ".join(f"{one.says} {one.fix}" for one in report.findings if one.fix and one.is_wrong)
    words = {
        None: "",
        "secret": "ELICIT_ACME_CLIENT_SECRET" if secret else "",  # a public client has none
        "redirect": "register exactly this redirect URI",
        "id": "ELICIT_ACME_CLIENT_ID",
    }[fault]
    assert (words in wrong) if words else (wrong == ""), report
