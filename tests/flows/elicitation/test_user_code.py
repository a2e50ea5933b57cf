"""The user code on the page: who sees it, who can guess it, and how often."""

import re

import msgspec
import pytest

from flows.elicitation.user_code import (
    ALPHABET,
    SHOWN_AT_MOST,
    TRIES_AT_MOST,
    WRONG_AT_MOST,
    BrowserBinding,
    Code,
    UserCodeGenerator,
    bind,
    is_confirmed,
)
from flows.errors import NotAllowed, TooManyAttempts
from tests.support.clock import NOON

CODES = UserCodeGenerator(lambda: [b"k" * 32])
BOUND = bind(None, browser="her browser")


def user_code(binding: BrowserBinding, *, browser: str = "her browser", of: str = "e1") -> str:
    code = binding.code_of(browser)
    assert code is not None
    return CODES.user_code(of, code)


def typed(binding: BrowserBinding, text: str) -> BrowserBinding:
    return CODES.confirm("e1", binding, typed=text, now=NOON)


def test_user_code_has_eight_unambiguous_characters() -> None:
    shown = user_code(BOUND)
    assert re.fullmatch(rf"[{ALPHABET}]{{4}}-[{ALPHABET}]{{4}}", shown)
    assert len(set(ALPHABET)) == 20
    assert not set(ALPHABET) & set("AEIOUY" + "0158")


def test_reloaded_page_shows_same_code() -> None:
    stored = msgspec.json.decode(msgspec.json.encode(BOUND), type=BrowserBinding)
    assert user_code(stored) == user_code(bind(BOUND, browser="her browser"))


def test_code_differs_for_another_browser_question_number_or_server() -> None:
    code = Code(browser="her browser", number=1)
    shown = {
        user_code(BOUND),
        user_code(bind(BOUND, browser="another"), browser="another"),
        user_code(BOUND, of="e2"),
        CODES.user_code("e1", msgspec.structs.replace(code, number=7)),
        CODES.user_code("e1", msgspec.structs.replace(code, browser="another")),
        UserCodeGenerator(lambda: [b"j" * 32]).user_code("e1", code),
    }
    assert len(shown) == 6


def test_stored_binding_does_not_contain_the_code() -> None:
    shown = user_code(BOUND)
    stored = msgspec.json.encode(BOUND).decode()
    assert shown not in stored
    assert shown.replace("-", "") not in stored


@pytest.mark.parametrize("spelt", ["{}", "  {} ", "({})", "{}."])
def test_code_is_accepted_in_any_spelling(spelt: str) -> None:
    shown = user_code(BOUND)
    for text in (shown, shown.lower(), shown.replace("-", ""), " ".join(shown)):
        confirmed = typed(BOUND, spelt.format(text))
        assert is_confirmed(confirmed, browser="her browser")
        assert not is_confirmed(confirmed, browser="another")


def test_browser_is_not_confirmed_before_code_is_typed() -> None:
    assert not is_confirmed(None, browser="her browser")
    assert not is_confirmed(BOUND, browser="her browser")


@pytest.mark.parametrize("text", ["", "BCDF-GHJK", "x" * 10_000, "\ud800", "ﬀﬀﬀﬀ", "\x00"])
def test_wrong_guess_is_counted(text: str) -> None:
    assert typed(BOUND, text).tries == 1


def test_fifth_wrong_guess_creates_new_code() -> None:
    guessed = BOUND
    for _ in range(TRIES_AT_MOST - 1):
        guessed = typed(guessed, "nonsense")
    assert user_code(guessed) == user_code(BOUND)
    fresh = typed(guessed, "nonsense")
    assert (fresh.number, fresh.tries) == (2, 0)
    assert user_code(fresh) != user_code(BOUND)
    assert not is_confirmed(typed(fresh, user_code(BOUND)), browser="her browser")


def test_each_new_user_code_has_the_next_number_after_wrong_guesses() -> None:
    guessed = bind(BOUND, browser="another")
    for _ in range(TRIES_AT_MOST):
        guessed = typed(guessed, "nonsense")
    assert [code.number for code in guessed.codes] == [3, 4]
    assert bind(guessed, browser="a third").codes[-1].number == 5


def test_right_code_is_refused_after_too_many_wrong_guesses() -> None:
    guessed = BOUND
    for _ in range(WRONG_AT_MOST):
        guessed = typed(guessed, "nonsense")
    for text in ("nonsense", user_code(guessed)):
        with pytest.raises(TooManyAttempts):
            typed(guessed, text)


def test_another_browser_before_confirmation_gets_its_own_code() -> None:
    other = bind(BOUND, browser="another")
    assert not is_confirmed(typed(other, user_code(BOUND)), browser="another")
    confirmed = typed(other, user_code(other, browser="another"))
    assert is_confirmed(confirmed, browser="another")
    assert not is_confirmed(confirmed, browser="her browser")


def test_codes_of_other_browsers_do_not_invalidate_the_first_code() -> None:
    # finding: S21
    bound = bind(bind(BOUND, browser="another"), browser="a third")
    assert user_code(bound) == user_code(BOUND)
    confirmed = typed(bound, user_code(BOUND))
    assert is_confirmed(confirmed, browser="her browser")
    assert (confirmed.tries, confirmed.wrong) == (0, 0)


def test_at_most_three_browsers_have_codes_and_oldest_code_is_dropped() -> None:
    bound = BOUND
    for number in range(SHOWN_AT_MOST):
        bound = bind(bound, browser=f"browser {number}")
    assert len(bound.codes) == SHOWN_AT_MOST
    assert bound.code_of("her browser") is None
    again = bind(bound, browser="her browser")
    assert user_code(again) != user_code(BOUND)
    assert again.code_of("browser 0") is None


def test_fifth_wrong_guess_creates_new_code_in_each_browser() -> None:
    bound = bind(BOUND, browser="another")
    guessed = bound
    for _ in range(TRIES_AT_MOST):
        guessed = typed(guessed, "nonsense")
    browsers = ("her browser", "another")
    shown = {user_code(each, browser=browser) for each in (bound, guessed) for browser in browsers}
    assert len(shown) == 4


def test_another_browser_after_confirmation_is_refused() -> None:
    confirmed = typed(BOUND, user_code(BOUND))
    with pytest.raises(NotAllowed):
        bind(confirmed, browser="another")
    assert bind(confirmed, browser="her browser") is confirmed
    assert typed(confirmed, "nonsense") is confirmed


def test_many_other_browsers_do_not_block_the_asker() -> None:
    bound = BOUND
    for number in range(100):
        bound = bind(bound, browser=f"browser {number}")
    hers = bind(bound, browser="her browser")
    assert is_confirmed(typed(hers, user_code(hers)), browser="her browser")


def test_another_browser_gives_no_additional_guesses() -> None:
    guessed = BOUND
    for number in range(WRONG_AT_MOST):
        guessed = bind(typed(guessed, "nonsense"), browser=f"browser {number}")
    with pytest.raises(TooManyAttempts):
        typed(guessed, user_code(guessed, browser=guessed.codes[-1].browser))


def test_code_shown_before_key_rotation_stays_valid() -> None:
    keys = [b"o" * 32]
    codes = UserCodeGenerator(lambda: keys)
    (code,) = BOUND.codes
    shown = codes.user_code("e1", code)
    keys.insert(0, b"n" * 32)
    assert codes.user_code("e1", code) != shown
    assert codes.confirm("e1", BOUND, typed=shown, now=NOON).confirmed_at == NOON
