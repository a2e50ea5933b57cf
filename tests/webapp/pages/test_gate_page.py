"""The approval page: the page says what an approval covers, and never widens an approval."""

from dataclasses import replace

import pytest

from flows.elicitation.tool_call import DescribedTool
from flows.shown import arguments_of
from tests.support.page_views import Shown, usual
from webapp.pages.renderer import Renderer
from webapp.pages.views_forms import Decide, InboxPage, StartConfirm


@pytest.fixture
def view() -> StartConfirm:
    return usual(StartConfirm)


def test_approval_page_says_nothing_has_run_and_how_long_approval_lasts(
    shown: Shown, view: StartConfirm
) -> None:
    # parity: T1
    words = shown(view).main_text()
    assert "to run Book a table (book_a_table) of my tools (tools.example.com)." in words
    assert "It has not started." in words
    assert "The same call from this assistant isn't asked again for 15 minutes." in words
    assert "<bdi>guests</bdi></dt><dd><bdi>4</bdi>" in shown(view).html


def test_approval_checkboxes_are_unchecked(shown: Shown, view: StartConfirm) -> None:
    html = shown(view).html
    assert html.count('type="checkbox"') == 2
    assert "checked" not in html
    words = shown(view).main_text()
    assert "Approve it for my other assistants too" in words
    assert "Don't ask again for this tool, for one hour" in words
    assert "with any values" in words


def test_approval_page_names_assistant_and_its_verification(
    shown: Shown, view: StartConfirm
) -> None:
    # finding: S11
    words = shown(view).main_text()
    proven = (
        "Claude Desktop (https://assistant.example/client), and no other unless you allow it above."
    )
    assert f"Which assistant{proven} Verified by its sign-in." in words
    by_name = shown(replace(view, client_id=None)).main_text()
    assert "Which assistantClaude Desktop, and no other unless you allow it above." in by_name
    assert "This is its own name, not verified." in by_name
    nameless = shown(replace(view, client_id=None, client=None, client_title=None)).main_text()
    assert "Which assistantan unnamed assistant, and no other" in nameless
    assert "Which assistant" not in shown(replace(view, can_be_stored=False)).main_text()


def test_approval_which_cannot_be_stored_has_no_checkboxes(
    shown: Shown, view: StartConfirm
) -> None:
    once = replace(view, can_be_stored=False)
    for asked in (once, replace(once, is_gate=False)):
        assert "checkbox" not in shown(asked).html
        assert "15 minutes" not in shown(asked).main_text()


@pytest.mark.parametrize(
    "text",
    ["ls" + " " * 420 + "; rm -rf ~", "x" * 20_000 + "end", "a\n\n\n\n\n\n\n\n\n\n\n\n\n\n\nb"],
)
def test_argument_value_is_shown_completely(pages: Renderer, view: StartConfirm, text: str) -> None:
    # finding: S8
    # parity: T2
    html = pages.render(replace(view, arguments=arguments_of({"command": text})))
    assert f"<dt><bdi>command</bdi></dt><dd><bdi>{text}</bdi></dd>" in html


def test_every_argument_is_shown(pages: Renderer, view: StartConfirm) -> None:
    # finding: S8
    given = {f"name{number}": number for number in range(120)}
    shown = arguments_of(given)
    assert [(one.name, one.value) for one in shown] == [(n, str(v)) for n, v in given.items()]
    html = pages.render(replace(view, arguments=shown))
    assert "<dt><bdi>name119</bdi></dt><dd><bdi>119</bdi></dd>" in html


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("yes", '"yes"'),
        (True, "yes"),
        ("5", '"5"'),
        (5, "5"),
        (None, "nothing"),
        (["a, b"], '["a, b"]'),
        ("a\u202eb\u200b", '"a\\u202eb\\u200b"'),
        ("a" + "\u0301" * 9, '"a' + "\\u0301" * 9 + '"'),
        (" ls", '" ls"'),
        ("alice\u3164", '"alice\\u3164"'),
        ("al\u034fice", '"al\\u034fice"'),
        ("\u2800", '"\\u2800"'),
        ("alice\ufe00\U000e0101", '"alice\\ufe00\\udb40\\udd01"'),
    ],
)
def test_different_values_never_look_alike(value: object, words: str) -> None:
    # finding: S8
    (shown,) = arguments_of({"a": value})
    assert shown.value == words


# finding: XP3
def test_approval_of_destructive_tool_warns_once_and_loudly(
    shown: Shown, view: StartConfirm
) -> None:
    page = shown(view)
    assert page.text("h1") == "Book a table?"
    assert page.main_text().count("It may not be possible to undo this.") == 1
    assert page.text("blockquote") == "Book a table at a restaurant."
    (button,) = [each for each in page.named("button") if each.get("form") == "answer"]
    assert button["class"] == "button danger"
    assert "Approve: book a table" in page.text("button")


def test_approval_of_other_tool_has_no_warning(shown: Shown, view: StartConfirm) -> None:
    for described in (None, DescribedTool(name="book_a_table")):
        page = shown(replace(view, described=described))
        assert "undo" not in page.main_text()
        (button,) = [each for each in page.named("button") if each.get("form") == "answer"]
        assert button["class"] == "button primary"


def test_long_question_is_quoted_and_not_a_heading(shown: Shown, view: StartConfirm) -> None:
    page = shown(replace(view, question=None, is_gate=False, described=None))
    assert page.text("h1") == "Approve this for my tools?"
    assert page.text("blockquote") == view.message


# finding: XP3
def test_approver_reads_question_description_and_warning(shown: Shown) -> None:
    for page in (shown(usual(Decide)), shown(usual(InboxPage))):
        assert "Pay it back?" in page.main_text()
        assert "Refund an order (refund)" in page.main_text()
        assert "Book a table at a restaurant." in page.text("blockquote")
        assert "for the model" not in page.main_text()
        assert "It may not be possible to undo this." in page.main_text()
        assert "with Claude Desktop" in page.main_text()
    assert shown(usual(Decide)).text("h1") == "Pay it back?"
