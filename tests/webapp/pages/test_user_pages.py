"""Pages for an application's own user, who has no assistant and no chat."""

import re
from dataclasses import replace

import pytest

from flows.elicitation.user_code import USERS_PAGE_WORDS
from tests.support.page_views import VIEWS, WAITING, Shown, usual
from webapp.pages.renderer import Renderer
from webapp.pages.views import StartUrl, View
from webapp.pages.views_openers import (
    BeforeOpener,
    Closed,
    CodePage,
    Pair,
    Paired,
    PairUsed,
    SignedOut,
    SignInFailed,
    SomeoneElse,
)
from webapp.pages.views_own import Home
from webapp.routes.answers import Answers

# Pages that never show a user's question: sign-in at this server, and pairing a browser with it.
OTHERS = (Home, Pair, Paired, PairUsed, SignInFailed, SignedOut, Closed)
AS_FOR_USERS = {
    "for_user": True,
    "is_gate": False,
    "can_be_stored": False,
    "is_by_model": False,
    "sign_in": None,
    "words": USERS_PAGE_WORDS,
    "why": "It works only for the person who asked.",
    "entry": replace(WAITING, client=None, client_id=None),
    "lists": (),
}


@pytest.mark.parametrize("view", [view for view in VIEWS if view not in OTHERS])
@pytest.mark.parametrize("changes", [{}, {"is_late": True}, {"code": None, "form": None}])
def test_page_for_user_does_not_mention_assistant(
    view: type[View], changes: dict[str, object], shown: Shown
) -> None:
    if "form" in changes and "Start" in view.__name__:
        changes = {}
    words = shown(usual(view, **{**AS_FOR_USERS, **changes})).text().lower()
    assert not re.search(r"\bassistants?\b|\bchat\b|\bmodel\b", words)


def test_page_for_user_names_application_as_asker(shown: Shown) -> None:
    words = shown(usual(StartUrl, for_user=True)).text()
    assert "You started something at " in words
    assert "book_a_table" not in words


def test_page_for_user_links_to_sign_in_of_application(shown: Shown) -> None:
    for page in (
        shown(usual(BeforeOpener, for_user=True, sign_in=None, code=None)),
        shown(usual(SomeoneElse, for_user=True, sign_in=None)),
    ):
        assert {"https://shop.example/login"} <= {a.get("href") for a in page.named("a")}


@pytest.mark.parametrize(
    ("has_tools", "for_user", "words"),
    [
        (True, False, "Tell your assistant this code"),
        (True, True, "Type this code where you asked"),
        (False, False, "Type this code where you asked"),
        (False, True, "Type this code where you asked"),
    ],
)
def test_each_page_of_a_server_without_tools_is_for_a_user(
    pages: Renderer, *, has_tools: bool, for_user: bool, words: str
) -> None:
    answers = Answers(pages=pages, server="my tools", has_tools=has_tools)
    page = answers.page(usual(CodePage), for_user=for_user)
    assert f"<h1>{words}</h1>" in page.content
