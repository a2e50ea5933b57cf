"""Completions: first, repeated, late and unknown ones are distinguished, in any order."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from flows import elicit
from flows.crypto.tokens import Tokens
from flows.elicitation.states import (
    RECORD_RETENTION,
    Completion,
    Elicitation,
    Json,
    Status,
    release_key,
)
from flows.elicitation.traits import traits_of
from flows.errors import (
    InvalidQuestion,
    InvalidToken,
    NotAllowed,
    NotPossible,
    OwnerNeeded,
    Unreadable,
)
from flows.question import Question, asking
from tests.support.clock import Clock
from tests.support.mcp_server import soon
from tests.support.service_env import (
    MINUTES,
    URL,
    Holding,
    asked,
    call_of,
    plain_settings,
    process,
    question_in_store,
)
from webapp.calls.verbs import Verbs
from webapp.completion import Completing
from webapp.elicitations.aliases import give_alias
from webapp.http.exchange import PEER_KEY
from webapp.identity.identity import Identity, IdentityRules
from webapp.identity.local_peer import Peer
from webapp.identity.users import Users
from webapp.records.owners import SERVICE
from webapp.records.values import Alias
from webapp.service import Service, ServiceOptions, open_service
from webapp.stores import Record
from webapp.stores.sqlite import MemoryStore
from webapp.sweeper import fall_due

COOKIE = "c" * 32
UID = 1000


async def now_of(here: Service, elicitation: Elicitation) -> Elicitation:
    current = await here.elicitations.get(elicitation.id)
    assert current is not None
    return current


async def sweep(here: Service) -> None:
    while await fall_due(here):
        pass


async def holding(presenter: Holding) -> str:
    """Return the id of the elicitation that a request waits for, once it waits."""
    for _ in range(100):
        await asyncio.sleep(0)
    assert presenter.holds is not None
    return presenter.holds


async def test_first_completion_is_accepted_and_later_completions_change_nothing(
    here: Service,
) -> None:
    # parity: T5
    elicitation = await asked(here)
    assert await here.completing.complete(elicitation.id, {"n": 1}) is Completion.ACCEPTED
    first = await now_of(here, elicitation)
    for _ in range(3):
        again = await here.completing.complete(elicitation.id, {"n": 2})
        assert again is Completion.ALREADY_SETTLED
    assert await now_of(here, elicitation) == first
    assert first.content == {"n": 1}


async def test_concurrent_completions_accept_first_only(here: Service, there: Service) -> None:
    elicitation = await asked(here)
    answers = await asyncio.gather(
        *(
            service.completing.complete(elicitation.id, {"n": n})
            for n in range(10)
            for service in (here, there)
        )
    )
    assert answers.count(Completion.ACCEPTED) == 1
    assert answers.count(Completion.ALREADY_SETTLED) == 19


@pytest.mark.parametrize("id", ["", "x", "x" * 20, "x" * 44, "é", "\x00", "../..", "x" * 10_000])
async def test_unknown_id_completes_nothing(here: Service, id: str) -> None:
    await asked(here)
    assert await here.completing.complete(id, {}) is Completion.UNKNOWN


async def test_prefix_of_id_and_owner_tag_are_unknown(here: Service) -> None:
    elicitation = await asked(here)
    for id in (
        elicitation.owner,
        elicitation.id[:-1],
        elicitation.id + "x",
        elicitation.dedupe_key,
    ):
        assert await here.completing.complete(id, {}) is Completion.UNKNOWN


async def test_id_under_tag_of_other_owner_is_unknown(here: Service) -> None:
    elicitation = await asked(here)
    other = await asked(here, subject="bob")
    forged = other.owner + elicitation.id[20:]
    assert await here.completing.complete(forged, {}) is Completion.UNKNOWN


@pytest.mark.parametrize("kind", ["oauth", "payment", "form", "secret", "confirm"])
async def test_question_of_other_kind_than_url_cannot_be_completed_by_id(
    here: Service, kind: str
) -> None:
    elicitation = await asked(here, kind=kind)
    assert await here.completing.complete(elicitation.id, {}) is Completion.UNKNOWN
    assert (await now_of(here, elicitation)).status is Status.PENDING


@pytest.mark.parametrize("status", [Status.DECLINED, Status.CANCELLED, Status.EXPIRED])
async def test_acceptance_after_decline_is_late_and_stored(here: Service, status: Status) -> None:
    elicitation = await asked(here)
    await here.elicitations.settle(elicitation.id, status)
    assert await here.completing.complete(elicitation.id, {"n": 1}) is Completion.LATE
    late = await now_of(here, elicitation)
    assert (late.status, late.is_late, late.content) == (Status.ACCEPTED, True, {"n": 1})
    again = await here.completing.complete(elicitation.id, {"n": 2})
    assert again is Completion.ALREADY_SETTLED


async def test_failed_question_cannot_be_completed(here: Service) -> None:
    elicitation = await asked(here)
    await here.elicitations.settle(elicitation.id, Status.FAILED)
    done = await here.completing.complete(elicitation.id, {})
    assert done is Completion.ALREADY_SETTLED


async def test_late_acceptance_answers_same_call_within_ten_minutes(
    here: Service, clock: Clock
) -> None:
    question = elicit.url("Please go there.", "https://example.com/")
    presenter = Holding()
    first = call_of(here, presenter=presenter)
    with asking(Verbs(first)):
        waiting = asyncio.ensure_future(question.outcome())
    id = await holding(presenter)
    clock.tick(minutes=5)
    await sweep(here)
    assert (await waiting).status is Status.EXPIRED
    await first.finish(lambda: '"nobody came"')
    await first.delivered()
    clock.tick(minutes=9)
    assert await here.completing.complete(id, {"n": 1}) is Completion.LATE
    with asking(Verbs(call_of(here))):
        outcome = await soon(question.outcome())
    assert (outcome.content, outcome.is_late) == ({"n": 1}, True)


async def test_acceptance_after_ten_minutes_is_recorded_without_content(
    here: Service, clock: Clock
) -> None:
    elicitation = await asked(here)
    clock.tick(minutes=5)
    await sweep(here)
    clock.tick(minutes=10)
    await sweep(here)
    assert await here.completing.complete(elicitation.id, {"n": 1}) is Completion.LATE
    late = await now_of(here, elicitation)
    assert (late.status, late.content, late.holds_key) == (Status.ACCEPTED, None, False)


async def test_late_acceptance_supersedes_newer_same_question(here: Service, clock: Clock) -> None:
    old = await asked(here, waiter="gone")
    clock.tick(minutes=5)
    await sweep(here)
    await here.elicitations.write(await released(here, old))
    new = await asked(here)
    assert await here.completing.complete(old.id, {"n": 1}) is Completion.LATE
    assert (await now_of(here, new)).status is Status.SUPERSEDED
    found = await here.elicitations.holder(Elicitation, owner=old.owner, key=old.dedupe_key)
    assert found is not None
    assert (found.id, found.content) == (old.id, {"n": 1})
    # The newer elicitation is completed too, but the question keeps its first answer.
    assert await here.completing.complete(new.id, {"n": 2}) is Completion.LATE
    found = await here.elicitations.holder(Elicitation, owner=old.owner, key=old.dedupe_key)
    assert found is not None
    assert found.id == old.id


async def released(here: Service, elicitation: Elicitation) -> Elicitation:
    return release_key(await now_of(here, elicitation))


async def test_waiter_of_newer_question_receives_late_acceptance(
    here: Service, clock: Clock
) -> None:
    old = await late_question(here, clock)
    presenter = Holding()
    call = call_of(here, presenter=presenter)
    with asking(Verbs(call)):
        waiting = asyncio.ensure_future(late_url().outcome())
    assert await holding(presenter) != old.id
    assert await here.completing.complete(old.id, {"n": 1}) is Completion.LATE
    outcome = await waiting
    assert (outcome.content, outcome.is_late) == ({"n": 1}, True)
    assert len(here.elicitations.waiters) == 0


async def test_request_continued_by_client_receives_late_acceptance(
    here: Service, clock: Clock
) -> None:
    old = await late_question(here, clock)
    first = Holding()
    earlier = call_of(here, presenter=first)
    with asking(Verbs(earlier)):
        gone = asyncio.ensure_future(late_url().outcome())
    await holding(first)
    presenter = Holding()
    call = call_of(here, presenter=presenter, run_id=earlier.run.value.id)
    with asking(Verbs(call)):
        waiting = asyncio.ensure_future(late_url().outcome())
    await holding(presenter)
    gone.cancel()
    assert await here.completing.complete(old.id, {"n": 1}) is Completion.LATE
    assert (await waiting).content == {"n": 1}


def late_url() -> Question[Any]:
    return elicit.url("Please go there.", "https://example.com/")


async def late_question(here: Service, clock: Clock) -> Elicitation:
    """Return an expired question whose call has ended."""
    presenter = Holding()
    call = call_of(here, presenter=presenter)
    with asking(Verbs(call)):
        waiting = asyncio.ensure_future(late_url().outcome())
    id = await holding(presenter)
    clock.tick(minutes=5)
    await sweep(here)
    await waiting
    await call.finish(lambda: '"nobody came"')
    await call.delivered()
    old = await here.elicitations.get(id)
    assert old is not None
    return old


async def test_acceptance_too_late_to_store_leaves_newer_question_open(
    here: Service, clock: Clock
) -> None:
    old = await asked(here)
    clock.tick(minutes=5)
    await sweep(here)
    clock.tick(minutes=9)
    await here.elicitations.write(await released(here, old))
    new = await asked(here)
    clock.tick(minutes=2)
    await here.completing.complete(old.id, {"n": 1})
    assert (await now_of(here, new)).status is Status.PENDING


@pytest.mark.parametrize("late", [timedelta(), traits_of("url").stored_for, timedelta(hours=1)])
async def test_acceptance_after_expiry_is_late_before_sweeper_ran(
    here: Service, clock: Clock, late: timedelta
) -> None:
    elicitation = await asked(here)
    clock.tick(seconds=(MINUTES + late).total_seconds())
    assert await here.completing.complete(elicitation.id, {}) is Completion.LATE


async def test_record_is_erased_thirty_days_after_end(here: Service, clock: Clock) -> None:
    elicitation = await asked(here)
    await here.completing.complete(elicitation.id, {"n": 1})
    clock.tick(seconds=(MINUTES + RECORD_RETENTION).total_seconds() - 1)
    await sweep(here)
    assert (await now_of(here, elicitation)).status is Status.ACCEPTED
    clock.tick(seconds=1)
    await sweep(here)
    assert await here.elicitations.get(elicitation.id) is None
    assert await here.completing.complete(elicitation.id, {}) is Completion.UNKNOWN
    with pytest.raises(KeyError):
        await here.elicitations.settle(elicitation.id, Status.DECLINED)


async def test_unused_answer_is_wiped_ten_minutes_after_expiry(here: Service, clock: Clock) -> None:
    elicitation = await asked(here)
    await here.completing.complete(elicitation.id, {"n": 1})
    clock.tick(minutes=15, seconds=-1)
    await sweep(here)
    assert (await now_of(here, elicitation)).content == {"n": 1}
    clock.tick(seconds=1)
    await sweep(here)
    wiped = await now_of(here, elicitation)
    assert (wiped.status, wiped.content, wiped.holds_key) == (Status.ACCEPTED, None, False)


async def test_damaged_row_does_not_stop_sweeper_from_ending_others(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    bad = await asked(here, join="bad")
    clock.tick(seconds=1)
    good = await asked(here, join="good")
    record = await store.read(bad.owner, "elicitation", bad.id)
    assert record is not None
    await store.write(replace(record, sealed=b"damaged"))
    clock.tick(minutes=5)
    for _ in range(3):
        with suppress(Unreadable):
            await sweep(here)
        clock.tick(seconds=31)
    assert (await now_of(here, good)).status is Status.EXPIRED


async def test_custom_elicitation_id_completes_question(here: Service, there: Service) -> None:
    elicitation = await asked(here)
    await give_alias(here.elicitations, "order-7", elicitation)
    assert await there.completing.complete("order-7", {"n": 1}) is Completion.ACCEPTED
    assert await here.completing.complete("order-7", {}) is Completion.ALREADY_SETTLED
    assert (await now_of(here, elicitation)).content == {"n": 1}


async def test_custom_elicitation_id_names_single_open_question(here: Service) -> None:
    one, other = await asked(here, join="1"), await asked(here, join="2")
    await give_alias(here.elicitations, "order-7", one)
    await give_alias(here.elicitations, "order-7", one)
    with pytest.raises(InvalidQuestion, match="order-7"):
        await give_alias(here.elicitations, "order-7", other)
    await here.elicitations.settle(one.id, Status.DECLINED)
    await give_alias(here.elicitations, "order-7", other)
    assert await here.completing.complete("order-7", {}) is Completion.ACCEPTED
    assert (await now_of(here, other)).status is Status.ACCEPTED


@pytest.mark.parametrize("first", ["open", "accepted", "expired"])
async def test_custom_id_of_person_never_completes_question_of_another_person(
    here: Service, clock: Clock, first: str
) -> None:
    # finding: S17
    anns = await asked(here, join="1")
    await give_alias(here.elicitations, "order-8", anns)
    if first == "accepted":
        assert await here.completing.complete("order-8", {"n": 1}) is Completion.ACCEPTED
    if first == "expired":
        await here.elicitations.settle(anns.id, Status.EXPIRED)
    # Bob's tools ask with the same id. Neither person's question replaces the other's.
    bobs = anns
    for join in ("1", "2"):
        bobs = await asked(here, join=join, subject=f"bob-{join}")
        await give_alias(here.elicitations, "order-8", bobs)
        # A vendor's late or repeated report does not complete Bob's question.
        with pytest.raises(OwnerNeeded, match="owner="):
            await here.completing.complete("order-8", {"n": 2})
        assert (await now_of(here, bobs)).status is Status.PENDING
    done = await here.completing.complete("order-8", {"n": 1}, owner=anns.owner)
    became = {
        "open": Completion.ACCEPTED,
        "accepted": Completion.ALREADY_SETTLED,
        "expired": Completion.LATE,
    }
    assert done is became[first]
    bobs_link = here.links.for_author(
        elicitation_id=bobs.id, expires_at=bobs.expires_at, now=clock()
    )
    assert bobs_link.owner == bobs.owner != anns.owner
    assert await here.completing.complete("order-8", {}, owner=bobs_link.owner) is (
        Completion.ACCEPTED
    )
    assert (await now_of(here, bobs)).status is Status.ACCEPTED


async def test_owner_completes_only_their_own_questions(here: Service) -> None:
    # finding: S17
    anns, bobs = await asked(here), await asked(here, subject="bob")
    await give_alias(here.elicitations, "order-8", anns)
    for id in (anns.id, "order-8", "order-9"):
        assert await here.completing.complete(id, {}, owner=bobs.owner) is Completion.UNKNOWN
    assert await here.completing.complete("order-", {}) is Completion.UNKNOWN
    assert await here.completing.complete(anns.id, {}, owner=anns.owner) is Completion.ACCEPTED


async def test_custom_id_is_free_after_questions_of_its_former_owners_are_erased(
    here: Service, store: MemoryStore
) -> None:
    # finding: S17
    for number in range(3):
        other = await asked(here, subject=f"p{number}")
        await give_alias(here.elicitations, "order-8", other)
        await store.erase(owner=other.owner)
    anns = await asked(here)
    await give_alias(here.elicitations, "order-8", anns)
    assert await here.completing.complete("order-8", {}) is Completion.ACCEPTED


async def named_by(here: Service, name: str, *, server: str = "s", tool: str) -> Elicitation:
    """Store and return a question of Alice, asked by `tool` of `server` with the alias `name`."""
    fresh = question_in_store(here, join=f"{server} {tool}")
    fresh = replace(fresh, request=replace(fresh.request, server=server, tool=tool))
    await here.elicitations.write(fresh)
    await give_alias(here.elicitations, name, fresh)
    return fresh


async def test_each_tool_server_and_program_has_separate_custom_ids(here: Service) -> None:
    # finding: XS1
    complete = here.completing.complete
    program = await named_by(here, "order-9", tool="other (API)")
    assert await complete("order-9", {}) is Completion.UNKNOWN
    own = await named_by(here, "order-9", tool="pay")
    assert await complete("order-9", {}) is Completion.ACCEPTED
    for late in (
        await named_by(here, "order-9", tool="pay_later"),
        await named_by(here, "order-9", server="another", tool="pay"),
    ):
        for whose in (None, own.owner):
            with pytest.raises(OwnerNeeded, match="tool="):
                await complete("order-9", {}, owner=whose)
        assert (await now_of(here, late)).status is Status.PENDING
        await here.elicitations.settle(late.id, Status.CANCELLED)
    for other in ("shop", "other (API)", ""):
        assert await complete("order-9", {}, program=other) is Completion.UNKNOWN
    assert (await now_of(here, program)).status is Status.PENDING
    assert await complete(program.id, {}, program="other") is Completion.ACCEPTED
    assert await complete("order-9", {}, program="other") is Completion.ALREADY_SETTLED


async def test_process_does_not_find_custom_ids_of_other_servers(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    # finding: XS1
    others = await named_by(here, "order-9", server="another", tool="pay")
    async with open_service(
        plain_settings(uid=UID),
        ServiceOptions(clock=clock, users=Users(application="s")),
        store=store,
    ) as served:
        assert await served.completing.complete("order-9", {}) is Completion.UNKNOWN
        own = await named_by(here, "order-9", tool="pay")
        assert await served.completing.complete("order-9", {}) is Completion.ACCEPTED
        # The question's own id finds the question of any server, unless an asker is named.
        program = await named_by(here, "order-9", server="another", tool="shop (API)")
        for one, asker in ((others, {"tool": "pay"}), (program, {"program": "shop"})):
            assert await served.completing.complete(one.id, {}, **asker) is Completion.UNKNOWN
            assert (await now_of(here, one)).status is Status.PENDING
            assert await here.completing.complete(one.id, {}, **asker) is Completion.ACCEPTED
        third = await named_by(here, "order-9", server="another", tool="pay_later")
        assert await served.completing.complete(third.id, {}) is Completion.ACCEPTED
    assert (await now_of(here, own)).status is Status.ACCEPTED


@pytest.mark.parametrize("whose", ["nobody", "alice"])
async def test_custom_id_stored_by_earlier_version_is_found(here: Service, whose: str) -> None:
    old, other = await asked(here), await asked(here, subject="bob")
    owner = old.owner if whose == "alice" else None

    async def write_alias(one: Elicitation) -> None:
        id = f"order-9:{one.owner}"
        await here.elicitations.write(
            Alias(id=id, owner=SERVICE, elicitation_id=one.id, erase_at=one.erase_at)
        )

    await write_alias(old)
    assert await here.completing.complete("order-9", {"n": 1}) is Completion.ACCEPTED
    await write_alias(other)
    await named_by(here, "order-9", tool="other (API)")
    await named_by(here, "order-9-b", tool="pay")
    if owner is None:
        with pytest.raises(OwnerNeeded, match="owner="):
            await here.completing.complete("order-9", {}, owner=owner)
    else:
        done = await here.completing.complete("order-9", {}, owner=owner)
        assert done is Completion.ALREADY_SETTLED


async def test_custom_id_in_format_of_generated_ids_is_refused(
    here: Service,
) -> None:
    # finding: XS1
    victim = await asked(here)
    presenter = Holding()
    with (
        pytest.raises(InvalidQuestion, match="elicitation_id"),
        asking(Verbs(call_of(here, presenter=presenter))),
    ):
        await elicit.url("Please go there.", "https://example.com/", elicitation_id=victim.id)
    assert presenter.holds is None
    assert [
        one.id
        for one in await here.elicitations.rows.open_of(victim.owner, now=here.elicitations.clock())
    ] == [victim.id]


async def test_question_id_is_found_only_for_party_which_asked(here: Service) -> None:
    # finding: XS1
    complete = here.completing.complete
    victim = await named_by(here, "order-9", tool="other (API)")
    own = await named_by(here, victim.id, tool="shop (API)")  # as an earlier version did
    for party in ({"tool": "pay"}, {"tool": "other (API)"}, {"program": "third"}):
        assert await complete(victim.id, {}, **party) is Completion.UNKNOWN
    assert await complete(victim.id, {}, program="shop") is Completion.ACCEPTED
    assert (await now_of(here, own)).status is Status.ACCEPTED
    assert (await now_of(here, victim)).status is Status.PENDING
    assert await complete(victim.id, {}, program="other") is Completion.ACCEPTED


@pytest.mark.parametrize("odd", ["order-9:", "order-9::", "order-9 ", ":", "", "order-9\n"])
async def test_custom_id_outside_pattern_finds_nothing(here: Service, odd: str) -> None:
    # finding: XS1
    named = await named_by(here, "order-9", tool="pay")
    for owner in (None, named.owner):
        assert await here.completing.complete(odd, {}, owner=owner) is Completion.UNKNOWN


class Browsed:
    """A browser's request that returns from the author's website. `uid` is the browser's user."""

    def __init__(self, token: str, cookies: dict[str, str], *, uid: int = UID) -> None:
        self.query_params = {"elicitation": token}
        cookie = "; ".join(f"{name}={value}" for name, value in cookies.items()).encode()
        self.scope = {
            "type": "http",
            "http_version": "1.1",
            "headers": [(b"host", b"127.0.0.1:8765"), (b"cookie", cookie)],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8765),
            PEER_KEY: Peer(uid=uid),
        }


def completing(here: Service) -> Completing:
    """Return the object that completes elicitations by return token."""
    return Completing(
        elicitations=here.elicitations,
        links=here.links,
        browser=here.browser,
        identity=Identity(
            here.elicitations,
            ring=(ring := plain_settings(uid=UID).ring),
            tokens=Tokens(ring, origin=URL),
            browser=here.browser,
            public_url=URL,
            uid=UID,
            rules=IdentityRules(),
        ),
        kinds=here.kinds,
    )


async def asked_locally(here: Service) -> Elicitation:
    return await asked(here, issuer="local", subject=f"uid:{UID}")


async def returning(here: Service, elicitation: Elicitation) -> tuple[str, str]:
    link = here.links.for_author(
        elicitation_id=elicitation.id, expires_at=elicitation.expires_at, now=here.clock()
    )
    return link.return_token, link.callback_url.rsplit("/", 1)[1]


async def test_return_completes_only_in_browser_which_pressed_continue(
    here: Service,
) -> None:
    elicitation = await asked_locally(here)
    token, _ = await returning(here, elicitation)
    name = here.browser.cookie_name
    mine, other = {name: COOKIE}, {name: "d" * 32}
    for cookies in (mine, other, {}):
        with pytest.raises(NotAllowed):
            await completing(here).complete_return(Browsed(token, cookies), {})
    await here.elicitations.open_attempt(elicitation.id, browser=here.browser.hash(COOKIE))
    for cookies in (other, {}, {name: ""}, {name: COOKIE + "x"}, {"elicit_1": COOKIE}):
        with pytest.raises(NotAllowed):
            await completing(here).complete_return(Browsed(token, cookies), {})
    done = await completing(here).complete_return(Browsed(token, mine), {"n": 1})
    assert done is Completion.ACCEPTED


async def test_return_with_cookie_of_another_user_is_refused_and_question_stays_open(
    here: Service,
) -> None:
    mine, bobs = await asked_locally(here), await asked(here, subject="bob")
    cookies = {here.browser.cookie_name: COOKIE}
    for elicitation, uid in ((mine, UID + 1), (bobs, UID), (bobs, UID + 1)):
        await here.elicitations.open_attempt(elicitation.id, browser=here.browser.hash(COOKIE))
        token, _ = await returning(here, elicitation)
        with pytest.raises(NotAllowed):
            await completing(here).complete_return(Browsed(token, cookies, uid=uid), {})
        assert (await now_of(here, elicitation)).status is Status.OPENED


async def test_newer_attempt_invalidates_browser_of_earlier_attempt(here: Service) -> None:
    elicitation = await asked_locally(here)
    token, _ = await returning(here, elicitation)
    for cookie in (COOKIE, "d" * 32):
        await here.elicitations.open_attempt(elicitation.id, browser=here.browser.hash(cookie))
    with pytest.raises(NotAllowed):
        await completing(here).complete_return(
            Browsed(token, {here.browser.cookie_name: COOKIE}), {}
        )


async def test_token_of_other_purpose_cannot_complete_return(here: Service) -> None:
    elicitation = await asked(here)
    await here.elicitations.open_attempt(elicitation.id, browser=here.browser.hash(COOKIE))
    _, callback = await returning(here, elicitation)
    link = here.links.of(elicitation, now=here.clock()).rsplit("/", 1)[1]
    cookies = {here.browser.cookie_name: COOKIE}
    for token in ("", "x", elicitation.id, callback, link):
        done = await completing(here).complete_return(Browsed(token, cookies), {})
        assert done is Completion.UNKNOWN


async def test_callback_url_completes_the_question_once_and_only_after_the_link_was_opened(
    here: Service,
) -> None:
    elicitation = await asked(here)
    token, callback = await returning(here, elicitation)
    assert await here.completing.called_back(callback, {}) is Completion.UNKNOWN
    await here.elicitations.open_attempt(elicitation.id, browser="b")
    with pytest.raises(InvalidToken):
        await here.completing.called_back(token, {})
    assert await here.completing.called_back(callback, {"n": 1}) is Completion.ACCEPTED
    again = await here.completing.called_back(callback, {"n": 2})
    assert again is Completion.ALREADY_SETTLED


async def test_token_of_erased_elicitation_is_invalid(here: Service, store: MemoryStore) -> None:
    elicitation = await asked(here)
    token, callback = await returning(here, elicitation)
    await store.erase(owner=elicitation.owner)
    with pytest.raises(InvalidToken):
        await here.completing.called_back(callback, {})
    done = await completing(here).complete_return(Browsed(token, {}), {})
    assert done is Completion.UNKNOWN


def nested(depth: int) -> Json:
    content: Json = 1
    for _ in range(depth):
        content = {"a": content}
    return content


CONTENTS = {
    "Python object": {"at": object()},
    "larger than a record": {"a": "x" * 70_000},
    "lone surrogate": {"a": "\ud800"},
    "set": {"a": {1, 2}},
}


@pytest.mark.parametrize("name", CONTENTS)
async def test_unserializable_content_is_refused_with_reason(here: Service, name: str) -> None:
    elicitation = await asked(here)
    with pytest.raises(InvalidQuestion):
        await here.completing.complete(elicitation.id, CONTENTS[name])  # type: ignore[arg-type]


async def test_refused_content_leaves_question_open(here: Service) -> None:
    elicitation = await asked(here)
    with pytest.raises(ValueError, match="at most"):
        await here.completing.complete(elicitation.id, {"a": "x" * 70_000})
    assert await here.completing.complete(elicitation.id, {"n": 1}) is Completion.ACCEPTED


async def test_deeply_nested_content_is_refused_or_readable(here: Service, there: Service) -> None:
    """A record that was written can be read by the sweeper and by every process."""
    for depth in range(100, 1400, 100):
        elicitation = await asked(here, join=str(depth))
        try:
            await here.completing.complete(elicitation.id, nested(depth))
        except (RecursionError, InvalidQuestion):
            continue
        read = await there.elicitations.get(elicitation.id)
        assert read is not None
        assert read.status is Status.ACCEPTED


@pytest.mark.parametrize("content", [{"list": (1, 2)}, {1: "one"}])
async def test_awaited_answer_equals_the_answer_that_another_process_reads(
    here: Service, there: Service, content: dict[object, object]
) -> None:
    presenter = Holding()
    with asking(Verbs(call_of(here, presenter=presenter))):
        waiting = asyncio.ensure_future(late_url().outcome())
    id = await holding(presenter)
    await here.completing.complete(id, content)  # type: ignore[arg-type]
    stored = await there.elicitations.get(id)
    assert stored is not None
    assert (await waiting).content == stored.content


async def test_accepted_question_cannot_be_declined_or_accepted_again(here: Service) -> None:
    elicitation = await asked(here)
    await here.completing.complete(elicitation.id, {})
    for status in set(Status) - {Status.ACCEPTED}:
        with pytest.raises(NotPossible):
            await here.elicitations.settle(elicitation.id, status)
    ended = await here.elicitations.end(elicitation, Status.DECLINED)
    assert ended.status is Status.ACCEPTED


class Behind(MemoryStore):
    """A second connection to a store, which receives no changes from other processes."""

    def notify(self, records: tuple[Record, ...]) -> None:
        pass


async def test_stale_cache_never_overrides_store(
    here: Service, store: MemoryStore, clock: Clock
) -> None:
    behind = Behind(shares_with=store)
    async with process(behind, clock) as other:
        elicitation = await asked(other)
        await other.elicitations.open_attempt(elicitation.id, browser="b")
        await here.completing.complete(elicitation.id, {"n": 1})
        done = await other.completing.complete(elicitation.id, {"n": 2})
        assert done is Completion.ALREADY_SETTLED
        with pytest.raises(NotPossible):
            await other.elicitations.open_attempt(elicitation.id, browser="b")
        claimed = await other.elicitations.claim(elicitation.id, run="r", request_id="l")
        assert claimed.content == {"n": 1}
        with pytest.raises(NotPossible):
            await here.elicitations.claim(elicitation.id, run="r2", request_id="l2")


NAMED = elicit.form("Which size?", elicitation_id="order-8")
SIZE = {"response": "L"}


@pytest.mark.parametrize("is_declined", [True, False])
async def test_ended_form_cannot_be_completed_by_code(
    here: Service, clock: Clock, is_declined: bool
) -> None:
    presenter = Holding()
    call = call_of(here, presenter=presenter)
    call.begin()
    with asking(Verbs(call)):
        waiting = asyncio.create_task(NAMED.outcome())
        id = await holding(presenter)
    if is_declined:
        await here.elicitations.settle(id, Status.DECLINED)
    else:
        clock.tick(minutes=6)
    assert await here.completing.complete("order-8", SIZE) is Completion.ALREADY_SETTLED
    await sweep(here)
    row = await here.elicitations.get(id)
    assert row is not None
    assert row.status is (Status.DECLINED if is_declined else Status.EXPIRED)
    assert row.content is None
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await call.finish()
