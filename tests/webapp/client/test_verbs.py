"""The results of the client's functions, which a program calls over the HTTP API."""

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
    Ending,
    Expired,
    InvalidQuestion,
    NotAllowed,
    NotConfigured,
    NotSupported,
    Refund,
    elicit,
)
from flows.elicitation.shown_link import ShownLink
from flows.elicitation.states import Elicitation, Status
from flows.payments.receipt import ReceiptStatus
from flows.providers import github
from tests.support.api_people import people_env
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.by_code import code_on
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
    pay,
    programs_at,
    type_in,
)
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


async def test_account_is_connected_once_and_reused(shop: Programs) -> None:
    # parity: F2
    async def work(_: Elicit) -> object:
        return await elicit.oauth(github, scopes=["repo"])

    first = await shop.done(work, connect)
    again = await shop.done(work, run="order 9")
    assert first == again
    assert "octocat" in repr(first)


async def test_account_is_used_through_server_without_access_token(shop: Programs) -> None:
    async def work(_: Elicit) -> list[object]:
        account = await elicit.oauth(github, scopes=["repo"])
        with pytest.raises(NotAllowed, match="access_tokens=True"):
            str(account.access_token)
        with pytest.raises(NotSupported, match="client"):
            account.sync_client()
        with pytest.raises(NotSupported, match="The server renews the token"):
            await account.invalidate()
        async with account.client() as api:
            me, gone = await api.get("/user"), await api.post("/nothing", json={"star": True})
            elsewhere = await api.get("https://elsewhere.example/user")
        assert me.json()["login"] == "octocat"
        return [me.status_code, gone.status_code, elsewhere.json()["code"]]

    assert await shop.done(work, connect) == [200, 404, "NOT_THE_PROVIDER"]


async def test_access_token_is_returned_if_enabled_and_in_scope(
    here: AskingEnv, shop: Programs
) -> None:
    async def work(_: Elicit) -> str:
        account = await elicit.oauth(github, scopes=["repo"])
        return account.access_token

    async with programs_at(here, KeyScope.TOKENS) as trusted:
        key = await trusted.done(work, connect, access_tokens=True)
    assert [account.access_token for account in await here.connections()] == [key]
    with pytest.raises(NotAllowed, match="tokens"):
        await shop.done(work, access_tokens=True)


async def test_receipt_refunds_payment(here: AskingEnv) -> None:
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


async def test_secret_is_typed_stored_and_forgotten(shop: Programs) -> None:
    async def work(_: Elicit) -> list[object]:
        first = await elicit.secret("Your key, please.", name="key")
        stored = await elicit.secret("Your key, please.", name="key")
        return [first, stored, await elicit.forget("key"), await elicit.forget("key")]

    assert await shop.done(work, type_in) == [KEY, KEY, True, False]


async def test_form_returns_value_of_its_schema(shop: Programs) -> None:
    # parity: F2
    async def work(_: Elicit) -> Trip:
        return await elicit.form("Where to?", Trip)

    async def fill(guest: Guest, link: str) -> None:
        await guest.type(link, city="Lund", nights="3")

    assert await shop.done(work, fill) == Trip(city="Lund", nights=3)


async def test_form_with_model_returns_model(shop: Programs) -> None:
    async def work(_: Elicit) -> Booking:
        return await elicit.form("When?", Booking)

    async def fill(guest: Guest, link: str) -> None:
        await guest.type(link, day="2026-05-01")

    assert await shop.done(work, fill) == Booking(day=date(2026, 5, 1))


async def test_form_without_schema_returns_response(shop: Programs) -> None:
    # finding: XQ10
    async def work(_: Elicit) -> str:
        return await elicit.form("Which city?")

    async def fill(guest: Guest, link: str) -> None:
        await guest.type(link, response="Lund")

    assert await shop.done(work, fill) == "Lund"


@pytest.mark.parametrize(("act", "expected"), [(approve, True), (decline, False)])
async def test_confirm_returns_true_or_false(shop: Programs, act, expected) -> None:
    async def work(_: Elicit) -> bool:
        return await elicit.confirm("Delete it?", arguments={"count": 5})

    assert await shop.done(work, act) is expected


async def test_url_question_is_completed_by_program(shop: Programs) -> None:
    async def work(_: Elicit) -> object:
        return await elicit.url("Book the room.", SITE)

    block = shop.begin(work)
    id = (await block.link()).elicitation_id
    async with shop.elicit(run="at the desk"):
        done = [await elicit.complete_elicitation(id, {"room": 7}) for _ in range(2)]
        done.append(await elicit.complete_elicitation("nothing" * 6))
    assert done == [Completion.ACCEPTED, Completion.ALREADY_SETTLED, Completion.UNKNOWN]
    assert await block == {"room": 7}


async def test_together_returns_answers_in_order_of_questions(
    shop: Programs, here: AskingEnv
) -> None:
    async def work(_: Elicit) -> object:
        return await elicit.together(elicit.confirm("One?"), elicit.confirm("Two?"))

    block = shop.begin(work)
    links = [await block.link(0), await block.link(1)]
    guest = await here.guest()
    for link in links:
        await (approve if link.message == "Two?" else decline)(guest, link.url)
    assert await block == (False, True)


async def test_equal_questions_are_asked_separately(shop: Programs) -> None:
    async def work(_: Elicit) -> list[bool]:
        return [await elicit.confirm("Again?"), await elicit.confirm("Again?")]

    assert await shop.done(work, approve, decline) == [True, False]


async def test_payments_with_and_without_named_provider_are_separate(
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
async def test_declined_question_raises_like_in_tool(shop: Programs, question, act, error) -> None:
    async def work(_: Elicit) -> object:
        return await question()

    with pytest.raises(error) as refused:
        await shop.done(work, act)
    assert refused.value.elicitation_id


async def test_outcome_and_or_none_return_decline_without_error(shop: Programs) -> None:
    async def work(_: Elicit) -> list[object]:
        outcome = await elicit.form("Which city?").outcome()
        return [outcome.action, await elicit.form("Which one?").or_none()]

    assert await shop.done(work, decline, decline) == ["decline", None]


async def test_expired_question_raises_like_in_tool(shop: Programs, here: AskingEnv) -> None:
    async def work(_: Elicit) -> object:
        return await elicit.form("Which city?", timeout=timedelta(minutes=2))

    block = shop.begin(work)
    await block.link()
    await here.pass_time(minutes=3)
    with pytest.raises(Expired) as over:
        await block
    assert over.value.ttl == timedelta(minutes=2)


async def test_program_cancels_its_question(shop: Programs) -> None:
    async def work(asker: Elicit) -> object:
        async def cancel(link: ShownLink) -> None:
            for _ in range(2):
                await asker.cancel(link.elicitation_id)

        asker._show = cancel
        return await elicit.form("Which city?")

    with pytest.raises(Cancelled):
        await shop.done(work)


async def test_user_code_is_passed_from_page_to_program() -> None:
    by_code = IdentitySettings(binds_by_code=True)
    async with (
        living(asking_env(who=None, identity=by_code)) as unknown,
        programs_at(unknown) as shop,
    ):
        person = await unknown.browser(None)
        reported = list[str | None]()

        async def show(link: ShownLink) -> None:
            assert link.needs_code
            await person.press(link.url, to="/code")
            user_code = code_on(await person.visit(link.url))
            reported.extend([await link.confirm("WRONGLET"), await link.confirm(user_code)])
            await person.press(link.url)

        async with shop.elicit(show=show):
            assert await elicit.confirm("Delete it?")
        assert reported[0] is not None
        assert reported[1] is None


async def test_exception_of_show_is_raised_by_await(shop: Programs) -> None:
    def show(_: ShownLink) -> None:
        raise LookupError("nowhere to show it")

    async with shop.elicit(show=show):
        with pytest.raises(LookupError, match="nowhere"):
            await elicit.confirm("Delete it?")


async def test_notices_are_sent_to_on_notice_callback(shop: Programs) -> None:
    # parity: F2
    received, later = list[str](), list[str]()

    async def note(notice: str) -> None:
        later.append(notice)

    for to in (received.append, note):
        async with shop.elicit(on_notice=to):
            await elicit.notify("Reading the order")
    async with shop.elicit():
        await elicit.notify("Nobody listens")
    assert received == later == ["Reading the order"]


async def note(ending: Ending) -> None: ...


async def test_server_only_features_raise_with_alternative(shop: Programs) -> None:
    async with shop.elicit():
        assert (elicit.can("url"), elicit.can("form")) == (True, False)
        with pytest.raises(NotSupported, match="id of the link"):
            elicit.token("order-8")
        with pytest.raises(NotSupported, match="Only the server can read tokens"):
            elicit.read_token("text")
        with pytest.raises(NotSupported, match="cannot call this program back"):
            await elicit.on_end(note, key="a")
        with pytest.raises(NotSupported, match="the id that you passed as user="):
            elicit.caller()
        with pytest.raises(InvalidQuestion, match="Await the questions"):
            elicit.gate(lambda: None)
        with pytest.raises(InvalidQuestion, match="Await the questions"):
            elicit.needs(city := elicit.form("Which city?"))
        city.discard()
        with pytest.raises(InvalidQuestion, match="address as text"):
            await elicit.url("Go.", lambda link: link.id, origins=["https://rooms.example"])


async def test_errors_contain_message_of_server(shop: Programs, here: AskingEnv) -> None:
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


async def test_confirm_returns_false_if_user_cannot_be_asked(here: AskingEnv) -> None:
    key, _ = await here.service.identity.api_keys.new(
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
        ({"run": ""}, "run= must name"),
        ({"user": None}, "to name the person to ask"),
        ({"access_token": "token"}, "to name the person to ask"),
        ({"url": "http://elicit.example"}, "https"),
    ],
)
def test_client_refuses_missing_or_unsafe_settings(about, words) -> None:
    right = {"url": "https://elicit.example", "api_key": "key", "user": "ann", "run": "order 8"}
    with pytest.raises(InvalidQuestion, match=words):
        Elicit(**{**right, **about})


async def test_importing_client_loads_no_server_and_no_heavy_library() -> None:
    """Importing the client imports no framework, no protocol library and no store."""
    code = "import sys, webapp.client; print(*sys.modules)"
    process = await start(sys.executable, "-c", code, name="light")
    reported = await ended(process)
    assert reported.status == 0
    imported = set(reported.out.split())
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
    assert imported.isdisjoint(heavy)
    assert {
        name
        for name in imported
        if name.startswith("webapp.") and not name.startswith("webapp.client")
    } == {"webapp.calls", "webapp.calls.unasked", "webapp.deadline", "webapp.printing"}


async def test_person_is_asked_with_current_access_token() -> None:
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


async def test_access_token_expired_while_waiting_is_requested_again() -> None:
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
async def test_temporary_server_error_is_retried(shop: Programs, code: str) -> None:
    way = CutOff()
    about = {"content-type": "application/problem+json"}
    way.answers.append(httpx.Response(503, headers=about, json={"code": code}))
    async with shop.elicit(transport=way):
        assert await elicit.once("count", count) == 1


async def count(_: str) -> int:
    return 1


async def test_invented_id_cannot_reach_other_route(shop: Programs, here: AskingEnv) -> None:
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
async def test_unknown_approver_raises_and_is_no_decline(shop: Programs, way: str):
    # finding: XQ2
    async with shop.elicit():
        question = elicit.confirm("Refund it?", approver="finance")
        with pytest.raises(NotConfigured, match=r"\[approvers.finance\]"):
            await (question if way == "await" else getattr(question, way)())


async def known_city(city: str) -> None: ...


@pytest.mark.parametrize("verb", [elicit.form, elicit.secret])
async def test_check_is_refused_in_a_program(shop: Programs, here: AskingEnv, verb: Any) -> None:
    async with shop.elicit():
        with pytest.raises(InvalidQuestion, match="check=known_city does not work over the HTTP"):
            await verb("Which city?", check=known_city)
    assert await here.service.elicitations.all(Elicitation) == []


async def listed(shop: Programs, *, key: str | None = None, **more: Any) -> list[ListedQuestion]:
    way = httpx.AsyncHTTPTransport(verify=TLS)
    found = list_questions(shop.here.url, api_key=key or shop.key, transport=way, **more)
    return [one async for one in found]


async def test_program_lists_questions_of_all_its_users(shop: Programs, here: AskingEnv) -> None:
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
    key, _ = await here.service.identity.api_keys.new(
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


async def test_expired_question_has_same_code_in_client_and_over_http(
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
