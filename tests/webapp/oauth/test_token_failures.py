"""A failed exchange is told: in the log, in the metrics, to the model, and to the operator."""

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from flows.errors import Failed
from tests.support.account_env import (
    CREDENTIALS,
    Asking,
    Network,
    come_home,
    connect,
    give_up,
    opened,
    serving_accounts,
)
from tests.support.clock import Clock
from tests.support.connections_page import press
from tests.support.event_env import CRM
from tests.support.oauth_env import OAuthEnv, decide, ends, oauth_env
from tests.support.refusals import OPERATORS
from tests.support.renewing import Renewing
from webapp.cli.doctor import examine_registrations
from webapp.oauth.token_failures import STANDS
from webapp.records.values import OutgoingEvent
from webapp.service import Service
from webapp.stores.memory import MemoryStore
from webapp.telemetry.metrics import Metrics
from webapp.telemetry.telemetry import Telemetry

SECRET = CREDENTIALS["github"][1]
WRONG_REDIRECT = httpx.Response(
    400, json={"error": "invalid_grant", "error_description": "redirect_uri does not match"}
)


def refusing(network: Network, reply: httpx.Response) -> None:
    """Refuse each exchange with this reply."""

    async def token(request: httpx.Request) -> httpx.Response:
        return httpx.Response(reply.status_code, headers=reply.headers, content=reply.content)

    network.token = token


async def failed(service: Service, **about: Any) -> str:
    """Go all the way with a question whose exchange fails. Return what its call hears."""
    asked = Asking(service, "repo", **about)
    _, state = await opened(service, asked)
    await come_home(service, state)
    with pytest.raises(Failed) as error:
        await asked.account()
    return str(error.value)


async def unasked(service: Service, **about: Any) -> str:
    """Return what a call hears that asks nobody."""
    asked = Asking(service, "repo", **about)
    with pytest.raises(Failed) as error:
        await asked.account()
    assert not asked.has_asked
    return str(error.value)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[Mapping[str, Any]]:
    return [vars(record) for record in caplog.records if record.message == event]


async def test_failed_exchange_is_one_line_with_provider_error_description_and_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # finding: XO4
    network = Network()
    described = {"error": "bad_verification_code", "error_description": "The code is a-code."}
    refusing(network, httpx.Response(200, json=described))
    async with serving_accounts(network) as service:
        asked = Asking(service, "repo")
        elicitation, state = await opened(service, asked)
        await come_home(service, state)
        await give_up(asked)
    (line,) = lines(caplog, "exchange.failed")
    assert line["levelname"] == "WARNING"
    assert (line["provider"], line["id"]) == ("github", elicitation.id)
    assert (line["error"], line["description"]) == ("bad_verification_code", "The code is ***.")


async def test_no_secret_of_an_exchange_is_in_its_line(caplog: pytest.LogCaptureFixture) -> None:
    # finding: XO4
    network = Network()

    async def token(request: httpx.Request) -> httpx.Response:
        echo = request.content.decode()
        said = f"{echo} of ada@example.com, token 0123456789abcdef0123456789abcdef is bad"
        return httpx.Response(400, json={"error": "x", "error_description": said[-300:]})

    network.token = token
    caplog.set_level(logging.DEBUG)
    async with serving_accounts(network) as service:
        await failed(service)
    (line,) = lines(caplog, "exchange.failed")
    assert line["description"] == "*** of *** token *** is bad"
    told = str([vars(record) for record in caplog.records])
    assert SECRET not in told
    assert "a-code" not in told


async def test_failure_without_an_answer_is_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    # finding: XO4
    async def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("too slow", request=request)

    network = Network()
    network.token = silent
    async with serving_accounts(network) as service:
        await failed(service)
    (line,) = lines(caplog, "exchange.failed")
    assert "did not answer" in line["why"]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (httpx.Response(400, json={"error": "invalid_client"}), "client"),
        (httpx.Response(503), "passing"),
        (WRONG_REDIRECT, "redirect"),
        (httpx.Response(200, html="<h1>Hello</h1>"), "other"),
    ],
)
async def test_failed_exchange_is_counted_by_its_class(reply: httpx.Response, reason: str) -> None:
    # finding: XO4
    network, metrics = Network(), Metrics()
    refusing(network, reply)
    async with serving_accounts(network, telemetry=Telemetry(metrics=metrics)) as service:
        await failed(service)
    sample = f'provider="github",reason="{reason}",step="exchange"' + "} 1.0"
    assert sample in metrics.page({}).decode()


@pytest.mark.parametrize("reply", OPERATORS.values(), ids=OPERATORS)
async def test_refused_client_stops_asking_people_until_the_secret_is_another_one(
    reply: httpx.Response,
) -> None:
    # finding: XO4
    network, store, clock = Network(), MemoryStore(), Clock()
    refusing(network, reply)
    async with serving_accounts(network, store=store, clock=clock) as service:
        assert "operator" in await failed(service)
        for n, owner in enumerate(("bob", "carol", "bob")):
            tag = service.elicitations.owners.tag(issuer="tests", subject=owner)
            assert "operator" in await unasked(service, owner=tag, arguments=n)
        assert network.exchanges == 1
    corrected = {"github": (CREDENTIALS["github"][0], "another-secret-that-is-long")}
    network = Network()
    opening = serving_accounts(network, store=store, clock=clock, credentials=corrected)
    async with opening as service:
        assert (await connect(service, "repo", arguments="new")).label == "octocat"


async def test_refused_client_is_tried_again_ten_minutes_later() -> None:
    # finding: XO4
    network, clock = Network(), Clock()
    works = network.token
    refusing(network, OPERATORS["a wrong secret"])
    async with serving_accounts(network, clock=clock) as service:
        await failed(service)
        network.token = works  # corrected at the provider, with the same secret
        clock.tick(seconds=STANDS.total_seconds())
        await connect(service, "repo", arguments="later")
        assert (await connect(service, "gist", arguments="another")).label == "octocat"
        assert not await service.kinds.accounts.refused_registrations()


async def test_link_that_is_open_already_sends_nobody_away_either() -> None:
    # finding: XO4
    network = Network()
    refusing(network, OPERATORS["a wrong secret"])
    async with serving_accounts(network) as service:
        waiting = Asking(service, "repo", arguments="another call")
        await waiting.elicitation()
        await failed(service)
        with pytest.raises(Failed, match="operator"):
            await opened(service, waiting)
        await give_up(waiting)


async def test_refused_redirect_address_stops_the_person_who_brought_the_code_alone() -> None:
    # finding: XO4
    network = Network()
    refusing(network, WRONG_REDIRECT)
    async with serving_accounts(network) as service:
        works = Network()
        assert "redirect address" in await failed(service)
        assert "redirect address" in await unasked(service, arguments="again")
        network.token = works.token
        bob = service.elicitations.owners.tag(issuer="tests", subject="bob")
        assert (await connect(service, "repo", owner=bob)).label == "octocat"


async def test_error_that_a_browser_made_up_stops_nobody_else() -> None:
    # finding: XO4
    async with oauth_env() as here:
        asked, person = here.ask("repo"), await here.person()
        callback = await decide(person, await person.go_on(await asked.link()), "deny")
        made_up = callback.replace("error=access_denied", "error=redirect_uri_mismatch")
        assert made_up != callback
        await ends(person, await person.visit(made_up))
        with pytest.raises(Failed, match="operator"):
            await asked.account()
        other = here.service.elicitations.owners.tag(issuer="tests", subject="bob")
        question = here.ask("repo", owner=other, arguments="bob's")
        assert await question.link()


async def test_page_says_that_the_settings_are_wrong_and_gives_a_number(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # finding: XO4
    async with refused_refresh() as (here, person):
        page = await press(person, here, "/reconnect")
        assert page.heading == "GitHub is not set up here"
        assert "missing or wrong" in page.text
        (line,) = lines(caplog, "account.not_reconnected")
        assert line["error_id"] in page.text


@asynccontextmanager
async def refused_refresh() -> AsyncIterator[tuple[OAuthEnv, Any]]:
    """An account whose provider refuses our secret by now, and its person."""

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 401,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": b'{"error": "invalid_client"}'})

    async with oauth_env() as here:
        person = await here.person()
        await here.connect("repo", person=person)
        here.gate.answers.append(refuse)
        here.clock.tick(hours=9)
        with pytest.raises(Failed, match="operator"):
            await here.ask("repo", arguments="later").account()
        yield here, person


async def test_operator_gets_an_event_when_a_registration_is_refused_and_when_it_works() -> None:
    # finding: XO1
    network, clock = Renewing(), Clock()
    async with telling_accounts(network, clock) as service:
        await connect(service, "repo")
        renews = network.renews
        refusing_refresh(network, OPERATORS["a wrong secret"])
        clock.tick(hours=2)
        for n in range(3):
            await unasked(service, arguments=n)
            clock.tick(seconds=STANDS.total_seconds())
        network.renews = renews
        await connected_again(service)
        told = [
            (event.type, dict(event.facts))
            for event in await service.elicitations.all(OutgoingEvent)
            if event.type.startswith("registration.")
        ]
        assert [each for each, _ in told] == ["registration.refused", "registration.accepted"]
        (refused, _) = told
        assert refused[1]["provider"] == "github"
        assert (refused[1]["fault"], refused[1]["error"]) == ("client", "invalid_client")


async def test_doctor_names_the_refused_registration_and_its_settings() -> None:
    # finding: XO1
    network, clock = Renewing(), Clock()
    async with serving_accounts(network, clock=clock) as service:
        await connect(service, "repo")
        assert [one.standing for one in await examine_registrations(service)] == ["ok"]
        refusing_refresh(network, OPERATORS["a wrong secret"])
        clock.tick(hours=2)
        await unasked(service)
        (found,) = await examine_registrations(service)
        assert found.standing == "wrong"
        assert "GitHub" in found.says
        assert "invalid_client" in found.says
        assert found.fix is not None
        assert "ELICIT_GITHUB_CLIENT_SECRET" in found.fix


def refusing_refresh(network: Renewing, reply: httpx.Response) -> None:
    async def renews(request: httpx.Request) -> httpx.Response:
        return httpx.Response(reply.status_code, content=reply.content)

    network.renews = renews


async def connected_again(service: Service) -> None:
    asked = Asking(service, "repo", arguments="corrected")
    assert (await asked.account()).label == "octocat"


@asynccontextmanager
async def telling_accounts(network: Network, clock: Clock) -> AsyncIterator[Service]:
    async with serving_accounts(network, clock=clock, events=(CRM,)) as service:
        yield service
