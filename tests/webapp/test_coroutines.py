"""`asking` blocks: application code that asks its users questions and awaits their answers."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from flows import (
    AlreadyDone,
    Cancelled,
    Declined,
    Expired,
    InvalidQuestion,
    Money,
    NoAsker,
    NotAsked,
    NotConfigured,
    elicit,
)
from flows.elicitation.shown_link import ShownLink
from flows.errors import StoreUnavailable
from flows.oauth.account import Account
from flows.providers import github
from tests.support.asking_env import APPLICATION, AskingEnv, asking_env
from tests.support.living import living
from tests.support.mcp_server import RING, eventually, soon
from tests.support.shop_env import FrailStore
from webapp import create_app
from webapp.coroutines import asking, completing
from webapp.settings.settings import Settings

NINE = Money("9.00", "EUR")


@pytest.fixture
async def here() -> AsyncIterator[AskingEnv]:
    async with living(asking_env()) as here:
        yield here


async def connect() -> Account:
    return await elicit.oauth(github, scopes=["repo"])


async def buy() -> str:
    receipt = await elicit.payment(NINE, "Premium report")
    return receipt.id


async def type_key() -> str:
    return str(await elicit.secret("Your key, please."))


async def test_account_payment_and_secret_are_awaited_in_same_block(here: AskingEnv) -> None:
    async def all_of_it() -> tuple[str | None, str, str]:
        account = await connect()
        return account.label, await buy(), await type_key()

    block, guest = here.begin(all_of_it), await here.guest()
    first = await block.link()
    assert (first.kind, first.message) == ("oauth", "Connect GitHub")
    assert first.url.startswith(f"{here.url}/e/")
    assert first.expires_at == here.clock() + timedelta(minutes=5)
    await guest.connect(first.url)
    await guest.pay((await block.link(1)).url)
    await guest.type((await block.link(2)).url)
    label, receipt, key = await block
    assert all((label, receipt, key))
    assert len(block.shown) == 3


async def test_connected_account_is_not_requested_again(here: AskingEnv) -> None:
    first, guest = here.begin(connect), await here.guest()
    await guest.connect((await first.link()).url)
    account = await first
    again = here.begin(connect, key="another wish")
    assert (await again).id == account.id
    assert again.shown == []


async def test_decline_raises_in_block(here: AskingEnv) -> None:
    block, guest = here.begin(buy), await here.guest()
    await guest.decline((await block.link()).url)
    with pytest.raises(Declined):
        await block


async def test_same_key_asks_again_after_decline(here: AskingEnv) -> None:
    block, guest = here.begin(buy), await here.guest()
    first = await block.link()
    await guest.decline(first.url)
    with pytest.raises(Declined):
        await block
    again = here.begin(buy)
    assert (await again.link()).elicitation_id != first.elicitation_id


async def test_unanswered_question_raises_expired(here: AskingEnv) -> None:
    block = here.begin(type_key)
    await block.link()
    await here.pass_time(minutes=6)
    with pytest.raises(Expired):
        await block


async def test_trusted_code_completes_url_question_by_id(here: AskingEnv) -> None:
    async def choose() -> object:
        return (await elicit.url("Choose.", "https://shop.example/menu"))["dish"]

    block = here.begin(choose)
    link = await block.link()
    with pytest.raises(NoAsker, match=r"with completing\(\)"):
        await elicit.complete_elicitation(link.elicitation_id)
    with completing(app=here.app):
        done = await elicit.complete_elicitation(link.elicitation_id, {"dish": "soup"})
    assert done == "accepted"
    assert await block == "soup"


async def test_completing_needs_an_application_that_runs() -> None:
    with pytest.raises(NoAsker, match="no application from create_app is running"), completing():
        pass


async def test_cancelled_block_can_be_continued_with_same_key(here: AskingEnv) -> None:
    block, guest = here.begin(buy), await here.guest()
    link = await block.link()
    await block.cancel()
    again = here.begin(buy)
    assert (await again.link()).elicitation_id == link.elicitation_id
    await guest.pay(link.url)
    assert await again


async def test_different_key_owner_or_missing_key_asks_separately(here: AskingEnv) -> None:
    blocks = [
        here.begin(type_key, key="a"),
        here.begin(type_key, key="b"),
        here.begin(type_key, key="a", owner="bob"),
        here.begin(type_key, key=None),
        here.begin(type_key, key=None),
    ]
    ids = {(await block.link()).elicitation_id for block in blocks}
    assert len(ids) == len(blocks)


async def test_newer_block_supersedes_waiting_block(here: AskingEnv) -> None:
    older, guest = here.begin(type_key), await here.guest()
    await older.link()
    newer = here.begin(type_key)
    link = await newer.link()
    with pytest.raises(Cancelled, match="A newer `asking` block"):
        await older
    await guest.type(link.url)
    assert await newer


async def test_answer_claimed_by_running_block_is_not_shared_with_newer_block(
    here: AskingEnv,
) -> None:
    goes_on = asyncio.Event()

    async def type_and_work() -> str:
        key = await type_key()
        await goes_on.wait()
        return key

    older, guest = here.begin(type_and_work), await here.guest()
    first = await older.link()
    await guest.type(first.url)
    waiting = here.service.elicitations
    await eventually(lambda: waiting.rows.recent.has_ended(first.elicitation_id))
    for _ in range(3):
        here.clock.tick(seconds=20)
        await here.service.running_tools.renew()
    newer = here.begin(type_key)
    await eventually(lambda: len(waiting.waiters) > 0)
    assert newer.shown == []
    goes_on.set()
    assert await older
    second = await newer.link()
    assert second.elicitation_id != first.elicitation_id
    await newer.cancel()
    assert (await here.begin(type_key).link()).elicitation_id == second.elicitation_id


async def test_payment_made_without_waiting_block_is_used_by_same_key(here: AskingEnv) -> None:
    block, guest = here.begin(buy), await here.guest()
    link = await block.link()
    await block.cancel()
    await guest.pay(link.url)
    again = here.begin(buy)
    assert await again
    assert again.shown == []


async def test_payment_survives_exception_of_author(here: AskingEnv) -> None:
    async def buy_and_fail() -> None:
        await buy()
        raise ValueError("of the author's")

    block, guest = here.begin(buy_and_fail), await here.guest()
    await guest.pay((await block.link()).url)
    with pytest.raises(ValueError, match="of the author's"):
        await block
    again = here.begin(buy)
    assert await again
    assert again.shown == []


async def test_same_key_cannot_buy_again_for_two_minutes_after_purchase(
    here: AskingEnv,
) -> None:
    block, guest = here.begin(buy), await here.guest()
    await guest.pay((await block.link()).url)
    await block
    again = here.begin(buy)
    with pytest.raises(AlreadyDone):
        await again
    assert again.shown == []
    here.clock.tick(minutes=3)
    later = here.begin(buy)
    assert (await later.link()).kind == "payment"


async def test_step_is_done_once_although_block_was_cancelled(here: AskingEnv) -> None:
    done: list[str] = []

    async def ship(key: str) -> str:
        done.append(key)
        return "shipped"

    async def order() -> str:
        await elicit.once("ship", ship)
        return str(await elicit.secret("Anything else?"))

    block, guest = here.begin(order), await here.guest()
    link = await block.link()
    await block.cancel()
    again = here.begin(order)
    await again.link()
    await guest.type(link.url)
    await again
    assert len(done) == 1


async def test_end_of_block_is_stored_after_store_recovers() -> None:
    # finding: XV1
    store = FrailStore()
    async with living(asking_env(store=store)) as here:

        async def buy_and_lose_the_store() -> None:
            await buy()
            store.troubles.append("the store is away")

        block = here.begin(buy_and_lose_the_store)
        await (await here.guest()).pay((await block.link()).url)
        with pytest.raises(StoreUnavailable):
            await block
        store.troubles.clear()
        here.clock.tick(seconds=20)
        await here.service.running_tools.renew()
        await eventually(lambda: not here.service.running_tools.is_storing_result)
        (payment,) = await here.service.kinds.payments.ledger.all()
        assert payment.status == "spent"
        with pytest.raises(AlreadyDone):
            await here.begin(buy)


async def test_together_asks_several_questions_at_once(here: AskingEnv) -> None:
    async def both() -> tuple[Account, str]:
        account, key = await elicit.together(
            elicit.oauth(github), elicit.secret("Your key, please.")
        )
        return account, str(key)

    block, guest = here.begin(both), await here.guest()
    await block.link(1)
    for link in block.shown:
        await guest.finish(link.kind, link.url)
    account, key = await block
    assert all((account.label, key))


async def test_async_show_is_cancelled_when_question_ends(
    here: AskingEnv,
) -> None:
    links: asyncio.Queue[ShownLink] = asyncio.Queue()
    ended: list[bool] = []

    async def show(link: ShownLink) -> None:
        links.put_nowait(link)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def ask() -> str:
        async with asking("ann", show=show):
            return await type_key()

    task, guest = asyncio.create_task(ask()), await here.guest()
    await guest.type((await soon(links.get())).url)
    assert await soon(task)
    assert ended == [True]


async def test_exception_of_show_is_raised_by_block(here: AskingEnv) -> None:
    def show(link: ShownLink) -> None:
        raise ConnectionError("the mail server is away")

    with pytest.raises(ConnectionError, match="mail server"):
        async with asking("ann", show=show, key="wish"):
            await type_key()
    again = here.begin(type_key)  # the question still exists
    assert (await again.link()).kind == "secret"


async def test_end_of_process_cancels_wait_with_reason() -> None:
    async with asking_env() as here:
        block = here.begin(type_key)
        await block.link()
        blocks, here.blocks = here.blocks, []
    with pytest.raises(Cancelled, match="process is shutting down"):
        await blocks[0]


async def test_question_without_await_fails_block(here: AskingEnv) -> None:
    with pytest.raises(NotAsked, match=r"test_coroutines\.py"):
        async with asking("ann", show=print):
            elicit.secret("Your key, please.")  # type: ignore[unused-awaitable]


async def test_gate_and_needs_are_refused_in_block(here: AskingEnv) -> None:
    async with asking("ann", show=print):
        with pytest.raises(InvalidQuestion, match="Await the questions"):
            elicit.gate(message="Sure?")
        question = elicit.oauth(github)
        with pytest.raises(InvalidQuestion, match="needs"):
            elicit.needs(question)
        question.discard()


@pytest.mark.parametrize("owner", [7, "", "a" * 257, b"ann", "\ud800", None])
async def test_invalid_owner_is_refused_with_reason(here: AskingEnv, owner: object) -> None:
    with pytest.raises(InvalidQuestion, match=r"asking\(str\(user.id\)"):
        async with asking(owner, show=print):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("key", ["", "k" * 257, 8])
async def test_invalid_key_is_refused_with_reason(here: AskingEnv, key: object) -> None:
    with pytest.raises(InvalidQuestion, match="says what the block is for"):
        async with asking("ann", show=print, key=key):  # type: ignore[arg-type]
            pass


async def test_owner_of_wrong_length_is_refused_with_its_length(here: AskingEnv) -> None:
    with pytest.raises(InvalidQuestion, match="This value has 257 characters"):
        async with asking("a" * 257, show=print, app=here.app):
            pass


@pytest.mark.parametrize("show", [None, "https://a.example", lambda: None])
async def test_show_that_cannot_take_a_link_is_refused_before_anybody_is_asked(
    here: AskingEnv, show: Any
) -> None:
    with pytest.raises(InvalidQuestion, match="show must be a function that takes 1 argument"):
        async with asking("ann", show=show, app=here.app):
            await type_key()
    assert not await here.service.elicitations.store.list("elicitation")


async def test_block_inside_the_same_block_is_refused(here: AskingEnv) -> None:
    shown: list[ShownLink] = []

    async def inner(key: str) -> str:
        async with asking("ann", show=shown.append, key=key, app=here.app):
            return await type_key()

    async def same() -> str:
        await type_key()
        return await inner("wish")

    block, guest = here.begin(same), await here.guest()
    await guest.type((await block.link()).url)
    with pytest.raises(InvalidQuestion, match="inside another one with the same owner and key"):
        await block
    assert not shown
    other = here.begin(lambda: inner("another wish"))
    await eventually(lambda: bool(shown))
    await guest.type(shown[0].url)
    assert await other


async def test_block_without_who_and_user_code_raises_not_configured() -> None:
    async with asking_env(who=None):
        with pytest.raises(NotConfigured, match=r"who= of create_app \(or ELICIT_BIND=code"):
            async with asking("ann", show=print):
                await type_key()


async def test_question_outside_block_names_both_ways_to_ask() -> None:
    with pytest.raises(NoAsker, match=r"In a tool: serve it .* within `async with asking"):
        await type_key()


async def test_block_without_running_application_says_how_to_create_application() -> None:
    with pytest.raises(NoAsker, match=r"create_app\(read_settings\(\), who=...\)"):
        async with asking("ann", show=print):
            pass


async def test_block_with_several_applications_must_name_application(here: AskingEnv) -> None:
    async with asking_env() as other:
        with pytest.raises(NoAsker, match=r"app=app"):
            async with asking("ann", show=print):
                pass
        block = other.begin(type_key)
        assert (await block.link()).url.startswith(other.url)


async def test_block_in_another_event_loop_is_refused(here: AskingEnv) -> None:
    async def ask() -> None:
        async with asking("ann", show=print):
            pass

    with pytest.raises(NoAsker, match="another event loop"):
        await asyncio.to_thread(asyncio.run, ask())


async def test_page_names_application_as_set_by_author(here: AskingEnv) -> None:
    block, person = here.begin(connect), await here.browser()
    page = await person.visit((await block.link()).url)
    assert APPLICATION in page.text
    assert "assistant" not in page.text


async def test_user_sees_own_payments_and_others_do_not(here: AskingEnv) -> None:
    async def buy_and_fail() -> None:
        await buy()
        raise ValueError("of the author's")

    block, guest = here.begin(buy_and_fail), await here.guest()
    await guest.pay((await block.link()).url)
    await asyncio.gather(block.task, return_exceptions=True)
    mine = await guest.person.visit(f"{here.url}/payments")
    assert "Premium report" in mine.text
    assert "Not used yet." in mine.text
    assert "assistant" not in mine.text
    for user in ("bob", None):
        page_of_user = await (await here.browser(user)).visit(f"{here.url}/payments")
        assert "Premium report" not in page_of_user.text


async def test_account_can_be_reconnected_only_by_its_user(here: AskingEnv) -> None:
    block, guest = here.begin(connect), await here.guest()
    await guest.connect((await block.link()).url)
    await block
    page = await guest.person.visit(f"{here.url}/connections")
    assert "ssistants that may use it" not in page.text
    sent = await guest.person.browser.post(page.leading("/reconnect"), data={"csrf": page.csrf})
    link = sent.headers["location"]
    assert (await guest.person.visit(link)).status == 200
    for user in ("bob", None):
        assert (await (await here.browser(user)).visit(link)).status == 403


async def test_home_of_application_mentions_no_tools(here: AskingEnv) -> None:
    page = await (await here.browser(None)).visit(here.url)
    assert (page.status, page.heading) == (200, f"Requests from {APPLICATION}")
    assert "/mcp" not in page.text
    assert (await (await here.browser()).visit(f"{here.url}/mcp")).status == 404


@pytest.mark.parametrize("url", ["", "login", "//evil.example", "javascript:alert(1)", "/a\n"])
def test_invalid_sign_in_url_is_refused(url: str) -> None:
    settings = Settings(url="http://127.0.0.1:8765", ring=RING, store="memory:", uid=0)
    with pytest.raises(ValueError, match="sign_in_url"):
        create_app(settings, who=lambda _: None, sign_in_url=url)
