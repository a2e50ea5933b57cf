"""Gates (the kind `gate`): a yes before a tool's body starts, or one that was given before.

What could go wrong: a yes that opens long after it was said, or after it was taken back, because
the call it was said to asks other things and goes on for days. So each leg of it looks again.
"""

import logging
from collections.abc import Sequence
from datetime import datetime

from msgspec.structs import replace

from flows.elicitation.retention import HOLDS_FOR_ITS_CALL
from flows.elicitation.states import Elicitation, Json, Status
from flows.errors import NotPossible
from flows.kinds.form import Form
from flows.kinds.gate import Gate, GatePolicy
from webapp.elicitations.kind import AskedBy
from webapp.elicitations.service import Elicitations
from webapp.kinds.approvals import Approvals
from webapp.kinds.form import AskedForms
from webapp.records.rows import Value

_log = logging.getLogger(__name__)


class Gates(AskedForms):
    """Implements webapp.elicitations.kind.Kind for requests of type Form that are gates."""

    may_know = True

    def __init__(self, *, elicitations: Elicitations, policy: GatePolicy) -> None:
        super().__init__(elicitations=elicitations)
        self._policy = policy
        self.approvals = Approvals(elicitations)

    def before(self, tool: str, *, mark: Gate | None, is_destructive: bool) -> Gate | None:
        """The gate before this tool, by its mark, its annotation and the operator's policy."""
        return self._policy.gate_of(tool, mark=mark, is_destructive=is_destructive)

    async def known(self, request: Form, by: AskedBy) -> Json | None:
        if not request.can_be_kept or request.covers is None:
            return None
        return {} if await self.approvals.covers(by, request.covers) else None

    async def still_stands(self, accepted: Elicitation, by: AskedBy) -> bool:
        """Whether this leg of the call may start under the yes to an earlier one.

        One that was revoked is used up here, and the gate is asked again; but where a body runs
        under it, this leg waits for that one's result.
        """
        now, terms = self._elicitations.clock(), self.terms(accepted)
        if not holds(accepted, self._elicitations):
            return False
        if not terms.can_be_kept or terms.covers is None or not _is_recent(accepted, now=now):
            return True
        if self._elicitations.is_taken(accepted) or await self.approvals.covers(by, terms.covers):
            return True

        def used_up(found: Elicitation) -> Elicitation:
            if self._elicitations.is_taken(found):
                return found
            return replace(found, delivered_at=now, content=None, holds_key=False)

        found = await self._elicitations.change(accepted.id, used_up)
        return found.delivered_at is None

    async def answer(self, taken: Elicitation) -> Json:
        """A yes has no content that could be wiped."""
        return {}

    async def approve(
        self, elicitation: Elicitation, *, is_wide: bool = False, is_for_all: bool = False
    ) -> Elicitation:
        """The person says yes; what it is good for besides is written with it.

        Returns what ended the question, which may be something else that was first.
        """
        if self._elicitations.clock() >= elicitation.expires_at:
            return await self._elicitations.end(elicitation, Status.EXPIRED)
        terms = self.terms(elicitation)

        async def also(approved: Elicitation) -> Sequence[Value]:
            if not terms.can_be_kept:
                return []
            given = await self.approvals.given(
                approved, terms, is_wide=is_wide, is_for_all=is_for_all
            )
            return [given]

        try:
            approved = await self._elicitations.settle(
                elicitation.id, Status.ACCEPTED, content={}, also=also
            )
        except NotPossible:
            return await self._elicitations.get(elicitation.id) or elicitation
        about = {"id": approved.id, "tool": approved.asked.tool}
        _log.info("approval.given", extra={**about, "is_wide": is_wide, "is_for_all": is_for_all})
        return approved


def holds(current: Elicitation, elicitations: Elicitations) -> bool:
    """Whether a yes is still good for its call: for a while, and where its body is running.

    Of the latter the same call, made again, waits for the result.
    """
    if current.kind not in HOLDS_FOR_ITS_CALL or current.status is not Status.ACCEPTED:
        return False
    return elicitations.is_taken(current) or _is_recent(current, now=elicitations.clock())


def _is_recent(accepted: Elicitation, *, now: datetime) -> bool:
    assert accepted.settled_at is not None
    return now < accepted.settled_at + HOLDS_FOR_ITS_CALL[accepted.kind]
