"""The pages for connecting an account, and the facts that the person has to be able to trust."""

import re
from dataclasses import fields, replace
from typing import Any

import pytest

from flows.elicitation.traits import PageName
from flows.providers import github
from tests.support.page_views import HOSTILE, USUAL, Shown, usual
from webapp.pages.builder import scopes_shown
from webapp.pages.renderer import Renderer
from webapp.pages.views import (
    AccountName,
    Choice,
    DoneAccount,
    Ended,
    Finishing,
    Late,
    ProviderTrouble,
    Scope,
    StartAccount,
    SwitchBack,
    ToolName,
    UseAccount,
    Used,
)


@pytest.fixture
def start() -> StartAccount:
    return usual(StartAccount)


@pytest.fixture
def use() -> UseAccount:
    return usual(UseAccount)


def test_connect_page_names_asker_scopes_destination_and_decline(
    start: StartAccount, shown: Shown
) -> None:
    page = shown(start)
    text = page.main_text()
    assert page.text("h1") == "Let my tools use your GitHub account?"
    assert "to use Book a table of my tools (tools.example.com), 12 seconds ago." in text
    assert page.text("blockquote") == start.reason
    assert page.text("li").startswith("Can change: Read and write your repositories")
    assert "Next: https://github.com" in text
    assert "Your assistant never sees your password or the access key that GitHub issues." in text
    assert "4 minutes, until 21:34 UTC" in text
    assert page.actions() == ["/e/abc/go", "/e/abc/decline"]
    assert page.text("button") == "Continue to GitHubDecline"


def test_permission_is_shown_in_words_with_raw_name(start: StartAccount, shown: Shown) -> None:
    asked = (Scope(words="Read your gists", raw="gist"), Scope(words="new:one", raw="new:one"))
    page = shown(replace(start, scopes=asked))
    assert page.text("li") == "Read your gistsnew:one"
    assert page.text("details").strip().startswith("Technical names")
    assert len(page.named("li")) == 2


def test_page_without_permissions_says_only_identity(start: StartAccount, shown: Shown) -> None:
    assert shown(replace(start, scopes=())).text("li") == "See who you are, and nothing else"


def test_all_permissions_are_shown(start: StartAccount, shown: Shown) -> None:
    many = tuple(Scope(words=f"Do thing {n}", raw=f"t:{n}") for n in range(40))
    words = shown(replace(start, scopes=many)).text("li")
    assert all(scope.words in words for scope in many)
    assert all(scope.raw in shown(replace(start, scopes=many)).text("details") for scope in many)


def test_question_stays_readable_next_to_names_of_200_characters(
    start: StartAccount, shown: Shown
) -> None:
    page = shown(replace(start, server="S" * 200, tool_title="T" * 200, client_title="C" * 200))
    assert page.text("h1") == f"Let {'S' * 79}… use your GitHub account?"
    assert "T" * 200 in page.main_text()
    assert "C" * 79 + "…" in page.main_text()


def test_writes_and_deletions_are_marked_without_colour(start: StartAccount, shown: Shown) -> None:
    asked = scopes_shown(github, ("read:org", "repo", "delete_repo", "unheard:of"))
    page = shown(replace(start, scopes=asked))
    assert [each["class"] for each in page.named("li")] == ["delete", "write", "write", "read"]
    assert "Delete repositories Can delete" in page.main_text()
    assert "Can change: Read and write all your repositories" in page.main_text()
    assert "Can change: unheard:of" in page.main_text()
    assert "Can change: See" not in page.main_text()


def test_page_without_reason_has_no_quote(start: StartAccount, shown: Shown) -> None:
    assert shown(replace(start, reason=None)).named("blockquote") == []


def test_long_reason_is_shown_completely(start: StartAccount, shown: Shown) -> None:
    # finding: XS3
    reason = "because " * 62 + "end"
    page = shown(replace(start, reason=reason))
    assert page.text("blockquote") == reason
    assert "Decline" in page.text("button")


@pytest.mark.parametrize("view", [StartAccount, UseAccount, DoneAccount])
def test_sandbox_is_marked_and_real_provider_is_not(
    view: type[StartAccount] | type[UseAccount] | type[DoneAccount], shown: Shown
) -> None:
    practice = usual(view)
    page = shown(practice)
    assert "Sandbox: this is only practice." in page.text("strong")
    assert {"class": "loud"} in page.named("p")
    real = shown(replace(practice, is_sandbox=False))
    assert "Sandbox" not in real.text()


def test_page_for_another_tool_names_account_and_its_tools(use: UseAccount, shown: Shown) -> None:
    assert "Book a table acts as you at GitHub." in shown(use).main_text()
    page = shown(replace(use, tool="export_all", tool_title=None))
    text = page.main_text()
    assert page.text("h1") == "Let my tools use octocat at GitHub?"
    assert "Mona Lisa Octocat" in text
    assert "GitHub, connected for List my repositories and count_stars" in text
    assert "Read and write your repositories" in text
    assert "export_all acts as you at GitHub." in text
    assert page.actions() == [
        "/e/abc/allow",
        "/e/abc/other",
        "/e/abc/decline",
    ]
    assert page.text("button") == "AllowAnother accountDecline"


def _choice(use: UseAccount, **changes: Any) -> Choice:
    (choice,) = use.choices
    changed: Choice = replace(choice, **changes)
    return changed


def test_several_accounts_are_shown_with_separate_buttons(use: UseAccount, shown: Shown) -> None:
    other = Choice(
        person=AccountName(label="hubber"),
        connected_for=(ToolName(tool="a", tool_title=None),),
        scopes=(Scope(words="Delete repositories", raw="delete_repo"),),
        allow_action="/e/abc/allow?account=h",
    )
    page = shown(replace(use, choices=(*use.choices, other)))
    assert page.text("h1") == "Let my tools use your GitHub account?"
    assert page.actions() == [
        "/e/abc/allow",
        "/e/abc/allow?account=h",
        "/e/abc/other",
        "/e/abc/decline",
    ]
    assert page.text("button") == "Allow octocatAllow hubberAnother accountDecline"


def test_another_account_button_sends_switch_field(use: UseAccount, shown: Shown) -> None:
    page = shown(use)
    switches = [one["value"] for one in page.named("input") if one["name"] == "switch"]
    assert switches == ["1"]
    assert len([one for one in page.named("input") if one["name"] == "csrf"]) == 3


def test_account_requested_by_name_offers_no_other(use: UseAccount, shown: Shown) -> None:
    page = shown(replace(use, other_action=None))
    assert page.text("button") == "AllowDecline"


def test_different_account_than_before_is_marked_with_switch_back_button(shown: Shown) -> None:
    done = usual(DoneAccount)
    page = shown(replace(done, is_sandbox=False))
    assert page.text("strong").endswith("You connected another account than before.")
    assert "Until now, tools used hubber." in page.main_text()
    assert page.actions() == ["/e/abc/allow?account=h"]
    assert page.text("button") == "Use hubber again"


def test_account_switched_back_is_shown_without_button(shown: Shown) -> None:
    done = usual(DoneAccount)
    back = SwitchBack(former=AccountName(label="hubber"), is_done=True)
    page = shown(replace(done, switch_back=back))
    assert "From the next call on, tools use hubber again." in page.main_text()
    assert page.named("form") == []
    lapsed = shown(replace(done, switch_back=replace(back, is_done=False)))
    assert "Until now, tools used hubber." in lapsed.main_text()
    assert lapsed.named("form") == []


@pytest.mark.parametrize(
    ("tools", "words"),
    [((), "connected"), (("a",), "connected for a"), (("a", "b", "c"), "for a, b and c")],
)
def test_tools_are_listed_in_natural_language(
    tools: tuple[str, ...], words: str, use: UseAccount, shown: Shown
) -> None:
    named = tuple(ToolName(tool=tool, tool_title=None) for tool in tools)
    text = shown(replace(use, choices=(_choice(use, connected_for=named),))).main_text()
    assert f"{words} What it may do" in text


def test_done_page_names_account_and_next_step(shown: Shown) -> None:
    page = shown(usual(DoneAccount))
    text = page.main_text()
    assert page.text("h1") == "GitHub is connected"
    assert "Connected as M Mona Lisa Octocat" in text
    assert "octocat" in text
    assert "Go back to your assistant; you can close this page." in text


@pytest.mark.parametrize(
    ("person", "initial"),
    [
        (AccountName(label="octocat"), "O"),
        (AccountName(label="octocat", name="éva"), "É"),
        (AccountName(label="x", name="\U0001f680 moon"), "M"),
        (AccountName(label="x", name="\u05e9\u05dc\u05d5\u05dd"), "\u05e9"),
        (AccountName(label="x", name="ßmann"), "S"),
        (AccountName(label="\U0001f680"), None),
        (AccountName(label=""), None),
    ],
)
def test_person_on_done_page_has_initial_and_no_picture(
    person: AccountName, initial: str | None, shown: Shown
) -> None:
    view = replace(usual(DoneAccount), person=person)
    page = shown(view)
    characters = [span for span in page.named("span") if span.get("class") == "letter"]
    assert bool(characters) == (initial is not None)
    assert all(span["aria-hidden"] == "true" for span in characters)
    if initial:
        assert f"Connected as {initial} " in page.main_text()
    assert page.named("img") == []
    assert "picture" not in {field.name for field in fields(AccountName)}


def test_finishing_page_shows_wait_and_works_without_javascript(shown: Shown) -> None:
    page = shown(usual(Finishing))
    (live,) = [element for element in page.named("p") if "data-live" in element]
    assert page.text("h1") == "Finishing…"
    assert "An answer from GitHub" in page.main_text()
    assert [e["data-left"] for e in page.named("span") if "data-left" in e] == ["270"]
    assert (live["aria-live"], live["data-live"]) == ("polite", "/e/abc/live")
    assert (live["data-here"], live["data-status"]) == ("/e/abc", "opened")
    assert [link["href"] for link in page.named("a")] == ["/e/abc"]
    assert page.named("form") == []


def test_decline_at_provider_names_provider_and_says_nothing_was_shared(shown: Shown) -> None:
    view = Ended(server="my tools", ending="denied", kind="account", provider="GitHub")
    page = shown(view)
    assert page.text("h1") == "You declined at GitHub"
    assert "Nothing was shared with your assistant." in page.text("p")
    assert "charge" not in page.text()


def test_failed_exchange_page_says_how_to_go_on_and_names_page_for_removal(
    shown: Shown,
) -> None:
    view = Ended(
        server="my tools",
        ending="failed",
        kind="account",
        provider="GitHub",
        remove_at="https://github.com/settings/applications",
    )
    page = shown(view)
    text = page.main_text()
    assert page.named("form") == []
    assert "ask your assistant for the same thing" in text
    assert "If GitHub shows my tools among your connected apps" in text
    assert "(https://github.com/settings/applications), remove it there." in text
    assert [link["href"] for link in page.named("a")] == ["/connections"]
    unknown = shown(replace(view, remove_at=None))
    assert "among your connected apps, remove it there." in unknown.main_text()


def test_used_callback_page_links_to_current_page(shown: Shown) -> None:
    view = Used(server="my tools", provider="GitHub", here_url="/e/abc")
    page = shown(view)
    assert "The answer from GitHub has already arrived" in page.main_text()
    assert [link["href"] for link in page.named("a")] == ["/e/abc"]


def test_silent_provider_page_offers_retry_and_error_id(shown: Shown) -> None:
    view = ProviderTrouble(
        server="my tools", provider="GitHub", error_id="7f3a", again_action="/e/abc", csrf="c5f1"
    )
    page = shown(view)
    assert page.text("h1") == "GitHub did not answer"
    assert "nothing is lost" in page.main_text()
    assert "7f3a" in page.text("code")
    assert page.actions() == ["/e/abc"]
    by_link = shown(replace(view, again_action=None, again_url="/e/abc"))
    assert (len(by_link.named("form")), len(by_link.named("a"))) == (0, 1)
    nowhere = shown(replace(view, again_action=None))
    assert "it gives you a new link" in nowhere.main_text()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("account", "you don't need to connect it again"),
        ("payment", "you will not be charged again"),
        ("url", "you will not be asked or charged again"),
    ],
)
def test_late_page_names_kind_of_answer(kind: PageName, words: str, shown: Shown) -> None:
    text = shown(Late(server="my tools", kind=kind)).main_text()
    assert "Your assistant is no longer waiting: ask it to continue. Nothing is lost" in text
    assert words in text


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_names_do_not_change_buttons_or_own_text(
    text: str, start: StartAccount, use: UseAccount, shown: Shown
) -> None:
    named: dict[str, Any] = {"server": text, "tool": text, "provider": text}
    connecting = shown(replace(start, **named, scopes=(Scope(words=text, raw=text),)))
    choice = _choice(use, person=AccountName(label=text, name=text))
    allowing = shown(replace(use, **named, choices=(choice,)))
    for page, button in ((connecting, "Continue to "), (allowing, "Allow")):
        assert page.named("a") == page.named("img") == []
        assert len(page.text("h1")) < 300
        assert page.text("button").startswith(button)
        assert page.text("button").endswith("Decline")


def test_text_of_button_is_single_element(pages: Renderer) -> None:
    """Several elements in a button would be laid out without the spaces between them."""
    for view in (DoneAccount, UseAccount, StartAccount):
        html = pages.render(usual(view))
        for words in re.findall(r"<button[^>]*>(.*?)</button>", html, re.DOTALL):
            parts = re.sub(r"<span>.*</span>", "", words.strip(), flags=re.DOTALL)
            assert "<" not in parts, words


def test_each_offered_account_lists_all_its_permissions(use: UseAccount, shown: Shown) -> None:
    other = _choice(use, scopes=(Scope(words="Delete repositories", raw="delete_repo"),))
    text = shown(replace(use, choices=(*use.choices, other))).main_text()
    assert "Read and write your repositories" in text
    assert "Delete repositories" in text


def test_late_page_names_connected_account(shown: Shown) -> None:
    usual = {f.name: USUAL[f.name] for f in fields(DoneAccount)}
    page = shown(DoneAccount(**{**usual, "is_late": True}))
    assert page.text("h1") == "Done. Ask your assistant to continue"
    for words in ("Mona Lisa Octocat", "another account than before", "Use hubber again"):
        assert words in page.main_text()


def test_done_page_names_permissions_not_granted(shown: Shown) -> None:
    usual = {f.name: USUAL[f.name] for f in fields(DoneAccount)}
    assert "Make gists" in shown(DoneAccount(**usual)).main_text()


def test_requested_account_is_named(shown: Shown) -> None:
    usual = {f.name: USUAL[f.name] for f in fields(StartAccount)}
    page = shown(StartAccount(**{**usual, "account": "octocat"}))
    assert "octocat, and no other" in page.main_text()


def test_address_of_a_tenant_is_typed_before_the_buttons(shown: Shown) -> None:
    page = shown(usual(StartAccount, tenant_label="Your shop's address"))
    html = page.html
    assert html.index('name="tenant"') < html.index('class="actions stay"')
    button = next(one for one in page.named("button") if "primary" in (one["class"] or ""))
    assert button["form"] == "answer"
