"""A person connects an account, pays and types a secret in Chromium.

Each test also checks that no page violated its policy and that only the server and its sandbox
received requests.
"""

import logging
from datetime import timedelta

import pytest
from playwright.async_api import Browser, Locator, Page, expect

from tests.browser.chrome import PHONE, press, reads
from tests.browser.env import SERVER, ServerEnv
from tests.browser.visits import (
    NEW,
    REPOSITORIES,
    Way,
    approve,
    at_sandbox,
    connect,
    meeting,
    opened,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


OLD = Way(mode="legacy", size=PHONE, scheme="dark")
both_ways = pytest.mark.parametrize(
    "way", [OLD, NEW], ids=["2025-11-25-phone-dark", "2026-07-28-desktop-light"]
)
REPORT = "The premium report is yours; 9.00 EUR was paid."
PAYMENT_TIME = timedelta(minutes=30)


async def asks_nothing(env: ServerEnv, tool: str, *, mode: str) -> str:
    """Call the tool, check that no link was shown, and return the tool's result."""
    async with env.calling(tool, mode=mode) as call:
        text = await call.text()
        assert call.links.empty()
        return text


async def link_of(env: ServerEnv) -> str:
    """Return the link of the latest question, for another tab."""
    latest = (await env.elicitations())[-1]
    return env.service.links.of(latest, now=env.clock())


async def pay(page: Page) -> None:
    await press(page, "Pay with a test card")
    await reads(page, "Paid €9.00")


def fact(page: Page, name: str) -> Locator:
    return page.locator("div", has=page.get_by_text(name, exact=True)).locator("dd")


# Connecting an account.


@both_ways
async def test_account_is_connected_once_and_each_further_tool_asks_once(
    browser: Browser, way: Way
) -> None:
    async with meeting(browser, way) as (env, ann):
        async with env.calling("list_my_repositories", mode=way.mode) as call:
            page = await opened(call, ann)
            await reads(page, f"Let {SERVER} use your GitHub account?")
            main = page.get_by_role("main")
            host, next_host = env.url.partition("//")[2], env.sandbox_url.partition("//")[2]
            await expect(main).to_contain_text(
                f"You asked Claude to use list_my_repositories of {SERVER} ({host})"
            )
            await expect(main).to_contain_text("Sandbox: this is only practice.")
            await expect(main).to_contain_text("Read and write all your repositories")
            await expect(page.get_by_role("region", name="Next:")).to_contain_text(next_host)
            await expect(fact(page, "Time left")).to_contain_text("until")
            await expect(page.get_by_role("button", name="Decline")).to_be_visible()
            await press(page, "Continue")
            await reads(page, "Connect your Sandbox GitHub account?")
            assert not call.task.done()
            await approve(page)
            await expect(page.get_by_role("main")).to_contain_text("Octo Cat")
            assert (await call.text()).startswith(REPOSITORIES)
        text = await asks_nothing(env, "list_my_repositories", mode=way.mode)
        assert text.startswith(REPOSITORIES)
        async with env.calling("export_all", mode=way.mode) as call:
            page = await opened(call, ann)
            await reads(page, f"Let {SERVER} use octocat at GitHub?")
            main = page.get_by_role("main")
            await expect(main).to_contain_text("connected for list_my_repositories")
            await expect(main).to_contain_text("To copy your repositories into one archive.")
            await press(page, "Allow")
            await reads(page, "GitHub is connected")
            assert await call.text() == "Exported everything of octocat."
        text = await asks_nothing(env, "export_all", mode=way.mode)
        assert text == "Exported everything of octocat."


@both_ways
async def test_denial_at_provider_ends_call_and_stores_no_account(
    browser: Browser, way: Way
) -> None:
    async with meeting(browser, way) as (env, ann):
        async with env.calling("list_my_repositories", mode=way.mode) as call:
            page = await at_sandbox(call, ann)
            await press(page, "Deny")
            await reads(page, "You declined at GitHub")
            result = await call.result()
            assert result.is_error
            assert "ELICITATION_DENIED" in await call.text()
        async with env.calling("list_my_repositories", mode=way.mode) as call:
            page = await opened(call, ann)
            await reads(page, "use your GitHub account?")
            await press(page, "Decline")
            await reads(page, "You declined")
            assert "ELICITATION_DECLINED" in await call.text()


async def test_another_account_can_be_chosen_instead_of_offered_account(browser: Browser) -> None:
    async with meeting(browser, NEW) as (env, ann):
        await connect(env, ann, mode=NEW.mode)
        async with env.calling("export_all", mode=NEW.mode) as call:
            page = await opened(call, ann)
            await press(page, "Another account")
            await page.get_by_role("radio", name="Hubot").check()
            await approve(page)
            await expect(page.get_by_role("main")).to_contain_text("Hubot")
            assert await call.text() == "Exported everything of hubot."


# Paying.


@both_ways
async def test_declined_card_followed_by_good_card_pays_once(browser: Browser, way: Way) -> None:
    async with meeting(browser, way) as (env, ann):
        async with env.calling("buy_report", mode=way.mode) as call:
            page = await opened(call, ann)
            await reads(page, "Pay €9.00")
            main = page.get_by_role("main")
            await expect(main).to_contain_text("Test mode: no real money moves.")
            await expect(main).to_contain_text(f"of {SERVER} ({env.url.partition('//')[2]})")
            await expect(main.locator(".bill")).to_contain_text("Premium report")
            await expect(fact(page, "Who is paid")).to_contain_text("through Stripe (sandbox)")
            await expect(page.get_by_role("button", name="Decline")).to_be_visible()
            await press(page, "Continue to payment")
            await press(page, "Card that is declined")
            await expect(page.get_by_role("alert")).to_contain_text("The card was declined.")
            assert not call.task.done()
            await pay(page)
            assert await call.text() == REPORT
        async with env.calling("buy_report", mode=way.mode) as call:
            await reads(await opened(call, ann), "Pay €9.00")  # the first payment is used up


async def test_cancelled_checkout_ends_call_and_cannot_be_paid(
    browser: Browser,
) -> None:
    async with (
        meeting(browser, OLD) as (env, ann),
        env.calling("buy_report", mode=OLD.mode) as call,
    ):
        page = await at_sandbox(call, ann)
        checkout = page.url
        await press(page, "Cancel")
        await reads(page, "You did not pay")
        assert "ELICITATION_DENIED" in await call.text()
        await env.pass_time(timedelta())
        await page.goto(checkout)
        await reads(page, "This checkout is over")


async def test_late_bank_transfer_lets_tool_continue(browser: Browser) -> None:
    async with meeting(browser) as (env, ann), env.calling("buy_report", mode=NEW.mode) as call:
        page = await at_sandbox(call, ann)
        await press(page, "Pay by bank, arrives later")
        await reads(page, "The pretended transfer is under way")
        checkout = page.url
        await page.get_by_role("link", name="Go back now").click()
        await reads(page, "Your payment is on its way")
        assert not call.task.done()
        await page.goto(checkout)
        await press(page, "Let the transfer arrive")
        await reads(page, "Paid €9.00")
        assert await call.text() == REPORT


async def test_failed_bank_transfer_ends_call_without_payment(browser: Browser) -> None:
    async with (
        meeting(browser, OLD) as (env, ann),
        env.calling("buy_report", mode=OLD.mode) as call,
    ):
        page = await at_sandbox(call, ann)
        await press(page, "Pay by bank, arrives later")
        await press(page, "Let the transfer fail")
        await reads(page, "The payment did not arrive")
        assert "ELICITATION_FAILED" in await call.text()


@both_ways
async def test_payment_after_call_timed_out_serves_next_call(browser: Browser, way: Way) -> None:
    async with meeting(browser, way) as (env, ann):
        async with env.calling("buy_report", mode=way.mode) as call:
            page = await at_sandbox(call, ann)
            await press(page, "Pay by bank, arrives later")
            await reads(page, "The pretended transfer is under way")
            await env.pass_time(PAYMENT_TIME)
            text = await call.text()
            assert "ELICITATION_TIMEOUT" in text
            assert "a payment is on its way" in text
        other = await ann.page()
        await other.goto(await link_of(env))
        await reads(other, "Your payment is on its way")
        await expect(other.get_by_role("main")).to_contain_text("you don't need to pay again")
        await press(page, "Let the transfer arrive")
        await reads(page, "Done. Ask your assistant to continue")
        await expect(page.get_by_role("main")).to_contain_text("ask it to continue")
        assert await asks_nothing(env, "buy_report", mode=way.mode) == REPORT


async def test_payment_after_client_cancelled_serves_next_call(
    browser: Browser,
) -> None:
    async with meeting(browser) as (env, ann):
        async with env.calling("buy_report", mode=NEW.mode, action="cancel") as call:
            assert "ELICITATION_CANCELLED" in await call.text()
            page = await at_sandbox(call, ann)
            await pay(page)
            await expect(page.get_by_role("main")).to_contain_text("ask it to continue")
        assert await asks_nothing(env, "buy_report", mode=NEW.mode) == REPORT


@both_ways
async def test_waiting_page_moves_on_when_webhook_arrives_without_browser_return(
    browser: Browser, way: Way
) -> None:
    async with (
        meeting(browser, way) as (env, ann),
        env.calling("buy_report", mode=way.mode) as call,
    ):
        page = await at_sandbox(call, ann)
        waiting = await ann.page()
        await waiting.goto(await link_of(env))
        await expect(waiting.get_by_role("status")).to_contain_text("moves on by itself")
        # Press the button, then close the window before it follows the redirect.
        form = page.locator("form", has=page.get_by_role("button", name="Pay with a test card"))
        pressed = await ann.context.request.post(
            env.sandbox_url + (await form.get_attribute("action") or ""),
            form={"csrf": await form.locator("input").get_attribute("value") or ""},
            max_redirects=0,
        )
        assert pressed.status == 303
        await reads(waiting, "Paid €9.00")
        assert await call.text() == REPORT


async def test_webhook_after_person_returned_changes_nothing(
    browser: Browser,
) -> None:
    async with meeting(browser) as (env, ann), env.calling("buy_report", mode=NEW.mode) as call:
        env.post.hold()
        page = await at_sandbox(call, ann)
        await pay(page)
        assert await call.text() == REPORT
        before = await env.elicitations()
        assert len(await env.post.arrive()) == 1
        assert await env.elicitations() == before
        await page.reload()
        await reads(page, "Paid €9.00")


# Typing a secret.


SECRET = "kestrel-harbour-42-violet"


@both_ways
async def test_secret_reaches_only_the_tool(
    browser: Browser, way: Way, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        meeting(browser, way) as (env, ann),
        env.calling("use_key", mode=way.mode) as call,
    ):
        page = await opened(call, ann)
        await reads(page, "Enter your key")
        await expect(fact(page, "Where it goes")).to_contain_text("Your assistant doesn't see it")
        field = page.get_by_role("textbox", name="Key")
        await field.fill(SECRET)
        await expect(field).to_have_attribute("type", "password")
        await page.get_by_role("button", name="Show").click()
        await expect(field).to_have_attribute("type", "text")
        assert SECRET not in await page.content()
        await press(page, "Save")
        await reads(page, "Saved")
        assert await call.text() == f"The station answers to a key of {len(SECRET)} letters."
        assert SECRET not in await page.content()
        await page.go_back()
        await reads(page, "Saved")
        await expect(page.get_by_role("textbox")).to_have_count(0)
        assert not any(SECRET in url for url in ann.urls)
        assert env.tape.places_of(SECRET) == ["POST heard"]
        assert caplog.records
        assert SECRET not in caplog.text


async def test_invalid_secret_can_be_corrected_and_named_secret_is_not_asked_again(
    browser: Browser,
) -> None:
    async with meeting(browser, OLD) as (env, ann):
        async with env.calling("add_station", mode=OLD.mode) as call:
            page = await opened(call, ann)
            key = page.get_by_role("textbox", name="Key")
            await page.get_by_role("textbox", name="Station").fill("north")
            await key.fill("short-one")
            await press(page, "Save")
            alert = page.get_by_role("alert")
            await expect(alert).to_contain_text("Secret values weren't saved here.")
            assert "short-one" not in await page.content()
            await alert.get_by_role("link", name="Key").click()
            await expect(key).to_be_focused()
            await expect(key).to_have_value("")
            assert not call.task.done()
            await page.get_by_role("textbox", name="Station").fill("north")
            await key.fill(SECRET)
            await press(page, "Save")
            await reads(page, "Saved")
            assert (
                await call.text() == f"Station north was added with a key of {len(SECRET)} letters."
            )
        assert (await asks_nothing(env, "add_station", mode=OLD.mode)).startswith("Station north")


async def test_secret_question_can_be_declined(browser: Browser) -> None:
    async with (
        meeting(browser, NEW) as (env, ann),
        env.calling("use_key", mode=NEW.mode) as call,
    ):
        page = await opened(call, ann)
        await page.get_by_role("textbox").fill(SECRET)
        await press(page, "Decline")
        await reads(page, "You declined")
        assert "ELICITATION_DECLINED" in await call.text()
        assert env.tape.places_of(SECRET) == []


# Unusual use of pages.


async def test_account_payment_and_secret_work_without_javascript(browser: Browser) -> None:
    async with meeting(browser, OLD, java_script_enabled=False) as (env, ann):
        await connect(env, ann, mode=OLD.mode)
        async with env.calling("buy_report", mode=OLD.mode) as call:
            page = await at_sandbox(call, ann)
            waiting = await ann.page()
            await waiting.goto(await link_of(env))
            await pay(page)
            await waiting.get_by_role("link", name="Check now").click()
            await reads(waiting, "Paid €9.00")
            assert await call.text() == REPORT
        async with env.calling("use_key", mode=OLD.mode) as call:
            page = await opened(call, ann)
            await page.get_by_role("textbox").fill(SECRET)
            await press(page, "Save")
            await reads(page, "Saved")
            assert not (await call.result()).is_error


@pytest.mark.parametrize("java_script_enabled", [True, False], ids=["with js", "without js"])
async def test_double_click_acts_once(browser: Browser, java_script_enabled: bool) -> None:
    async with meeting(browser, java_script_enabled=java_script_enabled) as (env, ann):
        async with env.calling("list_my_repositories", mode=NEW.mode) as call:
            page = await opened(call, ann)
            await page.get_by_role("button", name="Continue").dblclick()
            await approve(page)
            assert (await call.text()).startswith(REPOSITORIES)
        async with env.calling("buy_report", mode=NEW.mode) as call:
            page = await opened(call, ann)
            await page.get_by_role("button", name="Continue").dblclick()
            await pay(page)
            assert await call.text() == REPORT
        async with env.calling("use_key", mode=NEW.mode) as call:
            page = await opened(call, ann)
            await page.get_by_role("textbox").fill(SECRET)
            await page.get_by_role("button", name="Save").dblclick()
            await reads(page, "Saved")
            assert not (await call.result()).is_error


async def test_browser_back_after_end_repeats_nothing(browser: Browser) -> None:
    async with meeting(browser) as (env, ann):
        async with env.calling("list_my_repositories", mode=NEW.mode) as call:
            page = await at_sandbox(call, ann)
            await approve(page)
            await call.result()
        settled = await env.elicitations()
        await page.go_back()
        await approve(page)
        await page.go_back()
        await page.go_back()
        await reads(page, "GitHub is connected")
        assert await env.elicitations() == settled
        async with env.calling("buy_report", mode=NEW.mode) as call:
            page = await at_sandbox(call, ann)
            await pay(page)
            await call.result()
        await page.go_back()
        await reads(page, "This is paid")
        await page.get_by_role("link", name="Back to").click()
        await reads(page, "Paid €9.00")


async def test_later_of_two_tabs_connects_and_first_tab_says_so(browser: Browser) -> None:
    async with (
        meeting(browser) as (env, ann),
        env.calling("list_my_repositories", mode=NEW.mode) as call,
    ):
        first = await at_sandbox(call, ann)
        second = await ann.page()
        await second.goto(await link_of(env))
        await press(second, "again")
        await reads(second, "Connect your Sandbox GitHub account?")
        await press(first, "Approve")
        await expect(first.get_by_role("main")).to_contain_text("in another tab")
        assert not call.task.done()
        await approve(second)
        assert (await call.text()).startswith(REPOSITORIES)
        await first.get_by_role("link", name="See the current state").click()
        await reads(first, "GitHub is connected")


async def test_two_tabs_lead_to_same_checkout_and_charge_once(browser: Browser) -> None:
    async with meeting(browser) as (env, ann), env.calling("buy_report", mode=NEW.mode) as call:
        first = await at_sandbox(call, ann)
        second = await ann.page()
        await second.goto(await link_of(env))
        await press(second, "again")
        await reads(second, "Pretend to pay")
        assert second.url == first.url
        await pay(second)
        assert await call.text() == REPORT
        await press(first, "Pay with a test card")
        await reads(first, "This is paid")
        await expect(first.get_by_role("main")).to_contain_text("paid once")
        await first.get_by_role("link", name="Back to").click()
        await reads(first, "Paid €9.00")
