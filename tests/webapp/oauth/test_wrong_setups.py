"""Wrong provider settings are reported at start, by doctor, and to the model and the person."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from flows.errors import ElicitError
from flows.oauth.provider import Client
from flows.providers import openid
from tests.habits.setups import SETUPS, SIGN_INS, Setup, SignInSetup, answers
from tests.support.clock import Clock
from tests.support.mcp_server import eventually
from tests.support.wrong_provider import (
    HUB,
    SECRET,
    WrongProvider,
    logged_texts,
    outbound_to,
    served,
)
from webapp.cli.examination import Surroundings, certificate_end, examine_outside
from webapp.settings.identity import PROVIDER as SIGN_IN
from webapp.settings.identity import IdentitySettings

PROVIDER = openid("hub", HUB, label="Hub")
NAMED = ("registration.wrong",)
USED = ("exchange.failed", "provider.unusable", "provider.failed", "request.not_pushed")


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
        await eventually(lambda: logged_texts(caplog.records, "registrations.checked"))
        _reads(logged_texts(caplog.records, *NAMED), setup.found)
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
        _reads(logged_texts(caplog.records, *USED), setup.used)
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


async def test_secret_repeated_by_the_provider_is_in_no_log_and_no_finding(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    error = {"error": "invalid_client", "error_description": f"{SECRET} is wrong"}
    network = WrongProvider(clock=clock, replies={"/token": answers(401, json=error)})
    async with served(network, provider=PROVIDER, clock=clock) as here:
        await eventually(lambda: logged_texts(caplog.records, "registrations.checked"))
        found = await _by_doctor(network, here.settings, clock)
    assert "refuses this server's client id or secret" in found
    assert SECRET not in found + str([vars(one) for one in caplog.records])


async def test_inconclusive_reply_of_the_provider_is_logged_at_start(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    error = {"error": "invalid_request", "error_description": "send JSON"}
    network = WrongProvider(clock=clock, replies={"/token": answers(400, json=error)})
    async with served(network, provider=PROVIDER, clock=clock):
        await eventually(lambda: logged_texts(caplog.records, "registrations.checked"))
    unclear = logged_texts(caplog.records, "registration.unclear")
    _reads(unclear, ["invalid_request", "send JSON", "connect one account"])
    assert logged_texts(caplog.records, *NAMED) == ""


@pytest.mark.parametrize("setup", SIGN_INS.values(), ids=SIGN_INS)
async def test_wrong_sign_in_setup_is_reported_to_operator_model_and_person(
    clock: Clock, caplog: pytest.LogCaptureFixture, setup: SignInSetup
) -> None:
    # finding: I10
    caplog.set_level(logging.INFO)
    network = WrongProvider(clock=clock, **setup.there)
    issuer = replace(openid(SIGN_IN, HUB, label="hub.example"), **setup.settings)
    id, secret = setup.credentials
    client = Client(provider=issuer, client_id=id, client_secret=secret)
    identity = IdentitySettings(client=client, claim=(setup.claim,))
    async with served(network, identity=identity, clock=clock) as here:
        await eventually(lambda: logged_texts(caplog.records, "registrations.checked"))
        _reads(logged_texts(caplog.records, *NAMED), setup.found)
        _reads(await _by_doctor(network, here.settings, clock), setup.found)
        caplog.clear()
        person = await here.person()
        response = await person.press(f"{here.url}/connections", to="/signin")
        if response.location is not None:
            back = network.arrive(response.location)
            assert setup.ends_at_provider is (back is None)
            if back is not None:
                response = await person.visit(back)
        if setup.person is None:
            assert response.status == 303, response.heading
        else:
            assert response.status == 502
            assert setup.person in response.text.replace("&#39;", "'")
        bearer = {"authorization": "Bearer opaque"}
        if setup.audience:
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
            logged_texts(caplog.records, "signin.failed", "issuer.unavailable", "bearer.refused"),
            setup.used,
        )
    assert network.secrets_sent_to <= {urlsplit(HUB).hostname}
