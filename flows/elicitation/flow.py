"""Flows and attempts: the steps from the Continue button to the answer, as data.

This module sends no requests.

A Talk is a generator that yields requests and receives responses. So a flow opens no socket, and a
test of a flow needs no network: the test sends prepared responses to the generator.

Risks: an answer belongs to an earlier attempt, or arrives twice. Only the latest attempt has a
`state`, and a `state` is valid for one return of the browser. The link itself can be opened many
times.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeAlias, TypeVar

import httpx
from msgspec.structs import replace

from flows.elicitation.states import LATE, Attempt, Elicitation, Json, Status, Trouble, require
from flows.errors import NotPossible, TooManyAttempts

T = TypeVar("T")
Talk: TypeAlias = Generator[httpx.Request, httpx.Response, T]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedirectContext:
    """The values of an attempt that the redirect to the provider and the return need.

    - `return_url`: the address to which the provider sends the browser back.
    - `state`: the parameter that the browser must bring back. Only its hash is stored.
    - `switches`: the person wants to use a different account than the one that is signed in at the
      provider.
    - `tenant`: the person's address at the provider, as typed, if the page asked for one.
    """

    number: int
    return_url: str
    state: str = field(repr=False)
    now: datetime
    switches: bool = False
    tenant: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Redirect:
    """The address to which the browser goes after Continue.

    `attempt_data`, if any, replaces the attempt's stored data before the redirect.
    """

    url: str = field(repr=False)
    attempt_data: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackParams:
    """The parameters that the browser brought back, each with all its values."""

    parameters: tuple[tuple[str, str], ...] = field(repr=False)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.parameters if key == name]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFinding:
    """A result of checking this server's registration at a provider.

    `fix` says what to do and names the setting.

    A finding with `fix` and without `is_wrong` means that the check could not be completed.
    """

    says: str
    fix: str | None = None
    is_wrong: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupReport:
    """The results of checking a registration. `reported_at` is the provider's Date header."""

    findings: tuple[SetupFinding, ...]
    reported_at: str | None = None


class Flow(Protocol):
    """A flow for one kind of elicitation that sends the browser to another site."""

    def prepare(self, elicitation: Elicitation, context: RedirectContext) -> Json:
        """Return the data that the attempt must store before any request is sent."""
        ...

    def begin(self, elicitation: Elicitation, context: RedirectContext) -> Talk[Redirect]:
        """Make the requests and return the redirect, from the stored data of `prepare`."""
        ...


ATTEMPTS_AT_MOST = 10
CLOSE_AGAIN_AT_LEAST = timedelta(minutes=1)
CLOSE_AGAIN_AT_MOST = timedelta(hours=1)


def open_attempt(
    elicitation: Elicitation,
    *,
    browser: str,
    now: datetime,
    state: str | None = None,
    attempt_data: Json = None,
) -> Elicitation:
    """Start an attempt in a browser.

    If the previous attempt's page may still be open at the provider, store that attempt in
    `earlier_attempts`.

    Raises:
        TooManyAttempts: Ten attempts were made. Those of `record_failed_start` do not count.
        NotPossible: The elicitation has ended, or a code is being redeemed for it.
    """
    require(elicitation, Status.OPENED)
    if elicitation.status is Status.EXCHANGING:  # only `fail_attempt` can open the question again
        raise NotPossible(status=elicitation.status, wanted=Status.OPENED)
    if now >= elicitation.expires_at:
        raise NotPossible(status=Status.EXPIRED, wanted=Status.OPENED)
    number = next_attempt(elicitation)
    if number - elicitation.led_nowhere > ATTEMPTS_AT_MOST:
        raise TooManyAttempts(limit=ATTEMPTS_AT_MOST)
    attempt = Attempt(
        number=number, browser=browser, started_at=now, state=state, kept=attempt_data
    )
    former = elicitation.earlier_attempts
    last = elicitation.attempt
    may_return = last is not None and last.kept != attempt_data and last.trouble != "refused"
    if elicitation.is_open_there and last is not None and may_return:
        former = (*former, last)
    return replace(elicitation, status=Status.OPENED, attempt=attempt, earlier_attempts=former)


def next_attempt(elicitation: Elicitation) -> int:
    return 1 if elicitation.attempt is None else elicitation.attempt.number + 1


def record_failed_start(elicitation: Elicitation, *, number: int, trouble: Trouble) -> Elicitation:
    """Record that an attempt failed before the browser was sent to the provider.

    The attempt does not count towards the limit. The page shows the reason `trouble`.
    """
    attempt = elicitation.attempt
    if attempt is None or attempt.number != number:
        return elicitation
    is_news = attempt.trouble is None
    return replace(
        elicitation,
        attempt=replace(attempt, trouble=trouble),
        led_nowhere=elicitation.led_nowhere + is_news,
    )


def fail_attempt(elicitation: Elicitation, *, number: int, now: datetime) -> Elicitation:
    """Record that an attempt failed because the provider did not answer after the browser returned.

    The person can press Continue again. The browser was already at the provider, so the attempt
    counts towards the limit, unlike in `record_failed_start`.

    Raises:
        NotPossible: No further attempt is allowed, a newer attempt began, or the elicitation has
            ended.
    """
    attempt = elicitation.attempt
    require(elicitation, Status.OPENED)
    is_latest = attempt is not None and attempt.number == number
    has_more = number - elicitation.led_nowhere < ATTEMPTS_AT_MOST
    if attempt is None or not is_latest or not has_more or now >= elicitation.expires_at:
        raise NotPossible(status=elicitation.status, wanted=Status.OPENED)
    failed = replace(attempt, state=None, trouble="silent")
    return replace(elicitation, status=Status.OPENED, attempt=failed)


def keep(
    elicitation: Elicitation, *, number: int, attempt_data: Json, is_sent: bool = True
) -> Elicitation:
    """Store an attempt's new data (`attempt_data`), even if a newer attempt exists.

    Never drop a known session: if a provider created two sessions for one request, store both.
    `is_sent`: the person is redirected to this session.
    """
    latest = elicitation.attempt
    if latest is None:
        return elicitation
    attempts, session = (latest, *elicitation.earlier_attempts), _session_of(attempt_data)
    known = next((one for one in attempts if one.number == number), None)
    if session is not None and session in [_session_of(one.kept) for one in attempts]:
        return elicitation
    if known is not None and _session_of(known.kept) is None:
        return _with(elicitation, replace(known, kept=attempt_data), known)
    if session is None:
        return elicitation
    second = replace(known or latest, number=number, state=None, kept=attempt_data)
    if is_sent and known is latest:
        # The person pays in this session, so it becomes the latest attempt's session.
        second = replace(latest, state=None)
        elicitation = replace(elicitation, attempt=replace(latest, kept=attempt_data))
    return replace(elicitation, earlier_attempts=(*elicitation.earlier_attempts, second))


def adopt(elicitation: Elicitation, *, attempt_data: Json, now: datetime) -> Elicitation:
    """Add a session that exists at the provider but is missing in the record.

    The store lost the attempt that created the session. If the latest attempt has no session, store
    the found session in the latest attempt. The latest attempt can have the number, and therefore
    the idempotency key, of the lost attempt. The provider then refused its request for a session.
    """
    latest = elicitation.attempt
    if latest is None:
        lost = Attempt(number=1, browser="", started_at=now, kept=attempt_data)
        return replace(elicitation, attempt=lost, is_open_there=True)
    if _session_of(latest.kept) is None:
        found = replace(latest, kept=attempt_data, trouble=None)
        return replace(elicitation, attempt=found, is_open_there=True)
    lost = Attempt(number=latest.number, browser="", started_at=now, kept=attempt_data)
    return replace(
        elicitation, earlier_attempts=(*elicitation.earlier_attempts, lost), is_open_there=True
    )


def _with(elicitation: Elicitation, changed: Attempt, known: Attempt) -> Elicitation:
    if elicitation.attempt is known:
        return replace(elicitation, attempt=changed)
    former = tuple(changed if one is known else one for one in elicitation.earlier_attempts)
    return replace(elicitation, earlier_attempts=former)


def _session_of(attempt_data: Json) -> Json:
    return attempt_data.get("session") if isinstance(attempt_data, Mapping) else None


def hold_open(elicitation: Elicitation) -> Elicitation:
    """Record that the provider may have an open page or code.

    The page or code must be closed when the elicitation ends.
    """
    return replace(elicitation, is_open_there=True)


def close(elicitation: Elicitation) -> Elicitation:
    """Record that the provider has nothing open any more."""
    return replace(elicitation, is_open_there=False, next_check_at=None)


def close_later(elicitation: Elicitation, *, now: datetime) -> Elicitation:
    """Schedule the next try to close a page.

    The pause is as long as the time since the elicitation ended, so each pause is longer than the
    previous one.
    """
    ended = elicitation.settled_at or elicitation.expires_at
    pause = min(max(now - ended, CLOSE_AGAIN_AT_LEAST), CLOSE_AGAIN_AT_MOST)
    return replace(elicitation, next_check_at=now + pause)


def come_back_unpaid(elicitation: Elicitation, *, number: int) -> Elicitation:
    """Record that the browser returned from a payment page without a payment.

    The attempt's `state` cannot be used again.
    """
    attempt = elicitation.attempt
    if attempt is None or attempt.number != number or elicitation.status.is_final:
        return elicitation
    return replace(elicitation, attempt=replace(attempt, state=None))


def come_back(elicitation: Elicitation, *, state: str, now: datetime) -> Elicitation:
    """Record that the browser returned with the attempt's `state`, and invalidate the `state`.

    If the elicitation is open and has not expired, set its status to exchanging. If the elicitation
    has expired or ended before the browser returns, leave the status unchanged.

    Raises:
        NotPossible: The `state` is not the latest attempt's or was already used, or the elicitation
            can no longer be accepted.
    """
    attempt = elicitation.attempt
    if attempt is None or attempt.state is None or attempt.state != state:
        raise NotPossible(status=elicitation.status, wanted=Status.EXCHANGING)
    back = replace(elicitation, attempt=replace(attempt, state=None, started_at=now))
    if elicitation.status is Status.OPENED and now < elicitation.expires_at:
        return replace(back, status=Status.EXCHANGING)
    # LATE allows a late payment after DENIED. A browser that returns after DENIED is rejected.
    can_be_late = elicitation.status in LATE and elicitation.status is not Status.DENIED
    if elicitation.status is not Status.OPENED and not can_be_late:
        raise NotPossible(status=elicitation.status, wanted=Status.EXCHANGING)
    return back
