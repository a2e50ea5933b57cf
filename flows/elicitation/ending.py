"""The end of a question or call: how it ended, and the callbacks that an author registered.

Risks: the process that registered a callback is gone when the call ends, and a function cannot be
stored. So only the name of a function at the top level of a module is stored, and another process
that has imported that module finds the same function. A stored name never causes an import.
"""

import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from flows.elicitation.misuse import must_run_when_called
from flows.elicitation.run import Run
from flows.elicitation.states import RECORD_RETENTION, Elicitation, Json, Status
from flows.elicitation.traits import traits_of
from flows.errors import (
    Cancelled,
    Declined,
    Denied,
    Expired,
    Failed,
    InvalidQuestion,
    NotAccepted,
    Superseded,
)
from flows.shown import counted, json_text

PAYLOAD_BYTES_AT_MOST = 8 * 1024
KEY_CHARACTERS_AT_MOST = 255
CALLBACKS_AT_MOST = 50  # for one call
RETRIED_FOR = timedelta(days=30)
CHECKED_AFTER = timedelta(days=1)
_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(seconds=5), timedelta(hours=1)


class HowEnded(StrEnum):
    """The ways in which a call can end. Each member equals its text: `ending.how == "declined"`.

    - DELIVERED: the tool returned its result, and the result was sent to the client.
    - DECLINED: the person declined, here or at the provider.
    - EXPIRED: the person did not answer in time.
    - CANCELLED: the question was cancelled or replaced, or the client cancelled its task.
    - ABANDONED: nobody collected the result, or the server stopped and nobody repeated the call.
    - REFUNDED: the payment of the call was refunded before the call ended.
    - FAILED: the tool ended with an error of its own, or the question failed at the provider.
    """

    DELIVERED = "delivered"
    DECLINED = "declined"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    REFUNDED = "refunded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a call, as a callback of `elicit.on_end` receives it.

    `idempotency_key` is the same each time the callback runs for one registration. `attempt` is 1
    the first time. `caller` is the id of the person, as `elicit.caller` returned it, or None.
    """

    how: HowEnded
    key: str | int
    payload: Any = field(repr=False)  # JSON
    idempotency_key: str
    tool: str
    caller: str | None = None
    attempt: int = 1


class EndingCallback(Struct, frozen=True, kw_only=True):
    """A registered callback. The status is `registered`, `due`, `done` or `given up`.

    While a process runs the callback, `next_at` is the end of that process's claim. While the
    callback is registered, `next_at` is when the sweeper checks that its run still exists.
    """

    id: str
    owner: str
    run: str
    server: str
    tool: str
    callback: str  # the name of the function, as in "my_tools:release_seat"
    key: str  # JSON
    payload: str  # JSON; empty once the callback has run
    idempotency_key: str
    caller: str | None = None
    asked_before: int = 0  # how many questions the run had asked before the registration
    how: str | None = None
    ended_at: datetime | None = None
    next_at: datetime | None = None
    tries: int = 0
    misses: int = 0  # how often a process did not know the function
    version: int = 0
    status: str = "registered"

    @property
    def due_at(self) -> datetime | None:
        return self.next_at if self.status in ("registered", "due") else None

    @property
    def erase_at(self) -> datetime | None:
        """The time of erasure: None until the callback has run."""
        is_open = self.status in ("registered", "due") or self.ended_at is None
        return None if is_open or self.ended_at is None else self.ended_at + 2 * RECORD_RETENTION

    def __repr__(self) -> str:
        return f"EndingCallback({self.id!r}, {self.status!r})"

    def ending(self) -> Ending:
        """Return the value that the callback receives."""
        return Ending(
            how=HowEnded(self.how or ""),
            key=json.loads(self.key),
            payload=json.loads(self.payload),
            idempotency_key=self.idempotency_key,
            tool=self.tool,
            caller=self.caller,
            attempt=self.tries,
        )


def end(row: EndingCallback, how: HowEnded, *, now: datetime) -> EndingCallback:
    """Return the callback as due, because its call has ended. Only the first ending counts."""
    if row.status != "registered":
        return row
    return replace(row, status="due", how=how.value, ended_at=now, next_at=now)


def watch(row: EndingCallback, *, now: datetime) -> EndingCallback:
    """Return the registered callback with the time of the next check that its run exists."""
    return replace(row, next_at=now + CHECKED_AFTER)


def complete(row: EndingCallback) -> EndingCallback:
    return replace(row, status="done", payload="", next_at=None)


def fail(row: EndingCallback, *, now: datetime) -> EndingCallback:
    """Return the callback with the time of its next try, or given up after a month of tries."""
    if row.ended_at is not None and now >= row.ended_at + RETRIED_FOR:
        return replace(row, status="given up", next_at=None)
    return replace(row, next_at=now + _pause(row.tries))


def postpone(row: EndingCallback, *, now: datetime) -> EndingCallback:
    """Return the callback postponed, because this process does not know its function."""
    pause = min(_pause(row.misses + 1), timedelta(minutes=1))
    return replace(row, misses=row.misses + 1, next_at=now + pause)


def _pause(tries: int) -> timedelta:
    doublings: int = min(max(tries, 1) - 1, 20)
    return min(_FIRST_PAUSE * (1 << doublings), _LONGEST_PAUSE)


def how_ended(run: Run, asked: Sequence[Elicitation], *, is_refunded: bool) -> HowEnded:
    """Return how the call ended. `asked` are its questions since the callback was registered.

    If some of these questions are payments, the other questions are ignored.
    """
    if run.is_cancelled:
        return HowEnded.CANCELLED
    if is_refunded:
        return HowEnded.REFUNDED
    counted = [one for one in asked if traits_of(one.kind).gives == "receipt"] or list(asked)
    is_accepted = any(one.status is Status.ACCEPTED for one in counted)
    if counted and not (is_accepted and run.sent == "result"):
        last = counted[-1]
        if last.status is not Status.ACCEPTED:
            return _REFUSED.get(last.status, HowEnded.EXPIRED)  # an open question counts as expired
    match run.sent:
        case "result":
            return HowEnded.DELIVERED
        case "error":
            return HowEnded.FAILED
        case _:
            return HowEnded.ABANDONED


_REFUSED: Mapping[Status, HowEnded] = {
    Status.DECLINED: HowEnded.DECLINED,
    Status.DENIED: HowEnded.DECLINED,
    Status.CANCELLED: HowEnded.CANCELLED,
    Status.SUPERSEDED: HowEnded.CANCELLED,
    Status.FAILED: HowEnded.FAILED,
}


def callback_named(name: str) -> Callable[[Ending], Any] | None:
    """Return the function with this name in a module that this process has imported, or None."""
    module_name, _, path = name.partition(":")
    found: Any = sys.modules.get(module_name)
    if found is None and module_name == _main_name():
        found = sys.modules.get("__main__")
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if callable(found) else None


def name_of(callback: Callable[[Ending], Any]) -> str:
    """Return the name under which another process finds the function.

    Raises:
        InvalidQuestion: Another process could not find the function, or could not call it.
    """
    path = str(getattr(callback, "__qualname__", ""))
    module = str(getattr(callback, "__module__", None) or "")
    if not path or not module:
        raise InvalidQuestion(
            f"on_end: callback must be a function, not {type(callback).__name__}. {_WRITE}"
        )
    must_run_when_called(callback, f"on_end: {path}")
    name = f"{_main_name() if module == '__main__' else module}:{path}"
    found: object = callback_named(name)
    if "<" in path or found is not callback:
        what = "a lambda" if "<lambda>" in path else repr(path)
        raise InvalidQuestion(
            f"on_end: callback is {what}, which another process could not find by its name when "
            f"the call ends. {_WRITE}"
        )
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        raise InvalidQuestion(
            f"on_end: {path} must take one argument, the ending. {_WRITE}"
        ) from None
    except ValueError:  # a function written in C has no signature
        pass
    return name


def payload_of(payload: Json) -> str:
    """Return the payload as JSON text. Raises InvalidQuestion."""
    text = json.dumps(json.loads(json_text(payload, "payload")), sort_keys=True)
    if len(text) > PAYLOAD_BYTES_AT_MOST:
        raise InvalidQuestion(
            f"on_end: payload has {len(text)} characters of JSON, and can have at most "
            f"{PAYLOAD_BYTES_AT_MOST}. Store the data in your own table, and pass its id."
        )
    return text


def key_of(key: str | int) -> str:
    """Return the key as JSON text. Raises InvalidQuestion."""
    text = json.dumps(key)
    if isinstance(key, bool) or not 0 < len(str(key)) <= KEY_CHARACTERS_AT_MOST:
        raise InvalidQuestion(
            f"on_end: key must be an int, or a str of 1 to {KEY_CHARACTERS_AT_MOST} characters "
            'that says what the callback is for, as in on_end(release_seat, key="seat 14").'
        )
    return text


def _main_name() -> str:
    """Return the name of the program's own module, as `elicit serve` would import it."""
    file = str(getattr(sys.modules.get("__main__"), "__file__", None) or "__main__")
    return file.replace("\\", "/").rpartition("/")[2].removesuffix(".py")


_WRITE = (
    "Write `async def release_seat(ending):` at the top level of a module, and pass "
    "`on_end(release_seat, payload, key=...)`."
)


def refusal(
    status: Status,
    *,
    message: str,
    elicitation_id: str,
    timeout: timedelta,
    why: str | None = None,
    approver: str | None = None,
) -> NotAccepted | None:
    """Return the error for an outcome that is not accepted, or None for an accepted one.

    `approver` names the person who had to decide in place of the person who asked, or is None.
    """
    if status is Status.ACCEPTED:
        return None
    about = f"{message!r}" + (f" ({why})" if why else "")
    if status is Status.EXPIRED:
        who = "Nobody answered" if approver is None else f"{approver} did not decide"
        return Expired(
            f"{who} within {counted(round(timeout.total_seconds()), 'second')}: {about}.",
            elicitation_id=elicitation_id,
            ttl=timeout,
        )
    if status not in _REFUSALS:
        raise ValueError(f"{status} is not an outcome")
    error, words = _REFUSALS[status]
    if status is Status.DECLINED and approver is not None:
        words = f"{approver} declined"
    return error(f"{words}: {about}.", elicitation_id=elicitation_id)


_REFUSALS: Mapping[Status, tuple[type[NotAccepted], str]] = {
    Status.DECLINED: (Declined, "The person declined"),
    Status.DENIED: (Denied, "The person declined at the provider"),
    Status.CANCELLED: (Cancelled, "The question was cancelled before it was answered"),
    Status.FAILED: (Failed, "The question could not be finished"),
    Status.SUPERSEDED: (Superseded, "A newer question replaced this question"),
}
