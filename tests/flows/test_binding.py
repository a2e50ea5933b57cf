"""The letters on the page: who sees them, who may guess, and how often."""

import re

import msgspec
import pytest

from flows.binding import (
    ALPHABET,
    TRIES_AT_MOST,
    WRONG_AT_MOST,
    Binding,
    Codes,
    bind,
    is_confirmed,
)
from flows.errors import NotAllowed, TooManyAttempts
from tests.clock import NOON

CODES = Codes(lambda: [b"k" * 32])
BOUND = bind(None, browser="her browser")


def typed(binding: Binding, text: str) -> Binding:
    return CODES.confirm("e1", binding, typed=text, now=NOON)


def test_the_letters_are_eight_and_none_looks_like_another() -> None:
    shown = CODES.code("e1", BOUND)
    assert re.fullmatch(rf"[{ALPHABET}]{{4}}-[{ALPHABET}]{{4}}", shown)
    assert len(set(ALPHABET)) == 20
    assert not set(ALPHABET) & set("AEIOUY" + "0158")


def test_a_page_that_is_loaded_again_shows_the_same_letters() -> None:
    stored = msgspec.json.decode(msgspec.json.encode(BOUND), type=Binding)
    assert CODES.code("e1", stored) == CODES.code("e1", bind(BOUND, browser="her browser"))


def test_other_letters_for_another_browser_question_number_or_server() -> None:
    other = bind(BOUND, browser="another")
    shown = {
        CODES.code("e1", BOUND),
        CODES.code("e1", other),
        CODES.code("e2", BOUND),
        CODES.code("e1", msgspec.structs.replace(BOUND, number=7)),
        Codes(lambda: [b"j" * 32]).code("e1", BOUND),
    }
    assert len(shown) == 5


def test_what_is_kept_does_not_hold_the_letters() -> None:
    shown = CODES.code("e1", BOUND)
    kept = msgspec.json.encode(BOUND).decode()
    assert shown not in kept
    assert shown.replace("-", "") not in kept


@pytest.mark.parametrize("spelt", ["{}", "  {} ", "({})", "{}."])
def test_the_asker_types_them_in_any_spelling(spelt: str) -> None:
    shown = CODES.code("e1", BOUND)
    for text in (shown, shown.lower(), shown.replace("-", ""), " ".join(shown)):
        confirmed = typed(BOUND, spelt.format(text))
        assert is_confirmed(confirmed, browser="her browser")
        assert not is_confirmed(confirmed, browser="another")


def test_nobody_is_confirmed_before_that() -> None:
    assert not is_confirmed(None, browser="her browser")
    assert not is_confirmed(BOUND, browser="her browser")


@pytest.mark.parametrize("text", ["", "BCDF-GHJK", "x" * 10_000, "\ud800", "ﬀﬀﬀﬀ", "\x00"])
def test_a_wrong_guess_is_counted(text: str) -> None:
    assert typed(BOUND, text).tries == 1


def test_the_fifth_wrong_guess_makes_other_letters() -> None:
    guessed = BOUND
    for _ in range(TRIES_AT_MOST - 1):
        guessed = typed(guessed, "nonsense")
    assert CODES.code("e1", guessed) == CODES.code("e1", BOUND)
    fresh = typed(guessed, "nonsense")
    assert (fresh.number, fresh.tries) == (2, 0)
    assert CODES.code("e1", fresh) != CODES.code("e1", BOUND)
    assert not is_confirmed(typed(fresh, CODES.code("e1", BOUND)), browser="her browser")


def test_after_the_last_code_not_even_the_right_letters_help() -> None:
    guessed = BOUND
    for _ in range(WRONG_AT_MOST):
        guessed = typed(guessed, "nonsense")
    for text in ("nonsense", CODES.code("e1", guessed)):
        with pytest.raises(TooManyAttempts):
            typed(guessed, text)


def test_another_browser_before_the_confirmation_gets_letters_of_its_own() -> None:
    other = bind(BOUND, browser="another")
    assert not is_confirmed(typed(other, CODES.code("e1", BOUND)), browser="another")
    assert is_confirmed(typed(other, CODES.code("e1", other)), browser="another")


def test_another_browser_after_the_confirmation_gets_none() -> None:
    confirmed = typed(BOUND, CODES.code("e1", BOUND))
    with pytest.raises(NotAllowed):
        bind(confirmed, browser="another")
    assert bind(confirmed, browser="her browser") is confirmed
    assert typed(confirmed, "nonsense") is confirmed


def test_other_browsers_use_up_nothing_of_hers() -> None:
    bound = BOUND
    for number in range(100):
        bound = bind(bound, browser=f"browser {number}")
    hers = bind(bound, browser="her browser")
    assert is_confirmed(typed(hers, CODES.code("e1", hers)), browser="her browser")


def test_another_browser_gives_nobody_more_guesses() -> None:
    guessed = BOUND
    for number in range(WRONG_AT_MOST):
        guessed = bind(typed(guessed, "nonsense"), browser=f"browser {number}")
    with pytest.raises(TooManyAttempts):
        typed(guessed, CODES.code("e1", guessed))


def test_letters_that_were_shown_before_a_rotation_are_right_after_it() -> None:
    keys = [b"o" * 32]
    codes = Codes(lambda: keys)
    shown = codes.code("e1", BOUND)
    keys.insert(0, b"n" * 32)
    assert codes.code("e1", BOUND) != shown
    assert codes.confirm("e1", BOUND, typed=shown, now=NOON).confirmed_at == NOON
