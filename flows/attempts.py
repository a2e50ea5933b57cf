"""Attempts: each press of Continue, its way out and back.

What could go wrong: an answer that belongs to an earlier press, or that comes twice. The latest
attempt alone has a state, and coming back uses it up: that is single-use, and the link is not.
"""

from datetime import datetime

from msgspec.structs import replace

from flows.elicitation import LATE, Attempt, Elicitation, Json, Status, require
from flows.errors import NotPossible, TooManyAttempts

ATTEMPTS_AT_MOST = 10


def open_attempt(
    elicitation: Elicitation,
    *,
    browser: str,
    now: datetime,
    state: str | None = None,
    kept: Json = None,
) -> Elicitation:
    """Begin an attempt in a browser; one that holds something open elsewhere is not forgotten.

    Raises TooManyAttempts after ten, NotPossible when it is over.
    """
    require(elicitation, Status.OPENED)
    if now >= elicitation.expires_at:
        raise NotPossible(status=Status.EXPIRED, wanted=Status.OPENED)
    number = next_attempt(elicitation)
    if number > ATTEMPTS_AT_MOST:
        raise TooManyAttempts(limit=ATTEMPTS_AT_MOST)
    attempt = Attempt(number=number, browser=browser, started_at=now, state=state, kept=kept)
    former = elicitation.former
    last = elicitation.attempt
    if elicitation.is_open_there and last is not None and last.kept != kept:
        former = (*former, last)
    return replace(elicitation, status=Status.OPENED, attempt=attempt, former=former)


def next_attempt(elicitation: Elicitation) -> int:
    return 1 if elicitation.attempt is None else elicitation.attempt.number + 1


def keep(elicitation: Elicitation, *, number: int, kept: Json) -> Elicitation:
    """What an attempt learned on its way out; it may be a former one by now."""
    attempt = elicitation.attempt
    if attempt is not None and attempt.number == number:
        return replace(elicitation, attempt=replace(attempt, kept=kept))
    former = tuple(
        replace(one, kept=kept) if one.number == number else one for one in elicitation.former
    )
    return replace(elicitation, former=former)


def hold_open(elicitation: Elicitation) -> Elicitation:
    """From here on the provider may hold something open that must end with the elicitation."""
    return replace(elicitation, is_open_there=True)


def close(elicitation: Elicitation) -> Elicitation:
    """The provider holds nothing open any more."""
    return replace(elicitation, is_open_there=False)


def come_back(elicitation: Elicitation, *, state: str, now: datetime) -> Elicitation:
    """The browser is back with the attempt's state, which is used up by this.

    In time it is exchanging from here on; late, only the state is gone. Raises NotPossible if the
    state is not the latest attempt's, was used, or the elicitation's end allows no late yes.
    """
    attempt = elicitation.attempt
    if attempt is None or attempt.state is None or attempt.state != state:
        raise NotPossible(status=elicitation.status, wanted=Status.EXCHANGING)
    back = replace(elicitation, attempt=replace(attempt, state=None, started_at=now))
    if elicitation.status is Status.OPENED and now < elicitation.expires_at:
        return replace(back, status=Status.EXCHANGING)
    # A no at the provider ends its attempt; only money may still follow one.
    can_be_late = elicitation.status in LATE and elicitation.status is not Status.DENIED
    if elicitation.status is not Status.OPENED and not can_be_late:
        raise NotPossible(status=elicitation.status, wanted=Status.EXCHANGING)
    return back
