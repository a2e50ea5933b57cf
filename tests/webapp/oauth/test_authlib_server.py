"""authlib's authorization server as an account provider, and as the issuer that signs people in."""

import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from flows.oauth.account import Account
from flows.oauth.provider import Client
from flows.providers import openid
from tests.support.authlib_server import ISSUER, AuthlibServer
from tests.support.clock import Clock
from tests.support.connections_page import main_text, press
from tests.support.mcp_server import eventually
from tests.support.oauth_env import OAuthEnv
from tests.support.wrong_provider import ID, SECRET, logged_texts, served
from webapp.settings.identity import PROVIDER as SIGN_IN
from webapp.settings.identity import IdentitySettings

SCOPES = ("openid", "profile", "offline_access")
HUB = openid("hub", ISSUER, label="Hub")


@pytest.fixture
def now() -> Clock:
    """Return a clock at the real time, because authlib's server reads that."""
    return Clock(datetime.now(UTC))


async def _connected(here: OAuthEnv, network: AuthlibServer) -> Account:
    asked, person = here.ask(*SCOPES, provider=HUB), await here.person()
    leaves = await person.go_on(await asked.link())
    back = network.authorized(leaves, "ada").headers["location"]
    page = await person.visit(back)
    assert page.status in (200, 303), page.text
    return await asked.account()


@pytest.mark.parametrize("auth", ["basic", "post"])
async def test_account_at_authlib_is_connected_refreshed_and_revoked(
    now: Clock, caplog: pytest.LogCaptureFixture, auth: Any
) -> None:
    caplog.set_level(logging.INFO)
    network = AuthlibServer(client_id=ID, secret=SECRET)
    provider = replace(HUB, client_auth=auth)
    async with served(network, provider=provider, clock=now) as here:
        await eventually(lambda: logged_texts(caplog.records, "registrations.checked"))
        assert logged_texts(caplog.records, "registration.wrong", "registration.unclear") == ""
        account = await _connected(here, network)
        assert (account.id, account.label) == ("ada", "Ada")
        now.tick(days=30)
        renewed = await here.ask(*SCOPES, provider=HUB).account()
        assert renewed.access_token != account.access_token
        assert [one.is_revoked for one in network.tokens] == [True, False]
        page = await press(await here.person(), here, "/disconnect")
        assert "has confirmed that access is revoked" in main_text(page)
        assert all(one.is_revoked for one in network.tokens)


async def test_wrong_secret_at_authlib_is_named_at_start(
    now: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    network = AuthlibServer(client_id=ID, secret="another")
    async with served(network, provider=HUB, clock=now):
        await eventually(lambda: logged_texts(caplog.records, "registration.wrong"))
    found = logged_texts(caplog.records, "registration.wrong")
    assert "refuses this server's client id or secret (invalid_client)" in found


@pytest.mark.parametrize(
    ("audience", "status"), [("/mcp", 400), ("", 401)], ids=["for /mcp", "for another API"]
)
async def test_person_of_authlib_signs_in_and_calls_mcp(
    now: Clock, audience: str, status: int
) -> None:
    network = AuthlibServer(client_id=ID, secret=SECRET)
    client = Client(
        provider=openid(SIGN_IN, ISSUER, label="Hub"), client_id=ID, client_secret=SECRET
    )
    async with served(network, identity=IdentitySettings(client=client), clock=now) as here:
        network.audience = here.url + audience
        person = await here.person()
        leaves = (await person.press(f"{here.url}/connections", to="/signin")).location
        assert leaves is not None
        back = network.authorized(leaves, "ada").headers["location"]
        assert (await person.visit(back)).status == 303
        assert "Ada" in (await person.visit(f"{here.url}/connections")).text
        # A call without a session gets to the library, which refuses it with 400.
        answer = await person.browser.post(
            f"{here.url}/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": "ping"},
            headers=_bearer(network.tokens[0].values["access_token"]),
        )
        assert answer.status_code == status, answer.text


def _bearer(token: str) -> dict[str, str]:
    accepted = "application/json, text/event-stream"
    return {"authorization": f"Bearer {token}", "accept": accepted}
