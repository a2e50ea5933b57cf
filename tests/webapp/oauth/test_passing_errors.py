"""Temporary errors of a provider: the person presses Continue again, on the same link."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from flows.elicitation.flow import ATTEMPTS_AT_MOST
from flows.elicitation.states import Status
from flows.errors import Denied, Failed, NotPossible
from flows.oauth.requests import Unreachable
from tests.support.account_env import (
    Asking,
    Network,
    come_home,
    give_up,
    opened,
    serving_accounts,
    status_of,
    stored,
)
from tests.support.clock import Clock
from tests.support.oauth_env import approve, changed, decided, ends, oauth_env
from webapp.routes.redirect import returned


def _reply(status: int, **body: Any) -> Callable[[httpx.Request], httpx.Response]:
    return lambda _: httpx.Response(status, json=body)


def _raises(kind: type[httpx.TransportError]) -> Callable[[httpx.Request], httpx.Response]:
    def answer(request: httpx.Request) -> httpx.Response:
        raise kind("no answer", request=request)

    return answer


PASSING: dict[str, Callable[[httpx.Request], httpx.Response]] = {
    "503": lambda _: httpx.Response(503, text="busy"),
    "502 page": lambda _: httpx.Response(502, html="<title>Bad gateway</title>"),
    "429": _reply(429, error="slow_down"),
    "temporarily_unavailable": _reply(400, error="temporarily_unavailable"),
    "server_error": _reply(400, error="server_error"),
    "with 200": _reply(200, error="temporarily_unavailable"),
    "connect": _raises(httpx.ConnectError),
    "timeout": _raises(httpx.ReadTimeout),
    "cut": _raises(httpx.RemoteProtocolError),
}
LASTING: dict[str, Callable[[httpx.Request], httpx.Response]] = {
    "invalid_grant": _reply(400, error="invalid_grant"),
    "invalid_client": _reply(401, error="invalid_client"),
    "unknown error": _reply(400, error="teapot"),
    "no token": _reply(200, token_type="bearer"),
    "page": lambda _: httpx.Response(200, html="<title>Hello</title>"),
}


def answering(network: Network, answer: Callable[[httpx.Request], httpx.Response]) -> None:
    async def token(request: httpx.Request) -> httpx.Response:
        return answer(request)

    network.token = token


@pytest.mark.parametrize("answer", PASSING.values(), ids=PASSING)
async def test_question_stays_open_and_next_attempt_connects(
    answer: Callable[[httpx.Request], httpx.Response],
) -> None:
    # finding: XO7
    network = Network()
    working = network.token
    async with serving_accounts(network) as service:
        asked = Asking(service, "repo")
        elicitation, state = await opened(service, asked)
        answering(network, answer)
        await come_home(service, state)
        assert await status_of(service, elicitation) is Status.OPENED
        assert not asked.task.done()
        assert await stored(service) == []
        with pytest.raises(NotPossible):
            await come_home(service, state)  # the state is used up
        assert network.exchanges == 1
        network.token = working
        _, state = await opened(service, asked)
        await come_home(service, state)
        assert (await asked.account()).label == "octocat"
        assert network.exchanges == 2


@pytest.mark.parametrize("answer", LASTING.values(), ids=LASTING)
async def test_other_errors_end_the_question_at_once(
    answer: Callable[[httpx.Request], httpx.Response],
) -> None:
    network = Network()
    answering(network, answer)
    async with serving_accounts(network) as service:
        asked = Asking(service, "repo")
        elicitation, state = await opened(service, asked)
        await come_home(service, state)
        assert await status_of(service, elicitation) is Status.FAILED
        with pytest.raises(Failed):
            await asked.account()


async def test_last_attempt_that_fails_ends_the_question() -> None:
    network = Network()
    answering(network, PASSING["503"])
    async with serving_accounts(network) as service:
        asked = Asking(service, "repo")
        for number in range(1, ATTEMPTS_AT_MOST + 1):
            elicitation, state = await opened(service, asked)
            await come_home(service, state)
            expected = Status.OPENED if number < ATTEMPTS_AT_MOST else Status.FAILED
            assert await status_of(service, elicitation) is expected, number
        with pytest.raises(Failed):
            await asked.account()
        assert network.exchanges == ATTEMPTS_AT_MOST


async def test_error_after_the_question_has_expired_ends_the_question() -> None:
    network, clock = Network(), Clock()
    async with serving_accounts(network, clock=clock) as service:
        asked = Asking(service, "repo")
        elicitation, state = await opened(service, asked)

        def late(_: httpx.Request) -> httpx.Response:
            clock.now = elicitation.expires_at
            return httpx.Response(503)

        answering(network, late)
        await come_home(service, state)
        assert await status_of(service, elicitation) is Status.FAILED
        await give_up(asked)


@pytest.mark.parametrize("error", [Denied("no"), Failed("no"), Unreachable("no", fix="")])
async def test_second_callback_with_an_error_does_not_end_a_running_exchange(
    error: Denied | Failed,
) -> None:
    network = Network()
    working = network.token
    async with serving_accounts(network) as service:
        asked = Asking(service, "repo")
        elicitation, state = await opened(service, asked)
        second = (await returned(service, [state], now=service.clock())).elicitation
        seen = list[Status]()

        async def token(request: httpx.Request) -> httpx.Response:
            await service.kinds.accounts.code_exchange.callback_refused(second, error)
            seen.append(await status_of(service, elicitation))
            return await working(request)

        network.token = token
        await come_home(service, state)
        assert seen == [Status.EXCHANGING]
        assert (await asked.account()).label == "octocat"


@pytest.mark.parametrize("error", ["temporarily_unavailable", "server_error"])
async def test_error_in_callback_offers_another_attempt_on_the_page(error: str) -> None:
    # finding: XO7
    async with oauth_env() as here:
        asked, person, link, callback = await decided(here, "repo", decision="deny")
        page = await ends(person, await person.visit(changed(callback, error=error)))
        assert page.heading == "GitHub did not answer"
        assert not asked.task.done()
        again = await ends(person, await person.visit(changed(callback, error="access_denied")))
        assert again.heading == "This link has been used"
        assert (await here.row(link)).status is Status.OPENED
        back = await approve(person, await person.go_on(link))
        await ends(person, await person.visit(back))
        assert (await asked.account()).provider == "github"
