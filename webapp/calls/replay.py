"""Replay: show an author which lines of a tool run again, and which of these must not run twice.

With some clients, a tool's body starts again from its beginning after each question. With other
clients, the body continues after the `await`. In replay mode, the body starts again after every
answer, whatever the client. For each call, a table shows how often the lines between two awaits
ran, how many of their answers came from the record, and which side effects outside `once` were
repeated.
"""

import asyncio
import inspect
import os
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import PurePath
from types import FrameType
from typing import Any, Final, TypeAlias, TypeVar, cast

from flows.elicitation.once_work import OnceWork
from flows.elicitation.run import Step
from flows.elicitation.states import Json
from flows.errors import Cancelled, Processing
from flows.question import Outcome, Question
from webapp.calls.call import Call, Interrupted
from webapp.calls.presenter import Batch
from webapp.calls.verbs import Verbs
from webapp.importing import is_authors

T = TypeVar("T")
_CALLS_AT_MOST: Final = 1_000
_ITEMS_AT_MOST: Final = 1_000
_SAYS_CHARACTERS: Final = 40
_START: Final = "the start"
_END: Final = "the result"
_Fingerprint: TypeAlias = Mapping[str, object]
_watched: ContextVar["_BodyRun | None"] = ContextVar("elicit_replay", default=None)


class RunAgain(Interrupted):
    """The body received an answer, so it starts again.

    The answer is stored, and the next start gets it from the record.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedLines:
    """The lines between two awaits. `ran` counts their runs, `recorded` the stored answers."""

    begins: str
    ends: str
    ran: int
    recorded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedCall:
    """A call in replay mode. `repeated` are the side effects outside `once` that were repeated."""

    tool: str
    starts: int
    lines: tuple[ReplayedLines, ...]
    repeated: tuple[str, ...]

    def __str__(self) -> str:
        """Return the table of the call, for a terminal."""
        rows = [
            ("from", "to", "times run", "stored answers"),
            *((one.begins, one.ends, f"{one.ran}", f"{one.recorded}") for one in self.lines),
        ]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        table = [
            "  " + "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
            for row in rows
        ]
        lines = [f"replay: {self.tool} ran {_times(self.starts)}", *(row.rstrip() for row in table)]
        if self.repeated:
            lines += [
                "  Repeated outside of elicit.once:",
                *(f"  ! {one}" for one in self.repeated),
            ]
            lines.append(
                "  Do this work in elicit.once(name, work), or after the last await. See "
                "docs/explanation/what-runs-again.md."
            )
        return "\n".join(lines)


@dataclass(slots=True)
class _Segment:
    """The lines that begin after the same number of awaits."""

    begins: str
    ends: str = _END
    ran: int = 0
    recorded: int = 0
    effects: Counter[str] = field(default_factory=Counter[str])
    # side effects of `finally` and `except` blocks that ran because the person was asked, not
    # because the body ended
    unwound: Counter[str] = field(default_factory=Counter[str])


@dataclass(slots=True)
class _Record:
    """A call, over all its requests in this process."""

    starts: int = 0
    segments: dict[int, _Segment] = field(default_factory=dict[int, _Segment])
    # by step: the number of the body's start in which the step's question was first asked
    reached: dict[Step, int] = field(default_factory=dict[Step, int])

    def seen(self, tool: str) -> ReplayedCall:
        segments = [self.segments[number] for number in sorted(self.segments)]
        # The same lines belong to several segments if an await is in a loop.
        total = Counter[str]()
        repeated = dict[str, None]()
        for segment in segments:
            total += segment.effects + segment.unwound
            repeated |= dict.fromkeys(segment.unwound)
            if segment.ran > 1:
                repeated |= {effect: None for effect, n in segment.effects.items() if n > 1}
        return ReplayedCall(
            tool=tool,
            starts=self.starts,
            lines=tuple(
                ReplayedLines(begins=s.begins, ends=s.ends, ran=s.ran, recorded=s.recorded)
                for s in segments
            ),
            repeated=tuple(f"{effect} ({_times(total[effect])})" for effect in repeated),
        )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


class Replays:
    """The calls of this process in replay mode. `show` receives each call when it has ended.

    Without `starts_again`, no body is started again, and the starts are only counted.
    """

    def __init__(
        self, show: Callable[[ReplayedCall], object], *, starts_again: bool = True
    ) -> None:
        self._show = show
        self._starts_again = starts_again
        self._records: OrderedDict[str, _Record] = OrderedDict()  # by run id
        _listen()

    async def run(
        self,
        call: Call,
        functions: Collection[Callable[..., Any]],
        body: Callable[[Verbs], Awaitable[T]],
    ) -> T:
        """Run the body again after each question, until it ends or the request is interrupted."""
        while True:
            current = _BodyRun(self._record_of, call, functions, can_start_again=self._starts_again)
            verbs = _ReplayedVerbs(call, current)
            token = _watched.set(current)
            try:
                result = await body(verbs)
            except BaseException as raised:
                # A task group may wrap the exception. The state of the body decides.
                is_ended = call.has_ended or isinstance(raised, asyncio.CancelledError)
                if is_ended or not current.starts_again:
                    raise
            else:
                if not current.starts_again:
                    return result
            finally:
                _watched.reset(token)
                current.end()
            call.used.start_again()

    def ended(self, call: Call) -> None:
        """Show the table of a call that has ended with a result."""
        record = self._records.pop(call.run.value.id, None) if call.run.is_loaded else None
        if record is not None and record.reached:
            self._show(record.seen(call.tool.tool))

    def _record_of(self, run_id: str) -> _Record:
        record = self._records.setdefault(run_id, _Record())
        self._records.move_to_end(run_id)
        if len(self._records) > _CALLS_AT_MOST:
            self._records.popitem(last=False)
        return record


class _BodyRun:
    """A start of a body, with its segments and their side effects."""

    def __init__(
        self,
        record_of: Callable[[str], _Record],
        call: Call,
        functions: Collection[Callable[..., Any]],
        *,
        can_start_again: bool,
    ) -> None:
        self._record_of = record_of
        self._call = call
        self._functions = functions
        self._segments = [_Segment(begins=_START, ran=1)]
        self._record: _Record | None = None
        self._depth = 0  # the number of verbs that are running
        self._before = _fingerprint(functions)
        self._is_unwinding = False
        self._can_start_again = can_start_again
        self.starts_again = False

    @property
    def record(self) -> _Record:
        """The call's record. Read the record only after the call's run is loaded."""
        if self._record is None:
            self._record = self._record_of(self._call.run.value.id)
            self._record.starts += 1
        return self._record

    @contextmanager
    def verb(self, what: str) -> Generator[None]:
        """End the current segment, and begin the next one when the verb returns."""
        segment, token = self._segments[-1], _watched.set(None)
        place = _authors_line(inspect.currentframe()) or "the tool"
        if not self._depth:
            segment.ends = f"{place} {what}"
            self._note_changes(segment)
        self._depth += 1
        try:
            yield
        except BaseException as raised:
            # From here on, only except and finally blocks run, because the person is being asked.
            self._is_unwinding = not isinstance(raised, Exception)
            raise
        finally:
            self._depth -= 1
            _watched.reset(token)
            self._before = _fingerprint(self._functions)
            if not self._depth and not self._is_unwinding:
                self._segments.append(_Segment(begins=place, ran=1))

    async def asked(self, step: Step, asking: Awaitable[Outcome[T]]) -> Outcome[T]:
        """Ask the question, return its outcome, and count a stored answer.

        If no earlier start of the body asked at `step`, mark the body to start again. Cancelled
        and Processing are no answers and do not mark the body.
        """
        segment, record = self._segments[-1], self.record
        first = record.reached.setdefault(step, record.starts)
        outcome = await asking
        if first < record.starts:
            segment.recorded += 1
        elif not isinstance(outcome.error, Cancelled | Processing):
            self.starts_again = self._can_start_again
        return outcome

    def start_again(self) -> None:
        """Raise RunAgain if the body has to start again, and no other verb is running."""
        if self.starts_again and self._depth == 1:
            raise RunAgain

    def did(self, effect: str) -> None:
        """Note a side effect of the segment that runs now."""
        place = _authors_line(inspect.currentframe())
        if place is None and threading.current_thread() is not threading.main_thread():
            begins = self._segments[-1].begins  # the author called a library's function in a thread
            place = f"after {begins}, in a thread:"
        if place is not None:
            self._count(f"{place} {effect}")

    def end(self) -> None:
        """Add this start of the body to the call's record, if the call has a run."""
        segment = self._segments[-1]
        self._note_changes(segment)
        if not self._call.run.is_loaded:
            return
        for number, one in enumerate(self._segments):
            known = self.record.segments.setdefault(number, _Segment(begins=one.begins))
            known.begins = one.begins
            known.ends = one.ends if one.ends != _END or known.ends == _END else known.ends
            known.ran += one.ran
            known.recorded += one.recorded
            known.effects += one.effects
            known.unwound += one.unwound

    def _note_changes(self, segment: _Segment) -> None:
        after = _fingerprint(self._functions)
        place = segment.ends.partition(" ")[0]
        where = f"after {segment.begins}" if segment.begins != _START else f"before {place}"
        where = place if self._is_unwinding else where
        for name, value in after.items():
            if self._before.get(name) != value:
                self._count(f"{where}: changes {name}")
        self._before = after

    def _count(self, effect: str) -> None:
        segment = self._segments[-1]
        if self._is_unwinding:
            segment.unwound[f"{effect}, in finally or except, when the person is asked"] += 1
        else:
            segment.effects[effect] += 1


class _ReplayedVerbs(Verbs):
    """The verbs of a body in replay mode."""

    def __init__(self, call: Call, current: _BodyRun) -> None:
        super().__init__(call)
        self._current = current

    async def ask(self, question: Question[T]) -> Outcome[T]:
        (outcome,) = await self._replayed(
            [question], lambda: _one(super(_ReplayedVerbs, self).ask(question))
        )
        return cast("Outcome[T]", outcome)

    async def ask_together(
        self, questions: Sequence[Question[Any]], *, stops_at_no: bool
    ) -> tuple[Outcome[Any], ...]:
        asked = super().ask_together
        return await self._replayed(questions, lambda: asked(questions, stops_at_no=stops_at_no))

    async def once(self, work: OnceWork) -> Json:
        with self._current.verb(f"once {work.name}"):
            return await super().once(work)

    async def forget(self, name: str) -> bool:
        with self._current.verb(f"forget {name}"):
            return await super().forget(name)

    async def _replayed(
        self,
        questions: Sequence[Question[Any]],
        ask: Callable[[], Awaitable[tuple[Outcome[Any], ...]]],
    ) -> tuple[Outcome[Any], ...]:
        kinds = ", ".join(question.request.kind for question in questions)
        says = questions[0].message[:_SAYS_CHARACTERS] if questions else ""
        with self._current.verb(f"{kinds} {says!r}"):
            outcomes = await ask()
            self._current.start_again()
        return outcomes

    async def _ask_person(
        self, step: Step, question: Question[T], group: Batch | None = None
    ) -> Outcome[T]:
        return await self._current.asked(step, super()._ask_person(step, question, group))


async def _one(outcome: Awaitable[Outcome[Any]]) -> tuple[Outcome[Any], ...]:
    return (await outcome,)


# The side effects of a body.


def _listen() -> None:
    """Add the audit hook of this process, which Python cannot remove again."""
    if not _has_hook:
        _has_hook.append(True)
        sys.addaudithook(_on_audit_event)


_has_hook: list[bool] = []
_WRITING: Final = os.O_WRONLY | os.O_RDWR
_EFFECTS: Final = {
    "subprocess.Popen": "starts a process",
    "os.system": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.remove": "removes a file",
    "os.rename": "renames a file",
    "os.mkdir": "makes a folder",
    "os.rmdir": "removes a folder",
    "sqlite3.connect": "opens a database",
    "socket.connect": "connects to the network",
    "socket.sendto": "sends to the network",
}
_EFFECTS_ON_FILES: Final = frozenset({"open", "os.remove", "os.rename", "os.mkdir"})


def _on_audit_event(event: str, args: tuple[Any, ...]) -> None:
    if event != "open" and event not in _EFFECTS:
        return
    current = _watched.get()
    if current is None:
        return
    if event in _EFFECTS_ON_FILES and _is_bytecode(args[0]):
        return
    if event != "open":
        current.did(_EFFECTS[event])
    elif _is_written(*args):
        current.did(f"writes {PurePath(os.fsdecode(args[0])).name}")


def _is_bytecode(path: object) -> bool:
    """Return True for a file or folder in which Python itself caches an imported module."""
    if not isinstance(path, str | bytes):
        return False
    name, prefix = os.fsdecode(path), sys.pycache_prefix
    return "__pycache__" in name or (prefix is not None and name.startswith(prefix))


def _is_written(path: object, mode: object, flags: object) -> bool:
    if not isinstance(path, str | bytes):
        return False
    is_mode = isinstance(mode, str) and not set("wax+").isdisjoint(mode)
    return is_mode or (mode is None and isinstance(flags, int) and bool(flags & _WRITING))


def _authors_line(frame: FrameType | None) -> str | None:
    """Return the file name and line of the innermost code that is the author's own."""
    while frame is not None:
        path = frame.f_code.co_filename
        if is_authors(path):
            return f"{PurePath(path).name}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _fingerprint(functions: Collection[Callable[..., Any]]) -> _Fingerprint:
    """Return a fingerprint of the functions' current global and nonlocal variables."""
    found: dict[str, object] = {}
    for function in functions:
        variables = dict(getattr(function, "__globals__", {}))
        names = getattr(function, "__code__", None)
        cells = getattr(function, "__closure__", None) or ()
        for name, cell in zip(names.co_freevars if names else (), cells, strict=True):
            try:
                variables[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
        module = getattr(function, "__module__", None)
        for name, value in cast("dict[str, object]", variables).items():
            if name.startswith("__"):
                continue
            if type(value).__module__ == module and hasattr(value, "__dict__"):
                for attribute, held in vars(value).items():
                    found[f"{name}.{attribute}"] = _held(held)
            else:
                found[name] = _held(value)
    return {name: value for name, value in found.items() if value is not None}


def _held(value: object) -> object:
    if isinstance(value, bool | int | float | str | bytes):
        return value
    if not isinstance(value, list | dict | set | bytearray):
        return None
    held = cast("Collection[object]", value)
    return (len(held), repr(held)) if len(held) <= _ITEMS_AT_MOST else (len(held),)
