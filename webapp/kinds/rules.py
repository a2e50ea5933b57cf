"""Rules: validation of an answer by the author's own code, before it is accepted.

The author's code is a model with validators, or the `check` of a question. The store cannot contain
code, so a stored question has the names of the model and the check. A process that serves the tool
finds the code by these names. If the process that receives the answer cannot find the code, it
stores the answer as a `Check`. A process that finds the code then writes the faults into that
`Check`.

Risks: no process has the code, or the code hangs or raises an error. The answer is then not
accepted, and the page asks the person to try again. Another risk is a client that sends the same
wrong answer again and again. The form is therefore shown to a client only a few times.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias, TypeVar, cast

from flows.elicitation.states import Elicitation, Json
from flows.elicitation.traits import traits_of
from flows.errors import Unreadable
from flows.kinds.checking import AnyCheck, faults_of, found_at, typed_by
from flows.schema.schema import Fault, Refused, Schema
from webapp.elicitations.service import Elicitations
from webapp.importing import raised_at, result_of
from webapp.kinds.page_kind import has_check, has_rules, terms_in
from webapp.records.values import KINDS, Check
from webapp.stores import Conflict, Record

CHECKED_WITHIN: Final = 10.0  # the time limit of an author's check, in seconds
ANSWERED_WITHIN: Final = 5.0  # the additional seconds in which another process has to reply
ASKED_AGAIN_AT_MOST: Final = 5  # how often a client's form is shown again
NOT_CHECKED = Fault(
    path="",
    message="The tool did not check your answer in time, so nothing was sent. Try again. If "
    "that doesn't help, ask your assistant to call the tool again.",
)
_STORED_FOR = timedelta(seconds=30)
_KNOWN_AT_MOST = 20_000
_REFUSED_AT_MOST = 2_000
T = TypeVar("T")
_Typed: TypeAlias = Callable[[Json], object]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Code:
    """The author's code for a question: the conversion with its validators, and the check.

    `only` is the name of the field if the form has a single field.
    """

    typed: _Typed
    check: AnyCheck | None
    only: str | None
    is_secret: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAnswer:
    """A client's last answer to an open question, and the faults in it.

    `times` is the number of refused answers. The process remembers the answer in order to show it
    in the client's form.
    """

    content: Json
    faults: Sequence[Fault]
    times: int


class Rules:
    """The author's code for the questions that this process asks or serves.

    `serves` are the names of the servers whose tools this process runs.
    """

    def __init__(self, elicitations: Elicitations) -> None:
        self._elicitations = elicitations
        elicitations.subscribers.append(self.receive)
        self.serves = set[str]()
        self.refused: OrderedDict[str, RefusedAnswer] = OrderedDict()  # by elicitation id
        self._known: OrderedDict[str, _Code] = OrderedDict()  # by elicitation id
        self._asked: dict[str, asyncio.Future[Sequence[Fault]]] = {}  # by check id
        self._replies = set[asyncio.Task[None]]()

    def remember(self, asked: Elicitation, request: object) -> None:
        """Remember the author's code for a question that this process asks."""
        schema, check = getattr(request, "schema", None), getattr(request, "check", None)
        if isinstance(schema, Schema) and (schema.has_rules or check is not None):
            code = _code_for(asked, schema.typed, check)
            _store_bounded(self._known, asked.id, code, at_most=_KNOWN_AT_MOST)

    async def faults(self, asked: Elicitation, content: Json) -> Sequence[Fault]:
        """Return the faults that the author's code finds, here or in a process that has the code.

        `content` has passed the checks of the question's schema.
        """
        if not has_rules(asked):
            return ()
        code = self._code(asked)
        if code is not None:
            return await _faults(code, content)
        elicitations = self._elicitations
        check = Check(
            id=elicitations.new_id(asked.owner),
            owner=asked.owner,
            elicitation_id=asked.id,
            content=content,
            erase_at=elicitations.clock() + _STORED_FOR,
        )
        future: asyncio.Future[Sequence[Fault]] = asyncio.get_running_loop().create_future()
        self._asked[check.id] = future
        try:
            await elicitations.write(check)
            async with asyncio.timeout(ANSWERED_WITHIN + CHECKED_WITHIN * has_check(asked)):
                return await future
        except TimeoutError:
            _log.warning("rules.timed_out", extra={"id": asked.id})
            return [NOT_CHECKED]
        finally:
            del self._asked[check.id]

    def refuse(self, asked: Elicitation, content: Json, faults: Sequence[Fault]) -> bool:
        """Remember a client's refused answer.

        Return True if the client's form can be shown again. A form is shown again only if its
        question has a check, and only a few times.
        """
        if not has_check(asked):
            return False
        before = self.refused.get(asked.id)
        times = 1 if before is None else before.times + 1
        refused = RefusedAnswer(content=content, faults=faults, times=times)
        _store_bounded(self.refused, asked.id, refused, at_most=_REFUSED_AT_MOST)
        return times <= ASKED_AGAIN_AT_MOST

    async def receive(self, record: Record) -> None:
        """Answer a check of another process, or receive the result of a check of this process."""
        if record.kind != KINDS[Check]:
            return
        try:
            check = await self._elicitations.rows.open(record, Check)
        except Unreadable:
            _log.exception("record.unreadable", extra={"kind": record.kind})
            return
        if check.faults is not None:
            future = self._asked.get(check.id)
            if future is not None and not future.done():
                future.set_result(
                    [Fault(path=path, message=message) for path, message in check.faults]
                )
        elif check.id not in self._asked:
            # The author's check may take seconds, and other records must not wait for it.
            reply = asyncio.create_task(self._reply(check))
            self._replies.add(reply)
            reply.add_done_callback(self._replies.discard)

    async def _reply(self, check: Check) -> None:
        code = self._known.get(check.elicitation_id)
        if code is None and self.serves:
            asked = await self._elicitations.get(check.elicitation_id)
            code = None if asked is None else self._code(asked)
        if code is None:
            return
        faults = tuple((f.path, f.message) for f in await _faults(code, check.content))
        try:  # this write also erases the content
            await self._elicitations.write(check.answered(faults))
        except Conflict:
            return  # another process has replied first

    def _code(self, asked: Elicitation) -> _Code | None:
        """Return the author's code for the question, if this process has it."""
        known = self._known.get(asked.id)
        if known is not None or asked.request.server not in self.serves:
            return known
        terms = terms_in(asked)
        names = {key: terms.get(key) for key in ("check", "model")}
        check, model = (found_at(str(name)) if name else None for name in names.values())
        typed = typed_by(model) if names["model"] else _as_it_is
        if (names["check"] and not callable(check)) or not any(names.values()) or typed is None:
            return None
        return _code_for(asked, typed, cast("AnyCheck | None", check))


def _code_for(asked: Elicitation, typed: _Typed, check: AnyCheck | None) -> _Code:
    schema = cast("Mapping[str, Mapping[str, Json]]", terms_in(asked)["schema"])
    names = [*schema["properties"]]
    only = names[0] if len(names) == 1 else None
    is_secret = traits_of(asked.kind).is_secret
    return _Code(typed=typed, check=check, only=only, is_secret=is_secret)


async def _faults(code: _Code, content: Json) -> Sequence[Fault]:
    try:
        value = code.typed(content)
    except Refused as refused:
        return [Fault(path=f.path.partition(".")[0], message=f.message) for f in refused.faults]
    except Exception as error:  # noqa: BLE001 - an author's validator may raise anything
        return [_broken(error, is_secret=code.is_secret)]
    if code.check is None:
        return ()
    # The check runs outside of any call, as for an answer on a page, so it cannot ask questions.
    work = asyncio.create_task(_returned(code.check, value), context=Context())
    try:
        await asyncio.wait({work}, timeout=CHECKED_WITHIN)
    finally:
        is_late = work.cancel()  # the check may ignore its cancellation, so do not wait for its end
    if is_late:
        _log.warning("check.timed_out", extra={"check": code.check.__qualname__})
        return [NOT_CHECKED]
    try:
        found = faults_of(work.result(), check=code.check)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is the author's code
        return [_broken(error, is_secret=code.is_secret)]
    return [Fault(path=path or code.only or "", message=message) for path, message in found.items()]


async def _returned(check: AnyCheck, value: object) -> object:
    try:
        return await result_of(check, value)
    except SystemExit as error:  # this exception would end the server
        raise RuntimeError("The check called sys.exit.") from error


def _broken(error: BaseException, *, is_secret: bool) -> Fault:
    """Log the exception of the author's code, and return the fault for the person.

    An exception may contain the answer. If the answer is a secret, the log therefore gets only the
    line that raised the exception.
    """
    error_id = secrets.token_hex(6)
    extra = {"error_id": error_id, "type": type(error).__name__, "at": raised_at(error)}
    _log.error("rules.failed", exc_info=None if is_secret else error, extra=extra)
    return Fault(
        path="",
        message="The tool could not check your answer, so nothing was sent. If this happens "
        f"again, tell the operator of this server the number {error_id}.",
        is_of_tool=True,
    )


def _as_it_is(content: Json) -> Json:
    return content


def _store_bounded(entries: OrderedDict[str, T], key: str, value: T, *, at_most: int) -> None:
    entries[key] = value
    entries.move_to_end(key)
    if len(entries) > at_most:
        entries.popitem(last=False)
