"""Templates of a declaration, and its places, which are paths to values in a reply or event."""

from typing import Any

import pytest

from flows.payments.declared.templates import (
    TEXT_AT_MOST,
    at,
    fill,
    fill_path,
    first_of,
    names_in,
    place_faults,
    text_at,
)
from flows.payments.session import Malformed

VALUES: dict[str, str | int | None] = {
    "what": "{secret}",
    "minor": 900,
    "reason": None,
    "session": "../a?b=c#d e/é",
}


def test_single_placeholder_preserves_type_and_missing_value_removes_key() -> None:
    template: Any = {"amount": "{minor}", "text": "<{minor}>", "why": "{reason}", "null": None}
    assert fill(template, VALUES) == {"amount": 900, "text": "<900>", "null": None}


def test_filled_value_is_not_expanded_again() -> None:
    assert fill({"{what}": ["{what}", ("{what}{what}",)]}, VALUES) == {
        "{secret}": ["{secret}", ["{secret}{secret}"]]
    }


def test_filled_value_stays_within_its_path_segment() -> None:
    assert fill_path("/x/{session}/y", VALUES) == "/x/..%2Fa%3Fb%3Dc%23d%20e%2F%C3%A9/y"


def test_all_placeholder_names_are_found() -> None:
    template: Any = {"{a}": ["{b}{c}", {"x": ("{d}", 1, None, True)}], "y": "{ e } {F} {}"}
    assert names_in(template) == {"a", "b", "c", "d"}


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("a.b", 1),
        ("list.0.x", "first"),
        ("list.-1.x", "last"),
        ("list.5.x", None),
        ("list.-2.x", None),
        ("empty.-1", None),
        ("a.b.c", None),
        ("none.x", None),
        ("list.x", None),
    ],
)
def test_place_leads_to_its_value_or_none(place: str, found: object) -> None:
    data: Any = {
        "a": {"b": 1},
        "list": [{"x": "first"}, {"x": "last"}],
        "empty": [],
        "none": None,
    }
    assert at(data, place) == found


def test_text_at_reads_only_short_texts_integers_and_booleans() -> None:
    assert text_at({"a": "x" * TEXT_AT_MOST}, "a") == "x" * TEXT_AT_MOST
    assert [text_at({"a": value}, "a") for value in (7, True, None)] == ["7", "true", None]
    others: list[Any] = ["x" * (TEXT_AT_MOST + 1), 1.5, {}, []]
    for value in others:
        with pytest.raises(Malformed):
            text_at({"a": value}, "a")


def test_first_matching_rule_wins() -> None:
    rules = {"a=x": 1, "b=y": 2, "b=": 3}
    found: list[Any] = [{"a": "x", "b": "y"}, {"b": "y"}, {"b": ""}, {}]
    assert [first_of(data, rules) for data in found] == [1, 2, 3, None]


def test_only_summed_fields_can_join_several_paths_with_plus() -> None:
    assert place_faults({"told.refunded": "a.b+c", "given": "a", "told.amount": None}) == []
    faults = place_faults({"told.refunded": "a+", "told.amount": "a+b", "x": {"a": 1}})
    assert len(faults) == 3
