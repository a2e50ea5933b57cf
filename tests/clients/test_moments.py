"""Answers that come too early, too late or never: their effect, and when the link is shown."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from tests.clients.env import RETURNS, Env, by_hand, shop_open
from tests.clients.reaching import Reached, Sees, Visitor, until_it_returns
from tests.clients.scripted import (
    AGREES,
    CANCELS,
    DECLINES,
    FAILS,
    HANGS,
    NEWER,
    OLDER,
    SHOWS,
    Does,
    ScriptedClient,
)
from tests.clients.transport import Json
from tests.support.clock import Clock
from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import read_settings

T = TypeVar("T")
REVISIONS = pytest.mark.parametrize("revision", [OLDER, NEWER])
NOBODY, DECLINED, CANCELLED = (
    "ELICITATION_NOBODY_ASKED",
    "ELICITATION_DECLINED",
    "ELICITATION_CANCELLED",
)
IN_FORMS = ("form", "confirm", "gate")


def client_that(
    *,
    form: Does = SHOWS,
    link: Does = HANGS,
    limit: float | None = 60,
    version: str = "1.0",
    name: str = "a client",
    modes: tuple[str, ...] = ("form",),
) -> ScriptedClient:
    declared: Json = {mode: {} for mode in modes}
    return ScriptedClient(
        name="",
        calls_itself=name,
        version=version,
        declares={OLDER: declared, NEWER: declared},
        form=form,
        link=link,
        gives_up_after_seconds=limit,
    )


class Shop:
    """A running test server. All visitors are one user, so it distinguishes only their clients."""

    def __init__(self, env: Env, revision: str) -> None:
        self.env = env
        self._revision = revision

    async def asked(
        self,
        client: ScriptedClient,
        kind: str = "form",
        *,
        what: str = "5",
        reads_seconds: float = 3.0,
        says: str = "accept",
    ) -> tuple[Reached, list[Json]]:
        """Connect, and call as a model until the tool returns.

        Return the result, and the params of each request that the client received.
        """
        visitor = Visitor(env=self.env, reads_seconds=reads_seconds, says=says)
        way = self.env.transport()
        async with client.connected(self._revision, transport=way, screen=visitor) as calls:
            reached = await until_it_returns(calls, visitor, kind, what=what)
        if visitor.sights:
            await visitor.leaves()
        return reached, calls.asked


def played(revision: str, play: Callable[[Shop], Awaitable[T]], **settings: Any) -> T:
    async def within(clock: Clock) -> T:
        async with shop_open(clock, **settings) as env:
            return await play(Shop(env, revision))

    return by_hand(within)


def set_to(**environment: str) -> PolicySettings:
    """Return the policies that an operator sets by these variables."""
    return read_settings(
        {"ELICIT_SECRET": "s" * 32, "ELICIT_STORE": "memory:", **environment}
    ).policies


@REVISIONS
@pytest.mark.parametrize("refuses", [DECLINES, CANCELS], ids=["decline", "cancel"])
@pytest.mark.parametrize("kind", IN_FORMS)
def test_immediate_refusal_of_form_is_ignored_and_link_is_shown_at_once(
    revision: str, refuses: Does, kind: str
) -> None:
    async def play(shop: Shop) -> None:
        reached, asked = await shop.asked(client_that(form=refuses), kind)
        assert reached.seconds == 0
        assert (reached.sees, reached.results[0].code) == (Sees.CHAT, NOBODY)
        assert reached.text == RETURNS[kind]
        assert len(asked) == 1
        assert shop.env.passed == [kind]
        assert len(await shop.env.elicitations()) == 1

    played(revision, play)


@REVISIONS
@pytest.mark.parametrize("refuses", [DECLINES, CANCELS], ids=["decline", "cancel"])
def test_immediate_refusal_of_link_counts_as_not_shown(revision: str, refuses: Does) -> None:
    client = client_that(modes=("form", "url"), link=refuses)

    async def play(shop: Shop) -> None:
        reached, _ = await shop.asked(client, "oauth")
        assert reached.seconds == 0
        assert (reached.sees, reached.results[0].code) == (Sees.CHAT, NOBODY)
        assert reached.text == RETURNS["oauth"]
        assert shop.env.passed == ["oauth"]

    played(revision, play)


@REVISIONS
@pytest.mark.parametrize("kind", ["confirm", "gate"])
def test_immediate_accept_approves_nothing(revision: str, kind: str) -> None:
    async def play(shop: Shop) -> None:
        reached, _ = await shop.asked(client_that(form=AGREES), kind, says="decline")
        assert (reached.sees, reached.results[0].code) == (Sees.CHAT, NOBODY)
        if kind == "confirm":
            assert reached.text == "booked: False"
        else:
            assert (reached.results[-1].code, shop.env.passed) == (DECLINED, [])

    played(revision, play)


@REVISIONS
def test_immediate_accept_of_link_does_not_accept_terms(revision: str) -> None:
    client = client_that(modes=("url",), link=AGREES)

    async def play(shop: Shop) -> None:
        reached, _ = await shop.asked(client, "terms", says="decline")
        assert [received.code for received in reached.results] == [NOBODY, DECLINED]
        assert shop.env.passed == []

    played(revision, play)


@REVISIONS
@pytest.mark.parametrize("kind", ["url", "oauth", "payment"])
def test_immediately_accepted_link_is_also_sent_to_model(revision: str, kind: str) -> None:
    client = client_that(modes=("url",), link=AGREES)

    async def play(shop: Shop) -> None:
        reached, _ = await shop.asked(client, kind)
        assert (reached.sees, reached.text) == (Sees.CHAT, RETURNS[kind])
        assert reached.seconds <= 60
        assert shop.env.passed == [kind]

    played(revision, play)


@REVISIONS
def test_filled_form_counts_even_if_immediate(revision: str) -> None:
    async def play(shop: Shop) -> None:
        reached, _ = await shop.asked(client_that(), reads_seconds=0.01)
        assert [received.text for received in reached.results] == [RETURNS["form"]]

    played(revision, play)


@REVISIONS
@pytest.mark.parametrize("kind", [*IN_FORMS, "oauth"])
@pytest.mark.parametrize("says", ["decline", "cancel"])
def test_refusal_after_two_seconds_counts_as_answer_of_the_person(
    revision: str, kind: str, says: str
) -> None:
    client = client_that(modes=("form", "url"), link=SHOWS)

    async def play(shop: Shop) -> None:
        reached, _ = await shop.asked(client, kind, reads_seconds=2, says=says)
        (received,) = reached.results
        if kind == "confirm":
            assert received.text == "booked: False"
        else:
            assert received.code == {"decline": DECLINED, "cancel": CANCELLED}[says]
        assert received.link is None

    played(revision, play)


@pytest.mark.parametrize("kind", [*IN_FORMS, "oauth"])
def test_twenty_seconds_without_answer_lead_to_link(kind: str) -> None:
    client = client_that(form=HANGS, modes=("form", "url"))

    async def play(shop: Shop) -> None:
        reached, asked = await shop.asked(client, kind)
        assert reached.seconds == 20
        assert (reached.sees, reached.text) == (Sees.CHAT, RETURNS[kind])
        assert (len(asked), shop.env.passed) == (1, [kind])

    played(OLDER, play)


@pytest.mark.parametrize("kind", [*IN_FORMS, "oauth"])
def test_client_that_times_out_twice_gets_link_at_third_call(kind: str) -> None:
    client = client_that(form=HANGS, modes=("form", "url"))

    async def play(shop: Shop) -> None:
        reached, asked = await shop.asked(client, kind)
        # Two calls of 60 seconds each: a client that replays also calls again before it answers.
        assert reached.seconds == 120
        assert [received.is_from_client for received in reached.results] == [
            True,
            True,
            False,
            False,
        ]
        assert (reached.sees, reached.text) == (Sees.CHAT, RETURNS[kind])
        assert (len(asked), shop.env.passed) == (2, [kind])

    played(NEWER, play)


@REVISIONS
def test_call_abandoned_while_form_is_open_leads_to_link(revision: str) -> None:
    async def play(shop: Shop) -> None:
        reached, asked = await shop.asked(client_that(form=HANGS, limit=15))
        # On the newer revision, the server is not notified when the client gives up.
        calls = 1 if revision == OLDER else 3
        assert reached.seconds == 15 * calls
        by_client = [received.is_from_client for received in reached.results]
        assert by_client == [True] * calls + [False, False]
        assert (reached.text, len(asked)) == (RETURNS["form"], calls)

    played(revision, play)


@REVISIONS
@pytest.mark.parametrize("does", [HANGS, DECLINES, CANCELS], ids=["hangs", "declines", "cancels"])
def test_client_that_did_not_show_a_form_gets_only_links_for_the_next_day(
    revision: str, does: Does
) -> None:
    async def play(shop: Shop) -> None:
        client = client_that(form=does)
        await shop.asked(client, what="tea")
        reached, asked = await shop.asked(client, what="milk")
        assert (reached.sees, reached.seconds, asked) == (Sees.CHAT, 0, [])
        assert len(reached.results) == 2
        _, asked = await shop.asked(client_that(form=does, version="2.0"), what="cake")
        assert asked  # another version of the client may show the form
        shop.env.clock.tick(days=1, minutes=1)
        _, asked = await shop.asked(client, what="honey")
        assert asked

    played(revision, play)


@REVISIONS
def test_slow_typist_is_not_asked_again(revision: str) -> None:
    async def play(shop: Shop) -> None:
        for what, seconds in (("tea", 25.0), ("milk", 70.0)):
            reached, asked = await shop.asked(
                client_that(limit=None), what=what, reads_seconds=seconds
            )
            assert (reached.sees, reached.seconds) == (Sees.FORM, 0)
            assert reached.text == RETURNS["form"]
            assert len(asked) == 1
            if revision == NEWER:  # no call is open in the meantime
                assert len(reached.results) == 1
            else:
                (link,) = [sight for sight in reached.sights if sight.sees is Sees.CHAT]
                held = link.at_seconds - reached.sights[0].at_seconds
                assert round(held) == (20 if what == "tea" else 50)
        assert shop.env.passed == ["form", "form"]
        assert len(await shop.env.elicitations()) == 2

    played(revision, play)


@REVISIONS
def test_client_behind_mcp_remote_is_recognized_and_gets_no_link_request(revision: str) -> None:
    through = client_that(
        name="a client (via mcp-remote 0.15.1)", modes=("form", "url"), link=FAILS
    )
    if revision == OLDER:
        through = client_that(name="a client (via mcp-remote 0.14.0)", form=DECLINES)

    async def play(shop: Shop) -> None:
        if revision == NEWER:
            reached, asked = await shop.asked(through, "oauth")
            assert (reached.sees, asked) == (Sees.CHAT, [])
            return
        await shop.asked(through, what="tea")
        _, asked = await shop.asked(client_that(), what="milk")
        assert asked == []

    played(revision, play)


def test_client_behind_failing_proxy_gets_link_in_result() -> None:
    # finding: XC5
    proxy = ScriptedClient(
        name="",
        calls_itself="fastmcp",
        version="4.2.3",
        declares={NEWER: {"form": {}, "url": {}}},
        form=FAILS,
        link=FAILS,
        declares_too=("roots", "sampling"),
    )

    async def play(shop: Shop) -> None:
        # First, another program shows the question. Both programs send their library's name.
        await shop.asked(client_that(name="fastmcp", version="4.2.3", limit=None), what="tea")
        for what, calls in (("milk", 3), ("cake", 2)):
            reached, _ = await shop.asked(proxy, what=what)
            assert (reached.sees, reached.text) == (Sees.CHAT, RETURNS["form"])
            assert len(reached.results) == calls  # after "milk" the server knows the failure

    played(NEWER, play)


@REVISIONS
@pytest.mark.parametrize("named", ["a client", "a client/1.0"])
def test_client_listed_as_showing_nothing_is_not_asked(revision: str, named: str) -> None:
    async def play(shop: Shop) -> None:
        reached, asked = await shop.asked(client_that(modes=("form", "url"), link=SHOWS))
        assert (reached.sees, reached.seconds, asked) == (Sees.CHAT, 0, [])

    played(revision, play, policies=set_to(ELICIT_CLIENTS=f"{named}=nothing"))


@REVISIONS
@pytest.mark.parametrize("kind", ["confirm", "gate"])
def test_client_listed_with_answers_confirm_cannot_answer_gate_immediately(
    revision: str, kind: str
) -> None:
    async def play(shop: Shop) -> None:
        reached, _ = await shop.asked(client_that(form=AGREES), kind, says="decline")
        if kind == "confirm":
            assert [received.text for received in reached.results] == [RETURNS["confirm"]]
        else:
            assert [received.code for received in reached.results] == [NOBODY, DECLINED]
            assert shop.env.passed == []

    played(revision, play, policies=set_to(ELICIT_CLIENTS="a client=answers:confirm"))


@REVISIONS
@pytest.mark.parametrize("does", [DECLINES, AGREES], ids=["no", "yes"])
def test_immediate_answer_counts_where_min_answer_is_zero(revision: str, does: Does) -> None:
    async def play(shop: Shop) -> None:
        reached, _ = await shop.asked(client_that(form=does), "confirm")
        is_yes = does is AGREES
        assert [received.text for received in reached.results] == [f"booked: {is_yes}"]

    played(revision, play, policies=set_to(ELICIT_MIN_ANSWER="0"))


@REVISIONS
def test_automatic_decline_without_form_pages_leaves_question_open(
    revision: str,
) -> None:
    async def play(shop: Shop) -> None:
        reached, _ = await shop.asked(client_that(form=DECLINES))
        (received,) = reached.results
        assert (received.code, received.link, reached.sees) == (NOBODY, None, None)
        (asked,) = await shop.env.elicitations()
        assert not asked.status.is_final

    played(revision, play, policies=set_to(ELICIT_FORMS_ON_PAGES="0"))
