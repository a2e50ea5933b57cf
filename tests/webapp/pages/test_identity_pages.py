"""The pages that identify a person: how to continue, and what never to do."""

from dataclasses import replace
from typing import Any, get_args
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.async_api import Browser, expect

from flows.elicitation.traits import PageName
from flows.elicitation.user_code import PAGE_WORDS
from tests.support.markup import Page
from tests.support.page_site import ORIGIN, Site, visit
from tests.support.page_views import CODE, HOSTILE, SIGN_IN, Shown, usual
from webapp.pages.renderer import Renderer, template_folder
from webapp.pages.views import Done, View
from webapp.pages.views_openers import (
    BeforeOpener,
    CodePage,
    Pair,
    Paired,
    PairUsed,
    SignedOut,
    SignInFailed,
    SignInFault,
    SomeoneElse,
)
from webapp.settings.brand import Brand

FAILED = SignInFailed(
    server="my tools",
    issuer="login.example.com",
    why="trouble",
    error_id="7f3a-91c2",
    sign_in=SIGN_IN,
)


@pytest.fixture
def before() -> BeforeOpener:
    return BeforeOpener(server="my tools", kind="account", why="Open it on that computer.")


@pytest.fixture
def code() -> CodePage:
    return usual(CodePage)


def _sent(page: Page) -> dict[str, str]:
    return {field["name"]: field["value"] for field in page.named("input")}


def _actions(page: Page) -> list[tuple[str, str]]:
    return [(form["method"], form["action"]) for form in page.named("form")]


def test_sign_in_page_names_asker_reason_and_destination(
    before: BeforeOpener, shown: Shown
) -> None:
    page = shown(replace(before, sign_in=SIGN_IN))
    text = page.main_text()
    assert page.text("h1") == "Sign in to see it"
    assert "my tools wants you to connect an account." in text
    assert "so that no one else can use this link" in text
    assert "Next: login.example.com" in text
    assert "my tools never sees your password" in text
    assert page.text("button") == "Sign in with login.example.com"
    assert _actions(page) == [("post", "/signin")]
    assert _sent(page) == {"csrf": "c5f1", "back": "/e/abc"}
    assert "If somebody sent you this link, don't continue." in text


def test_requesting_user_code_is_post_with_warning(before: BeforeOpener, shown: Shown) -> None:
    page = shown(replace(before, code=CODE))
    text = page.main_text()
    assert page.text("h1") == "my tools asks you for something"
    assert _actions(page) == [("post", "/e/abc/code")]
    assert page.text("button") == "Show the code"
    assert "Never give it to anyone who sent you this link" in text
    assert "A code protects less than a sign-in." in text
    assert "The operator of this server chose to use codes." in text
    assert page.named("a") == []


def test_page_without_sign_in_or_code_explains_and_has_no_buttons(
    before: BeforeOpener, shown: Shown
) -> None:
    page = shown(before)
    assert "Open it on that computer." in page.main_text()
    assert page.named("form") == page.named("a") == page.named("button") == []


@pytest.mark.parametrize("kind", get_args(PageName))
def test_every_kind_of_request_is_described(
    kind: PageName, before: BeforeOpener, code: CodePage, shown: Shown
) -> None:
    words = {"url": "open a page on another site", "secret": "enter something secret"}
    for view in (replace(before, kind=kind), replace(code, kind=kind)):
        text = shown(view).main_text()
        assert f"wants you to {words.get(kind, '')}" in text
        assert "wants you to ." not in text


def test_user_code_is_large_selectable_and_spelled_for_screen_readers(
    code: CodePage, shown: Shown
) -> None:
    page = shown(code)
    (characters,) = [field for field in page.named("p") if field.get("id") == "letters"]
    assert page.text("h1") == "Tell your assistant this code"
    assert characters["aria-hidden"] == "true"
    assert "BCDF-GHJK" in page.text("p")
    assert "B, C, D, F, G, H, J, K" in page.text("p")
    assert [button["data-copy"] for button in page.named("button")] == ["letters"]


def test_user_code_page_warns_against_sharing_code(code: CodePage, shown: Shown) -> None:
    text = shown(code).main_text()
    assert PAGE_WORDS in text
    assert "Only type it into a chat that you started." in text
    assert "Never give it to anyone who sent you this link." in text


def test_user_code_page_advances_automatically_and_manually(code: CodePage, shown: Shown) -> None:
    page = shown(code)
    (live,) = [field for field in page.named("p") if "data-live" in field]
    assert (live["role"], live["aria-live"]) == ("status", "polite")
    assert (live["data-live"], live["data-here"]) == ("/e/abc/live", "/e/abc")
    assert live["data-status"] == "opened"
    assert [(link["href"], link["class"]) for link in page.named("a")] == [("/e/abc", "button")]
    assert page.text("a") == "I've typed it"
    assert [span["data-left"] for span in page.named("span") if "data-left" in span] == ["270"]
    assert page.named("form") == []


def test_other_person_sees_signed_in_name_and_can_switch(shown: Shown) -> None:
    view = SomeoneElse(
        server="my tools",
        other="person",
        signed_in_as="octocat",
        sign_in=replace(SIGN_IN, switch=True),
    )
    page = shown(view)
    text = page.main_text()
    assert page.text("h1") == "This link belongs to someone else"
    assert "You are signed in as octocat, but another person asked for this." in text
    assert "Nothing was shared." in text
    assert "If somebody sent you this link, don't continue" in text
    assert page.text("button") == "Sign in as another person"
    assert _sent(page) == {"csrf": "c5f1", "back": "/e/abc", "switch": "1"}
    assert "on the computer where you asked" not in text


def test_page_for_other_person_has_no_primary_button(shown: Shown) -> None:
    view = SomeoneElse(server="my tools", other="person", sign_in=SIGN_IN)
    classes = [button["class"].split() for button in shown(view).named("button")]
    assert classes == [["button"]]


def test_page_for_other_person_without_sign_in_has_no_buttons(shown: Shown) -> None:
    page = shown(SomeoneElse(server="my tools", other="person"))
    assert "signed in" not in page.main_text()
    assert "on the computer where you asked" in page.main_text()
    assert page.named("form") == page.named("a") == []


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("refused", "You declined at login.example.com, or it refused."),
        ("trouble", "login.example.com did not answer"),
        ("unnamed", "lacks a value that this server needs to identify you"),
        ("mixed", "doesn't belong to a sign-in in this browser"),
    ],
)
def test_failed_sign_in_page_shows_reason_and_says_nothing_was_shared(
    why: SignInFault, words: str, shown: Shown
) -> None:
    page = shown(replace(FAILED, why=why))
    text = page.main_text()
    assert page.text("h1") == "You are not signed in"
    assert words in text
    assert "Nothing was shared." in text or "nothing is lost" in text
    assert page.text("button") == "Sign in with login.example.com"
    assert "7f3a-91c2" in page.text("code")


@pytest.mark.parametrize("contact", [None, "help@example.com"])
def test_sign_in_that_is_not_set_up_offers_no_retry_and_names_operator(
    contact: str | None,
) -> None:
    renderer = Renderer(folders=[template_folder()], brand=Brand(contact=contact))
    page = Page(renderer.render(replace(FAILED, why="not set up")))
    text = page.main_text()
    assert "The sign-in with login.example.com is not set up correctly" in text
    assert "Only the operator of this server can correct it" in text
    assert ("(help@example.com)" in text) is (contact is not None)
    assert page.named("button") == []
    assert "7f3a-91c2" in page.text("code")


def test_callback_in_other_browser_warns_about_sender(shown: Shown) -> None:
    mixed = shown(replace(FAILED, why="mixed")).main_text()
    refused = shown(replace(FAILED, why="refused")).main_text()
    assert "If somebody sent you this address, don't continue" in mixed
    assert "sent you" not in refused


def test_failed_sign_in_without_retry_refers_to_chat(shown: Shown) -> None:
    page = shown(replace(FAILED, sign_in=None, error_id=None))
    assert page.named("form") == page.named("code") == []
    assert "open the link in your chat once more" in page.main_text()


def test_signed_out_page_says_issuer_session_can_remain(shown: Shown) -> None:
    page = shown(SignedOut(server="my tools", issuer="login.example.com"))
    assert page.text("h1") == "You are signed out"
    assert "You may still be signed in at login.example.com" in page.main_text()
    assert "Accounts that you connected stay connected." in page.main_text()
    assert [link["href"] for link in page.named("a")] == ["/"]
    paired = shown(SignedOut(server="my tools", issuer=None))
    assert "still be signed in" not in paired.main_text()


def test_pairing_page_explains_effect_and_warns(shown: Shown) -> None:
    page = shown(Pair(server="my tools", action="/pair/abc", csrf="c5f1"))
    text = page.main_text()
    assert page.text("h1") == "Use this browser for my tools?"
    assert "This browser will act for the person who runs my tools" in text
    assert "Only continue if you opened this page yourself" in text
    assert "from your own terminal" in text
    assert _actions(page) == [("post", "/pair/abc")]
    assert _sent(page) == {"csrf": "c5f1"}
    assert page.text("button") == "Use this browser"


def test_paired_page_says_pairing_lasts_until_sign_out(shown: Shown) -> None:
    page = shown(Paired(server="my tools"))
    assert "until you sign out" in page.main_text()
    assert page.named("form") == []


def test_used_pairing_address_names_command(shown: Shown) -> None:
    page = shown(PairUsed(server="my tools"))
    assert page.text("h1") == "This address does not work any more"
    assert page.text("pre") == "elicit pair"
    assert "Nothing was changed." in page.main_text()


def _named(text: str) -> list[View]:
    button = replace(SIGN_IN, issuer=text)
    named: dict[str, Any] = {"server": text, "sign_in": button}
    return [
        BeforeOpener(**named, kind="payment", why=""),
        BeforeOpener(server=text, kind="payment", why="", code=CODE),
        SomeoneElse(**named, other="person", signed_in_as=text),
        *(
            SignInFailed(**named, issuer=text, why=why, error_id=None)
            for why in get_args(SignInFault)
        ),
        SignedOut(server=text, issuer=text),
        Pair(server=text, action="/pair/abc", csrf="c5f1"),
    ]


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_are_shortened_and_isolated(text: str, shown: Shown) -> None:
    for view in _named(text):
        page = shown(view)
        assert page.named("img") == page.named("b") == []
        assert [link["href"] for link in page.named("a")] in ([], ["/"])
        assert len(page.text("h1")) < 150
        assert len(page.text("button")) < 150
        assert len(page.text("title")) < 200
        assert len(page.text("main")) < 1800
        assert not {"\u202e", "\u2066", "\u200f"} & set(page.html)


def test_right_to_left_override_in_name_is_isolated(shown: Shown) -> None:
    view = SomeoneElse(server="my tools", other="person", signed_in_as="\u202emoc.evil")
    page = shown(view)
    assert "\ufffdmoc.evil" in page.text("strong")
    assert "\ufffdmoc.evil" in page.text("bdi")


@pytest.mark.asyncio(loop_scope="session")
async def test_sign_in_works_without_javascript_and_label_is_readable(
    before: BeforeOpener, pages: Renderer, browser: Browser
) -> None:
    site = Site(html=pages.render(replace(before, sign_in=replace(SIGN_IN, back="/e/a?b=1&c"))))
    async with visit(browser, site, java_script_enabled=False) as page:
        await page.goto(f"{ORIGIN}/e/abc")
        button = page.get_by_role("button")
        assert await button.inner_text() == "Sign in with login.example.com"
        async with page.expect_request(lambda request: request.method == "POST"):
            await button.click()
    method, path, sent = site.requests[-1]
    assert (method, path) == ("POST", "/signin")
    assert parse_qs(sent or "") == {"csrf": ["c5f1"], "back": ["/e/a?b=1&c"]}


@pytest.mark.asyncio(loop_scope="session")
async def test_user_code_page_advances_when_code_is_confirmed(
    code: CodePage, pages: Renderer, browser: Browser
) -> None:
    events = "data: opened\n\ndata: confirmed\n\n"
    site = Site(html=pages.render(code), events=events)
    async with visit(browser, site) as page:
        async with page.expect_event(
            "framenavigated", lambda frame: urlsplit(frame.url).path == "/e/abc"
        ):
            await page.goto(f"{ORIGIN}/e/abc/code")
            site.html = pages.render(Done(server="my tools"))
        await expect(page.get_by_role("heading", level=1)).to_have_text("Done")
    assert site.complaints == []


@pytest.mark.asyncio(loop_scope="session")
async def test_user_code_fits_on_single_line_and_can_be_copied(
    code: CodePage, pages: Renderer, browser: Browser
) -> None:
    site = Site(html=pages.render(code), events="retry: 60000\ndata: opened\n\n")
    options: dict[str, Any] = {
        "viewport": {"width": 320, "height": 640},
        "permissions": ["clipboard-read", "clipboard-write"],
    }
    async with visit(browser, site, **options) as page:
        await page.goto(f"{ORIGIN}/e/abc")
        characters = page.locator("#letters")
        await expect(characters).to_be_in_viewport(ratio=1)
        assert await characters.evaluate("it => it.scrollWidth <= it.clientWidth")
        await page.get_by_role("button", name="Copy the code").click()
        await expect(page.locator("#copied")).to_have_text("Copied")
        assert await page.evaluate("navigator.clipboard.readText()") == "BCDF-GHJK"
        await characters.click()
        assert await page.evaluate("getSelection().toString().trim()") == "BCDF-GHJK"


@pytest.mark.asyncio(loop_scope="session")
async def test_user_code_page_works_without_javascript(
    code: CodePage, pages: Renderer, browser: Browser
) -> None:
    site = Site(html=pages.render(code))
    async with visit(browser, site, java_script_enabled=False) as page:
        await page.goto(f"{ORIGIN}/e/abc/code")
        await expect(page.get_by_role("status").first).to_contain_text("continue here")
        await expect(page.locator("button:visible")).to_have_count(0)
        await page.get_by_role("link", name="I've typed it").click()
        await page.wait_for_url(f"{ORIGIN}/e/abc")
