"""The functions of the client in a program, over the HTTP API, with their results."""

import sys
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from flows import (
    Cancelled,
    Completion,
    Declined,
    Denied,
    Expired,
    InvalidQuestion,
    NotAllowed,
    NotConfigured,
    NotSupported,
    Refund,
    elicit,
)
from flows.elicitation.states import Status
from flows.payments.receipt import ReceiptStatus
from flows.providers import github
from tests.support.api_people import people_env
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.by_code import letters_on
from tests.support.living import living
from tests.support.mcp_sandbox import KEY, Guest
from tests.support.mcp_server import TLS, eventually
from tests.support.processes import ended, start
from tests.support.runs_env import (
    NINE,
    CutOff,
    Programs,
    approve,
    connect,
    decline,
    deny,
    fill,
    pay,
    programs_at,
    type_in,
)
from webapp.calls.shown_link import ShownLink
from webapp.client import Elicit, ListedQuestion, ServerRefused, list_questions
from webapp.identity.api_keys import KeyScope
from webapp.settings.identity import IdentitySettings

SITE = "https://rooms.example/7"


@dataclass
class Trip:
    city: str
    nights: int = 1


class Booking(BaseModel):
    day: date
    note: str | None = None


async def test_an_account_is_connected_and_known_from_then_on(shop: Programs) -> None:
    # parity: F2
    async def work(_: Elicit) -> object:
        return await elicit.oauth(github, scopes=["repo"])

    first = await shop.done(work, connect)
    again = await shop.done(work, run="order 9")
    assert first == again
    assert "octocat" in repr(first)


async def test_an_account_is_used_through_the_server_which_keeps_its_key(shop: Programs) -> None:
    async def work(_: Elicit) -> list[object]:
        account = await elicit.oauth(github, scopes=["repo"])
        with pytest.raises(NotAllowed, match="access_tokens=True"):
            str(account.access_token)
        with pytest.raises(NotSupported, match="client"):
            account.sync_client()
        async with account.client() as api:
            me, gone = await api.get("/user"), await api.post("/nothing", json={"star": True})
            elsewhere = await api.get("https://elsewhere.example/user")
        assert me.json()["login"] == "octocat"
        return [me.status_code, gone.status_code, elsewhere.json()["code"]]

    assert await shop.done(work, connect) == [200, 404, "NOT_THE_PROVIDER"]


async def test_the_key_of_an_account_is_told_where_that_is_wanted(
    here: AskingEnv, shop: Programs
) -> None:
    async def work(_: Elicit) -> str:
        account = await elicit.oauth(github, scopes=["repo"])
        return account.access_token

    async with programs_at(here, KeyScope.TOKENS) as trusted:
        key = await trusted.done(work, connect, access_tokens=True)
    assert [kept.access_token for kept in await here.connections()] == [key]
    with pytest.raises(NotAllowed, match="tokens"):
        await shop.done(work, access_tokens=True)


async def test_a_payment_is_refunded(here: AskingEnv) -> None:
    async def work(_: Elicit) -> Refund:
        receipt = await elicit.payment(NINE, "Premium report")
        return await receipt.refund(reason="sold out")

    async with programs_at(here, KeyScope.REFUND) as shop:
        refund = await shop.done(work, pay)
    assert (refund.price, refund.status.value) == (NINE, "succeeded")
    (payment,) = await here.service.kinds.payments.ledger.all()
    assert (payment.status, payment.reason) == (ReceiptStatus.REFUNDED, "sold out")


async def test_a_payment_is_spent_when_its_block_ends(shop: Programs, here: AskingEnv) -> None:
    # parity: F2
    async def work(_: Elicit) -> object:
        return await elicit.payment(NINE, "Premium report")

    receipt = await shop.done(work, pay)
    assert "9.00 EUR" in repr(receipt)
    (payment,) = await here.service.kinds.payments.ledger.all()
    assert payment.status is ReceiptStatus.SPENT


async def test_a_secret_is_typed_and_forgotten(shop: Programs) -> None:
    async def work(_: Elicit) -> list[object]:
        first = await elicit.secret("Your key, please.", name="key")
        kept = await elicit.secret("Your key, please.", name="key")
        return [first, kept, await elicit.forget("key"), await elicit.forget("key")]

    assert await shop.done(work, type_in) == [KEY, KEY, True, False]


async def test_a_form_gives_what_its_schema_says(shop: Programs) -> None:
    # parity: F2
    async def work(_: Elicit) -> Trip:
        return await elicit.form("Where to?", Trip)

    async def fill(guest: Guest, link: str) -> None:
        await guest.type(link, city="Lund", nights="3")

    assert await shop.done(work, fill) == Trip(city="Lund", nights=3)


async def test_a_form_of_a_model_gives_the_model(shop: Programs) -> None:
    async def work(_: Elicit) -> Booking:
        return await elicit.form("When?", Booking)

    async def fill(guest: Guest, link: str) -> None:
        await guest.type(link, day="2026-05-01")

    assert await shop.done(work, fill) == Booking(day=date(2026, 5, 1))


async def test_a_form_without_a_schema_gives_one_text(shop: Programs) -> None:
    async def work(_: Elicit) -> str:
        return await elicit.form("Which city?")

    async def fill(guest: Guest, link: str) -> None:
        await guest.type(link, response="Lund")

    assert await shop.done(work, fill) == "Lund"


@pytest.mark.parametrize(("act", "said"), [(approve, True), (decline, False)])
async def test_a_yes_and_a_no_are_told(shop: Programs, act, said) -> None:
    async def work(_: Elicit) -> bool:
        return await elicit.confirm("Delete it?", arguments={"count": 5})

    assert await shop.done(work, act) is said


async def test_a_visit_is_completed_by_the_program_that_sent_somebody_on(shop: Programs) -> None:
    async def work(_: Elicit) -> object:
        return await elicit.url("Book the room.", SITE)

    block = shop.begin(work)
    id = (await block.link()).elicitation_id
    async with shop.elicit(run="at the desk"):
        done = [await elicit.complete_elicitation(id, {"room": 7}) for _ in range(2)]
        done.append(await elicit.complete_elicitation("nothing" * 6))
    assert done == [Completion.ACCEPTED, Completion.ALREADY_SETTLED, Completion.UNKNOWN]
    assert await block == {"room": 7}


async def test_several_are_asked_together(shop: Programs, here: AskingEnv) -> None:
    async def work(_: Elicit) -> object:
        return await elicit.together(elicit.confirm("One?"), elicit.confirm("Two?"))

    block = shop.begin(work)
    links = [await block.link(0), await block.link(1)]
    guest = await here.guest()
    for link in links:
        await (approve if link.message == "Two?" else decline)(guest, link.url)
    assert await block == (False, True)


async def test_equal_questions_are_several(shop: Programs) -> None:
    async def work(_: Elicit) -> list[bool]:
        return [await elicit.confirm("Again?"), await elicit.confirm("Again?")]

    assert await shop.done(work, approve, decline) == [True, False]


async def test_one_payment_answers_one_question_however_its_provider_is_named(
    shop: Programs,
) -> None:
    async def work(_: Elicit) -> set[str]:
        one = await elicit.payment(NINE, "Tea")
        other = await elicit.payment(NINE, "Tea", provider="stripe")
        return {one.id, other.id}

    assert len(await shop.done(work, pay, pay)) == 2


@pytest.mark.parametrize(
    ("question", "act", "error"),
    [
        (lambda: elicit.form("Which city?"), decline, Declined),
        (lambda: elicit.oauth(github), deny, Denied),
    ],
)
async def test_a_no_is_raised_as_in_a_tool(shop: Programs, question, act, error) -> None:
    async def work(_: Elicit) -> object:
        return await question()

    with pytest.raises(error) as refused:
        await shop.done(work, act)
    assert refused.value.elicitation_id


async def test_a_no_is_told_without_an_error_where_that_is_wanted(shop: Programs) -> None:
    async def work(_: Elicit) -> list[object]:
        outcome = await elicit.form("Which city?").outcome()
        return [outcome.action, await elicit.form("Which one?").or_none()]

    assert await shop.done(work, decline, decline) == ["decline", None]


async def test_time_runs_out_as_in_a_tool(shop: Programs, here: AskingEnv) -> None:
    async def work(_: Elicit) -> object:
        return await elicit.form("Which city?", timeout=timedelta(minutes=2))

    block = shop.begin(work)
    await block.link()
    await here.pass_time(minutes=3)
    with pytest.raises(Expired) as over:
        await block
    assert over.value.ttl == timedelta(minutes=2)


async def test_a_question_is_cancelled_by_its_program(shop: Programs) -> None:
    async def work(asker: Elicit) -> object:
        async def cancel(link: ShownLink) -> None:
            for _ in range(2):
                await asker.cancel(link.elicitation_id)

        asker._show = cancel
        return await elicit.form("Which city?")

    with pytest.raises(Cancelled):
        await shop.done(work)


async def test_letters_go_from_the_page_to_the_program() -> None:
    by_code = IdentitySettings(binds_by_code=True)
    async with (
        living(asking_env(who=None, identity=by_code)) as unknown,
        programs_at(unknown) as shop,
    ):
        person = await unknown.browser(None)
        told = list[str | None]()

        async def show(link: ShownLink) -> None:
            assert link.needs_code
            await person.press(link.url, to="/code")
            letters = letters_on(await person.visit(link.url))
            told.extend([await link.confirm("WRONGLET"), await link.confirm(letters)])
            await person.press(link.url)

        async with shop.elicit(show=show):
            assert await elicit.confirm("Delete it?")
        assert told[0] is not None
        assert told[1] is None


async def test_what_a_link_raises_the_await_raises(shop: Programs) -> None:
    def show(_: ShownLink) -> None:
        raise LookupError("nowhere to show it")

    async with shop.elicit(show=show):
        with pytest.raises(LookupError, match="nowhere"):
            await elicit.confirm("Delete it?")


async def test_a_notice_goes_where_the_program_says(shop: Programs) -> None:
    # parity: F2
    heard, later = list[str](), list[str]()

    async def note(told: str) -> None:
        later.append(told)

    for to in (heard.append, note):
        async with shop.elicit(on_notice=to):
            await elicit.notify("Reading the order")
    async with shop.elicit():
        await elicit.notify("Nobody listens")
    assert heard == later == ["Reading the order"]


async def test_what_a_server_alone_can_do_says_what_to_do_instead(shop: Programs) -> None:
    async with shop.elicit():
        assert (elicit.can("url"), elicit.can("form")) == (True, False)
        with pytest.raises(NotSupported, match="id of the link"):
            elicit.token("order-8")
        with pytest.raises(NotSupported, match="where tools are served"):
            elicit.read_token("text")
        with pytest.raises(InvalidQuestion, match="Await the questions"):
            elicit.gate(lambda: None)
        with pytest.raises(InvalidQuestion, match="Await the questions"):
            elicit.needs(city := elicit.form("Which city?"))
        city.discard()
        with pytest.raises(InvalidQuestion, match="address as text"):
            await elicit.url("Go.", lambda link: link.id, origins=["https://rooms.example"])


async def test_errors_say_what_the_server_says(shop: Programs, here: AskingEnv) -> None:
    async with shop.elicit():
        with pytest.raises(NotConfigured) as lacking:
            await elicit.oauth("nobody")
        assert lacking.value.missing == ("[providers.nobody] in elicit.toml",)
        assert "not set up" in str(lacking.value)
    shop.key = shop.key[:-1] + ("a" if shop.key[-1] != "a" else "b")
    async with shop.elicit():
        with pytest.raises(ServerRefused, match="elicit api-keys new") as refused:
            await elicit.form("Which city?")
        assert (refused.value.problem, refused.value.status) == ("API_KEY_REFUSED", 401)


async def test_a_confirmation_that_nobody_may_be_asked_is_a_no(here: AskingEnv) -> None:
    key, _ = await here.service.api_keys.new(
        program="shop",
        scopes=["ask"],  # type: ignore[list-item]  # as words
        owners=["bob"],
        expires_at=here.clock() + timedelta(days=1),
    )
    async with Programs(here=here, key=key).elicit():
        assert await elicit.confirm("Delete it?") is False
        with pytest.raises(NotAllowed, match="other users"):
            await elicit.form("Which city?")


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"run": ""}, "run names"),
        ({"user": None}, "whom it asks"),
        ({"access_token": "token"}, "whom it asks"),
        ({"url": "http://elicit.example"}, "https"),
    ],
)
def test_it_is_opened_for_one_run_of_one_user_by_a_safe_way(about, words) -> None:
    right = {"url": "https://elicit.example", "api_key": "key", "user": "ann", "run": "order 8"}
    with pytest.raises(InvalidQuestion, match=words):
        Elicit(**{**right, **about})


async def test_it_is_light() -> None:
    """Importing the client imports no framework, no protocol library and no store."""
    heavy = [
        "litestar",
        "mcp",
        "sqlite3",
        "starlette",
        "uvicorn",
        "cryptography",
        "jinja2",
        "babel",
    ]
    code = f"import sys, webapp.client; print([m for m in {heavy} if m in sys.modules])"
    process = await start(sys.executable, "-c", code, name="light")
    told = await ended(process)
    assert (told.status, told.out.strip()) == (0, "[]")


async def test_a_person_who_signs_in_is_asked_by_their_own_token_as_it_is_by_then() -> None:
    async with living(people_env()) as env, programs_at(env.here) as shop:
        tokens = list[str]()

        def token() -> str:
            tokens.append(env.acting("alice"))
            return tokens[-1]

        async def work(_: Elicit) -> bool:
            return await elicit.confirm("Delete it?") and await elicit.once("delete", delete)

        async def delete(_: str) -> bool:
            return True

        block = shop.begin(work, user=None, access_token=token)
        link = await block.link()
        alice = await env.signed_in("alice", link.url)
        await alice.press(link.url)
        assert await block
        assert len(tokens) > 3


async def test_a_token_that_is_over_while_the_person_thinks_is_asked_for_again() -> None:
    async with living(people_env()) as env, programs_at(env.here) as shop:

        async def work(_: Elicit) -> bool:
            return await elicit.confirm("Delete it?", timeout=timedelta(hours=5))

        block = shop.begin(work, user=None, access_token=lambda: env.acting("alice"))
        link = await block.link()
        waiters = env.here.service.elicitations.waiters
        await eventually(lambda: waiters.has(link.elicitation_id))
        env.here.clock.tick(hours=2)
        alice = await env.signed_in("alice", link.url)
        await alice.press(link.url)
        assert await block


@pytest.mark.parametrize("code", ["ISSUER_UNAVAILABLE", "TOO_MANY_OPEN"])
async def test_what_passes_is_waited_for(shop: Programs, code: str) -> None:
    way = CutOff()
    about = {"content-type": "application/problem+json"}
    way.answers.append(httpx.Response(503, headers=about, json={"code": code}))
    async with shop.elicit(transport=way):
        assert await elicit.once("count", count) == 1


async def count(_: str) -> int:
    return 1


async def test_an_id_that_somebody_made_up_leads_to_no_other_route(
    shop: Programs, here: AskingEnv
) -> None:
    async def work(_: Elicit) -> str:
        return (await elicit.payment(NINE, "A room")).id

    block = shop.begin(work)
    link = await block.link()
    way = CutOff()
    async with shop.elicit(run="order 9", transport=way) as other:
        for made_up in (f"{link.elicitation_id}/cancel?", f"x/../{link.elicitation_id}/taken?"):
            assert await elicit.complete_elicitation(made_up) is Completion.UNKNOWN
            with pytest.raises(InvalidQuestion):
                await other.cancel(made_up)
        assert await elicit.forget("../accounts/x") is False
    assert not way.sent
    await pay(await here.guest(), link.url)
    assert await block


@pytest.mark.parametrize("way", ["await", "or_none", "outcome"])
async def test_question_that_the_api_cannot_ask_raises_and_is_no_decline(shop: Programs, way: str):
    # finding: XQ2
    async with shop.elicit():
        question = elicit.confirm("Refund it?", approver="finance")
        with pytest.raises(InvalidQuestion, match="approver= works where tools are served"):
            await (question if way == "await" else getattr(question, way)())


async def listed(shop: Programs, *, key: str | None = None, **more: Any) -> list[ListedQuestion]:
    way = httpx.AsyncHTTPTransport(verify=TLS)
    found = list_questions(shop.here.url, api_key=key or shop.key, transport=way, **more)
    return [one async for one in found]


async def test_program_lists_what_it_asked_all_its_users(shop: Programs, here: AskingEnv) -> None:
    # finding: XQ5
    async def work(_: Elicit) -> bool:
        return await elicit.confirm("Delete it?")

    blocks = [shop.begin(work, user=user, run=user) for user in ("ann", "bob")]
    links = {user: await block.link() for user, block in zip(("ann", "bob"), blocks, strict=True)}
    found = await listed(shop, waiting=True)
    ids = {user: link.elicitation_id for user, link in links.items()}
    assert {one.user: one.id for one in found} == ids
    assert all(one.url and one.url.startswith(f"{here.url}/e/") for one in found)
    assert {one.id for one in await listed(shop, user="bob")} == {ids["bob"]}
    key, _ = await here.service.api_keys.new(
        program="desk",
        scopes=[KeyScope.APPROVE],
        owners=["ann", "bob"],
        expires_at=here.clock() + timedelta(days=1),
    )
    decided = await listed(shop, key=key, waiting=True)
    assert {one.user: one.url for one in decided} == {"ann": None, "bob": None}
    for block, (user, link) in zip(blocks, links.items(), strict=True):
        await approve(await here.guest(user), link.url)
        assert await block
    assert await listed(shop, waiting=True) == []
    assert {one.status for one in await listed(shop)} == {"accepted"}


async def test_form_without_schema_returns_the_text(shop: Programs, here: AskingEnv) -> None:
    # finding: XQ10
    block = shop.begin(ask_for_city)
    link = await block.link()
    await fill(await here.guest(), link.url)
    assert await block == "Lund"


async def test_expired_question_has_the_same_code_here_and_over_http(
    shop: Programs, here: AskingEnv
) -> None:
    # finding: XQ10
    block = shop.begin(ask_for_city)
    link = await block.link()
    here.clock.tick(minutes=6)
    await here.service.elicitations.settle(link.elicitation_id, Status.EXPIRED)
    with pytest.raises(Expired) as ended:
        await block
    assert ended.value.code == Expired.code == Expired.name == "ELICITATION_TIMEOUT"


async def ask_for_city(_: Elicit) -> str:
    return await elicit.form("City?")
