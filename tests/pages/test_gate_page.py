"""The page on which a person approves a call: what a yes widens, it says, and never by itself."""

from dataclasses import fields, replace

import pytest

from flows.gating import shown_arguments
from tests.pages.conftest import USUAL
from tests.pages.markup import Page
from webapp.pages import Pages
from webapp.shown_typed import arguments_of
from webapp.views_typed import Argument, StartConfirm


@pytest.fixture
def view() -> StartConfirm:
    return StartConfirm(**{field.name: USUAL[field.name] for field in fields(StartConfirm)})


def said(pages: Pages, view: StartConfirm) -> str:
    return " ".join(Page(pages.render(view)).text("main").split())


def test_it_says_that_nothing_has_run_and_how_long_a_yes_holds(
    pages: Pages, view: StartConfirm
) -> None:
    # parity: T1
    words = said(pages, view)
    assert "book_a_table has not started." in words
    assert "again without asking if your assistant calls it the same way within 15 minutes" in words
    assert "<bdi>guests</bdi></dt><dd><bdi>4</bdi>" in pages.render(view)


def test_it_widens_nothing_unless_it_is_ticked(pages: Pages, view: StartConfirm) -> None:
    html = pages.render(view)
    assert html.count('type="checkbox"') == 1
    assert "checked" not in html
    words = said(pages, view)
    assert "Do not ask again for this tool, for one hour" in words
    assert "whatever it is called with" in words


def test_where_nothing_is_kept_there_is_nothing_to_tick(pages: Pages, view: StartConfirm) -> None:
    once = replace(view, can_be_kept=False)
    for asked in (once, replace(once, is_gate=False)):
        assert "checkbox" not in pages.render(asked)
        assert "15 minutes" not in said(pages, asked)


def test_what_was_cut_is_said_on_the_page_too(pages: Pages, view: StartConfirm) -> None:
    # parity: T2
    cut = Argument(name="text", value="x" * 400 + "... (123456789 characters in all)")
    assert "(123456789 characters in all)" in said(pages, replace(view, arguments=(cut,)))


def test_how_many_arguments_are_left_out_is_told_once() -> None:
    given = {f"name-{number}": number for number in range(120)}
    shown = arguments_of(shown_arguments(given))
    assert [shown[0], shown[-1]] == [
        Argument(name="name-0", value="0"),
        Argument(name="...", value="and 71 more"),
    ]
    assert len(shown) == 50
