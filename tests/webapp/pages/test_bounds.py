"""The size of pages and the work for rendering them, counted in bytes and function calls."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from flows.errors import InvalidQuestion
from flows.shown import DEPTH_AT_MOST, arguments_of, must_be_shown
from tests.support.page_views import usual
from webapp.pages.renderer import Renderer
from webapp.pages.views_forms import InboxList, InboxPage, StartConfirm

TIMES_AT_MOST = 16  # each input byte causes at most this many bytes of the page
PAGE_BYTES_AT_MOST = 300_000
STEPS_AT_MOST = 250_000


def nested(deep: int, value: Any) -> Any:
    for _ in range(deep):
        value = [value]
    return value


SHAPES: Mapping[str, dict[str, Any]] = {
    "quotes": {"a": "'" * 49_000},
    "markup": {"a": "<&\"'" * 12_000},
    "control characters": {"a": "\x7f" * 8_000},
    "combining marks": {"a": "a" + "\u0301" * 8_000},
    "names": {f"'{number}": 1 for number in range(2_000)},
    "a deep list": {"a": nested(DEPTH_AT_MOST - 2, [0] * 1_900)},
    "deep texts": {"a": nested(DEPTH_AT_MOST - 2, ["<"] * 1_400)},
    "many short deep lists": {"a": [nested(DEPTH_AT_MOST - 2, 0) for _ in range(90)]},
    "lines": {"a": "\n" * 1_990},
    "JSON in a text": {"a": "[" + "1," * 20_000 + "1]"},
    "digits": {"a": "1" * 49_000},
    "empty lists": {"a": [[] for _ in range(1_990)]},
    "short lists": {f"a{number}": [1] for number in range(1_990)},
}


def steps(work: Callable[[], object]) -> int:
    """Return the number of function calls that the work makes, in Python and in C."""
    number = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return number


@pytest.mark.parametrize("shape", SHAPES)
def test_page_size_and_work_are_bounded_by_input(pages: Renderer, shape: str) -> None:
    # finding: XS4
    arguments, view = SHAPES[shape], usual(StartConfirm)
    must_be_shown(arguments)

    def page() -> str:
        return pages.render(replace(view, arguments=arguments_of(arguments)))

    came_in = len(json.dumps(arguments, ensure_ascii=False).encode())
    grown = len(page().encode()) - len(pages.render(replace(view, arguments=())).encode())
    assert grown <= came_in * TIMES_AT_MOST
    assert grown <= PAGE_BYTES_AT_MOST
    assert steps(page) <= STEPS_AT_MOST


@pytest.mark.parametrize("deep", [300, 900, 100_000])
def test_refused_arguments_are_refused_with_little_work(deep: int) -> None:
    # finding: XS4
    hostile = nested(deep, [0] * 40_000)

    def refused() -> None:
        with pytest.raises(InvalidQuestion):
            must_be_shown({"a": hostile})

    assert steps(refused) < 1_000


def test_inbox_shows_complete_message_and_all_or_no_arguments(pages: Renderer) -> None:
    # finding: XS3
    view = usual(InboxPage)
    (listed, *_) = view.lists
    entry = listed.waiting[0]
    message = "word " * 390 + "Pay 9,000 EUR to DE02 1234?"
    shown = arguments_of({"iban": "DE02 1234" + "9" * 200, "amount": "9,000", "c": 1, "d": 2})
    for arguments, has_more in ((shown, False), ((), True)):
        one = replace(entry, question=None, message=message, arguments=arguments, has_more=has_more)
        lists = (InboxList(approver="finance", waiting=(one,)),)
        html = pages.render(replace(view, lists=lists))
        assert message in html
        for argument in arguments:
            assert f"<bdi>{argument.name}</bdi>: <bdi>{argument.value}</bdi>" in html
        assert ("open it to read all of it" in html) is has_more
        assert "…" not in html.replace("sk me again…", "")
