"""Rules: validation of an answer by the author's own model, before it is accepted.

A validator is code and cannot be stored: only the process whose tool asked has the model. If
another process serves the page, that process writes the answer to the store as a `Check`, and the
process with the model replies with the faults.

Risks: the process with the model has ended or is busy. After a few seconds without a reply, the
answer is not accepted, and the page asks the person to try again.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeAlias, cast

from flows.elicitation.states import Elicitation, Json
from flows.errors import Unreadable
from flows.schema.schema import Fault, Refused, Schema
from webapp.elicitations.service import Elicitations
from webapp.records.values import KINDS, Check
from webapp.stores import Conflict, Record

ANSWERED_WITHIN = 5.0  # in seconds
NOT_CHECKED = Fault(
    path="",
    message="The tool did not check your answer in time, so nothing was sent. Try again. If "
    "that doesn't help, ask your assistant to call the tool again.",
)
_BROKEN = Fault(path="", message="The tool could not check your answer, so nothing was sent.")
_STORED_FOR = timedelta(seconds=30)
_KNOWN_AT_MOST = 20_000
_Typed: TypeAlias = Callable[[Json], object]
_log = logging.getLogger(__name__)


class Rules:
    """The validators of the questions that this process asked."""

    def __init__(self, elicitations: Elicitations) -> None:
        self._elicitations = elicitations
        elicitations.subscribers.append(self.receive)
        self._known: OrderedDict[str, _Typed] = OrderedDict()  # by elicitation id
        self._asked: dict[str, asyncio.Future[Sequence[Fault]]] = {}  # by check id

    def know(self, asked: Elicitation, request: object) -> None:
        """Remember the validator of a question that this process asks."""
        schema = getattr(request, "schema", None)
        if isinstance(schema, Schema) and schema.has_rules:
            self._known[asked.id] = cast("Schema[object]", schema).typed
            self._known.move_to_end(asked.id)
            if len(self._known) > _KNOWN_AT_MOST:
                self._known.popitem(last=False)

    def here(self, asked: Elicitation, content: Json) -> Sequence[Fault] | None:
        """Return the faults found by the validators, or None if this process has none."""
        typed = self._known.get(asked.id)
        return None if typed is None else _faults(typed, content)

    async def faults(self, asked: Elicitation, content: Json) -> Sequence[Fault]:
        """Return the faults that the validators find, in whichever process has them."""
        found = self.here(asked, content)
        if found is not None:
            return found
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
            async with asyncio.timeout(ANSWERED_WITHIN):
                return await future
        except TimeoutError:
            _log.warning("rules.timed_out", extra={"id": asked.id})
            return [NOT_CHECKED]
        finally:
            del self._asked[check.id]

    async def receive(self, record: Record) -> None:
        """Answer another process's check, or receive the result of our own."""
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
                future.set_result([Fault(path=path, message=said) for path, said in check.faults])
            return
        typed = self._known.get(check.elicitation_id)
        if typed is not None:
            faults = tuple((fault.path, fault.message) for fault in _faults(typed, check.content))
            try:  # this write also erases the content
                await self._elicitations.write(check.answered(faults))
            except Conflict:
                return  # another process has replied first


def _faults(typed: _Typed, content: Json) -> Sequence[Fault]:
    try:
        typed(content)
    except Refused as refused:
        return [Fault(path=f.path.partition(".")[0], message=f.message) for f in refused.faults]
    except Exception:  # noqa: BLE001 - an author's validator may raise anything
        _log.exception("rules.failed")
        return [_BROKEN]
    return ()
