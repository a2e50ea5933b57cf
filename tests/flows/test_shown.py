"""Arguments are shown in full or refused, depending on the length of the shown text."""

from typing import Any

import pytest

from flows import elicit
from flows.errors import InvalidQuestion
from flows.shown import (
    CHARACTERS_AT_MOST,
    DEPTH_AT_MOST,
    LINES_AT_MOST,
    TOOL_CHARACTERS_AT_MOST,
    VALUES_AT_MOST,
    arguments_of,
    counted,
    must_be_flat,
    must_be_shown,
    must_be_tool_name,
    with_titles,
)


def nested(deep: int, value: Any = 0) -> Any:
    for _ in range(deep):
        value = [value]
    return value


TOO_MUCH = {
    "depth": ({"a": nested(DEPTH_AT_MOST + 1)}, f"more than {DEPTH_AT_MOST} deep"),
    "objects": ({"a": {"b": nested(DEPTH_AT_MOST)}}, f"more than {DEPTH_AT_MOST} deep"),
    "very deep": ({"a": nested(100_000)}, f"more than {DEPTH_AT_MOST} deep"),
    "values": ({"a": [0] * VALUES_AT_MOST}, "4,000 values"),
    "lines": (
        {"a": "\n" * LINES_AT_MOST},
        "2,001 lines when shown to a person, and can have 2,000 at most",
    ),
    "lines of JSON": ({"a": [0] * (LINES_AT_MOST - 1)}, "2,001 lines"),
    "names": ({f"a{number}": 0 for number in range(LINES_AT_MOST + 1)}, "2,001 lines"),
    "characters": ({"a": "x" * CHARACTERS_AT_MOST}, "49,153 characters"),
    "characters of names": ({"a" * (CHARACTERS_AT_MOST + 1): 0}, "49,154 characters"),
    "control characters": ({"a": "\x7f" * (CHARACTERS_AT_MOST // 6)}, "characters"),
    "indented": ({"a": nested(DEPTH_AT_MOST - 1, [0] * (LINES_AT_MOST - 100))}, "characters"),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_arguments_beyond_display_limits_are_refused(what: str) -> None:
    # finding: XS4
    arguments, words = TOO_MUCH[what]
    with pytest.raises(InvalidQuestion, match=words):
        must_be_shown(arguments)


def test_arguments_at_display_limits_are_shown_in_full() -> None:
    # finding: XS4
    for arguments in (
        {"a": nested(DEPTH_AT_MOST)},
        {"a": "\n" * (LINES_AT_MOST - 1)},
        {"a": "x" * (CHARACTERS_AT_MOST - 1)},
        {f"a{number}": [0, 0] for number in range(VALUES_AT_MOST // 3)},
    ):
        must_be_shown(arguments)
        assert len(arguments_of(arguments)) == len(arguments)


def test_self_referencing_value_is_refused() -> None:
    # finding: XS4
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidQuestion, match="deep"):
        must_be_flat({"a": loop})
    with pytest.raises(InvalidQuestion, match="deep"):
        _ = elicit.confirm("Sure?", arguments={"a": loop})


def test_confirmation_with_too_large_arguments_is_refused() -> None:
    # finding: XS4
    for arguments in ({"a": nested(900)}, {"a": "\n" * LINES_AT_MOST}):
        with pytest.raises(InvalidQuestion, match="show"):
            _ = elicit.confirm("Sure?", arguments=arguments)


def test_too_long_tool_name_is_refused() -> None:
    # finding: XS3
    must_be_tool_name("t" * TOOL_CHARACTERS_AT_MOST)
    with pytest.raises(InvalidQuestion, match="201 characters, and the page shows at most 200"):
        must_be_tool_name("t" * (TOOL_CHARACTERS_AT_MOST + 1))


@pytest.mark.parametrize(
    ("value", "is_mixed"),
    [
        ("p\u0430ypal.example", True),
        ({"to": "\u03bfrder"}, True),
        ("\u043a\u0443\u043f\u0438 iPhone 15, USB-\u043a\u0430\u0431\u0435\u043b\u044c", False),
        ({"to": "\u043e\n\u0432\t\u0430\u0007\u0430"}, False),
        ("Gr\u00fc\u00dfe an Zo\u00eb", False),
    ],
)
def test_word_with_mixed_alphabets_is_marked(value: Any, is_mixed: bool) -> None:
    # finding: XS11
    (argument,) = arguments_of({"to": value})
    assert argument.mixes_alphabets is is_mixed


# finding: XP3
def test_arguments_have_titles_in_the_order_of_the_schema():
    given = arguments_of({"repo": "a/b", "other": 1, "with_backups": True})
    titles = (("with_backups", "With backups"), ("repo", "Repository"))
    shown = [(one.name, one.value) for one in with_titles(given, titles)]
    assert shown == [("With backups", "yes"), ("Repository", "a/b"), ("other", "1")]


@pytest.mark.parametrize(
    "titles",
    [
        (("a", "Name"), ("b", "Name")),
        (("a", "Name"), ("b", "NAME\u200b")),
        (("a", "b"), ("b", "Second")),
    ],
)
def test_argument_keeps_its_name_if_its_title_looks_like_another(
    titles: tuple[tuple[str, str], ...],
):
    shown = [one.name for one in with_titles(arguments_of({"a": 1, "b": 2}), titles)]
    assert shown[0] == "a"
    assert len({name.casefold() for name in shown}) == 2


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 days"), (1, "1 day"), (1.0, "1 day"), (0.5, "0.5 days"), (1_234_567, "1234567 days")],
)
def test_number_is_written_with_noun_in_singular_or_plural(number: float, text: str):
    assert counted(number, "day") == text
    assert counted(number, "entry", "entries") == text.replace("days", "entries").replace(
        "day", "entry"
    )
