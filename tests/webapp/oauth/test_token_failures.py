"""Failed exchanges are reported in the log, in the metrics, to the model, and to the operator."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
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
    stored,
)
from tests.support.clock import Clock
from tests.support.connections_page import press
from tests.support.event_env import CRM
from tests.support.oauth_env import OAuthEnv, decide, ends, oauth_env
from tests.support.refusals import ENDED, OPERATORS
from tests.support.renewing import Renewing
from webapp.cli.doctor import examine_registrations
from webapp.oauth.token_failures import STANDS
from webapp.records.values import OutgoingEvent, RefusedRegistration
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due
from webapp.telemetry.metrics import Metrics
from webapp.telemetry.work import Telemetry

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
    """Answer a question whose exchange fails, and return the error of its call."""
    asked = Asking(service, "repo", **about)
    _, state = await opened(service, asked)
    await come_home(service, state)
    with pytest.raises(Failed) as error:
        await asked.account()
    return str(error.value)


async def unasked(service: Service, **about: Any) -> str:
    """Return the error of a call that fails without asking the person."""
    asked = Asking(service, "repo", **about)
    with pytest.raises(Failed) as error:
        await asked.account()
    assert not asked.has_asked
    return str(error.value)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[Mapping[str, Any]]:
    return [vars(record) for record in caplog.records if record.message == event]


async def test_failed_exchange_is_logged_with_provider_error_description_and_id(
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


async def test_log_of_failed_exchange_contains_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    # finding: XO4
    network = Network()

    async def token(request: httpx.Request) -> httpx.Response:
        echo = request.content.decode()
        description = f"{echo} of ada@example.com, token 0123456789abcdef0123456789abcdef is bad"
        return httpx.Response(400, json={"error": "x", "error_description": description[-300:]})

    network.token = token
    caplog.set_level(logging.DEBUG)
    async with serving_accounts(network) as service:
        await failed(service)
    (line,) = lines(caplog, "exchange.failed")
    assert line["description"] == "*** of *** token *** is bad"
    text = str([vars(record) for record in caplog.records])
    assert SECRET not in text
    assert "a-code" not in text


async def test_failed_exchange_without_response_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    # finding: XO4
    async def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectTimeout("too slow", request=request)

    network = Network()
    network.token = silent
    async with serving_accounts(network) as service:
        asked = Asking(service, "repo")
        _, state = await opened(service, asked)
        await come_home(service, state)
        await give_up(asked)  # the person can still try again
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
async def test_failed_exchange_is_counted_by_reason(reply: httpx.Response, reason: str) -> None:
    # finding: XO4
    network, metrics = Network(), Metrics()
    refusing(network, reply)
    async with serving_accounts(network, telemetry=Telemetry(metrics=metrics)) as service:
        asked = Asking(service, "repo")
        _, state = await opened(service, asked)
        await come_home(service, state)
        await give_up(asked)  # after a temporary failure, the person can still try again
    sample = f'provider="github",reason="{reason}",step="exchange"' + "} 1.0"
    assert sample in metrics.page({}).decode()


@pytest.mark.parametrize("reply", OPERATORS.values(), ids=OPERATORS)
async def test_refused_client_stops_questions_until_secret_changes(
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


async def test_refused_client_is_tried_again_after_ten_minutes() -> None:
    # finding: XO4
    network, clock = Network(), Clock()
    works = network.token
    refusing(network, OPERATORS["a wrong secret"])
    async with serving_accounts(network, clock=clock) as service:
        await failed(service)
        # The operator corrected the setting at the provider, with the same secret.
        network.token = works
        clock.tick(seconds=STANDS.total_seconds())
        await connect(service, "repo", arguments="later")
        assert (await connect(service, "gist", arguments="another")).label == "octocat"
        assert not await service.kinds.accounts.refused_registrations()


async def test_open_link_does_not_redirect_to_provider_of_refused_client() -> None:
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


async def test_refused_redirect_address_stops_only_person_who_brought_code() -> None:
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


OTHER_GRANT = ENDED["grant type not allowed"]


async def test_unauthorized_client_at_exchange_blames_operator_if_two_people_fail() -> None:
    # finding: XO1
    network, clock = Network(), Clock()
    refusing(network, OTHER_GRANT)
    async with serving_accounts(network, clock=clock) as service:
        for n in range(3):
            assert "operator" not in await failed(service, arguments=n)
        assert await examine_wrong(service) == []
        bob = service.elicitations.owners.tag(issuer="tests", subject="bob")
        assert "operator" in await failed(service, owner=bob)
        assert "operator" in await unasked(service, arguments="all")
        assert [one.error for one in await examine_wrong(service)] == ["unauthorized_client"]
        clock.tick(seconds=STANDS.total_seconds())
        assert "operator" not in await failed(service, owner=bob, arguments="bob's own")


async def test_unauthorized_client_at_refresh_blames_operator_from_second_person() -> None:
    # finding: XO1
    network, clock = Renewing(), Clock()
    async with serving_accounts(network, clock=clock) as service:
        people = await two_connected(service, network)
        renews = network.renews
        refusing_refresh(network, OTHER_GRANT)
        network.api_status = 500
        clock.tick(hours=2)
        for n in range(3):
            assert "operator" not in await unasked(service, owner=people[0], arguments=n)
        assert await examine_wrong(service) == []
        assert "operator" in await unasked(service, owner=people[1])
        assert [one.fault for one in await examine_wrong(service)] == ["refresh"]
        clock.tick(seconds=STANDS.total_seconds())
        network.renews = renews
        again = Asking(service, "repo", owner=people[1], arguments="again")
        assert (await again.account()).label == "hubber-1"
        assert await examine_wrong(service) == []


async def test_log_of_refresh_by_refused_client_names_the_settings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network, clock = Renewing(), Clock()
    async with serving_accounts(network, clock=clock) as service:
        people = await two_connected(service, network)
        refusing_refresh(network, httpx.Response(401, json={"error": "invalid_client"}))
        network.api_status = 500
        clock.tick(hours=2)
        assert "operator" in await unasked(service, owner=people[0])
    (line,) = lines(caplog, "account.not_renewed")
    assert "correct ELICIT_GITHUB_CLIENT_ID and ELICIT_GITHUB_CLIENT_SECRET" in line["fix"]


async def test_two_people_with_lapsed_accounts_are_both_asked_again() -> None:
    # finding: XO1
    network, clock = Renewing(), Clock()
    async with serving_accounts(network, clock=clock) as service:
        people = await two_connected(service, network)
        refusing_refresh(network, OTHER_GRANT)
        network.api_status = 500
        clock.tick(hours=2)
        for n in range(40):
            for person in people:
                asked = Asking(service, "repo", owner=person, arguments=n)
                while not (asked.task.done() or asked.has_asked):  # noqa: ASYNC110
                    await asyncio.sleep(0)
                await give_up(asked)
            await fall_due(service)
            clock.tick(minutes=3)
        assert {one.status for one in await stored(service)} == {"lapsed"}


async def test_successful_refresh_clears_suspicion_of_unauthorized_client() -> None:
    # finding: XO1
    network, clock = Renewing(), Clock()
    async with serving_accounts(network, clock=clock, events=(CRM,)) as service:
        for person in await two_connected(service, network):
            clock.tick(hours=2)
            renews = network.renews
            refusing_refresh(network, OTHER_GRANT)
            network.api_status = 500
            assert "operator" not in await unasked(service, owner=person, arguments="refused")
            network.renews, network.api_status = renews, 200
            clock.tick(minutes=3)
            again = Asking(service, "repo", owner=person, arguments="again")
            assert (await again.account()).label.startswith("hubber-")
        reported = [event.type for event in await service.elicitations.all(OutgoingEvent)]
        assert [each for each in reported if each.startswith("registration.")] == []


async def two_connected(service: Service, network: Renewing) -> list[str]:
    """Connect an account for each of two people, and return their owner tags."""
    people = [service.elicitations.owners.tag(issuer="tests", subject=n) for n in ("a", "b")]
    for number, person in enumerate(people):
        network.person = {**network.person, "id": number + 1, "login": f"hubber-{number}"}
        await connect(service, "repo", owner=person)
    return people


async def examine_wrong(service: Service) -> Sequence[RefusedRegistration]:
    return await service.kinds.accounts.refused_registrations()


async def test_provider_error_forged_in_one_browser_does_not_stop_other_people() -> None:
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


async def test_page_of_refused_client_says_settings_are_wrong_with_error_id(
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
    """Yield an environment whose provider has begun to refuse our client secret, and its person."""

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


async def test_operator_events_report_refused_and_accepted_registration() -> None:
    # finding: XO1
    network, clock = Renewing(), Clock()
    async with reporting_accounts(network, clock) as service:
        await connect(service, "repo")
        renews = network.renews
        refusing_refresh(network, OPERATORS["a wrong secret"])
        clock.tick(hours=2)
        for n in range(3):
            await unasked(service, arguments=n)
            clock.tick(seconds=STANDS.total_seconds())
        network.renews = renews
        await connected_again(service)
        reported = [
            (event.type, dict(event.facts))
            for event in await service.elicitations.all(OutgoingEvent)
            if event.type.startswith("registration.")
        ]
        assert [each for each, _ in reported] == ["registration.refused", "registration.accepted"]
        (refused, _) = reported
        assert refused[1]["provider"] == "github"
        assert (refused[1]["fault"], refused[1]["error"]) == ("client", "invalid_client")


async def test_doctor_names_refused_registration_and_its_settings() -> None:
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
async def reporting_accounts(network: Network, clock: Clock) -> AsyncIterator[Service]:
    async with serving_accounts(network, clock=clock, events=(CRM,)) as service:
        yield service
