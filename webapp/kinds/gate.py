"""Gates (kind `gate`): an approval before a tool's body starts, new or remembered.

Risks: an approval is used long after it was given or revoked, because its call asks other questions
and continues for days. Each request of the call therefore checks the approval again.
"""

import logging
from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import traits_of
from flows.kinds.form import Form, FormTerms
from flows.kinds.gate import GatePolicy
from webapp.elicitations.question_kind import AskedBy
from webapp.elicitations.service import Elicitations
from webapp.kinds.approvals import Approvals
from webapp.kinds.page_kind import PageKind
from webapp.records.values import Value

_log = logging.getLogger(__name__)


class Gates(PageKind):
    """The kind `gate`, of a Form that is a gate."""

    may_know = True

    def __init__(self, *, elicitations: Elicitations, policy: GatePolicy) -> None:
        super().__init__(elicitations=elicitations)
        self.policy = policy
        self.approvals = Approvals(elicitations)

    async def known(self, request: Form, by: AskedBy) -> Json | None:
        if not request.can_be_stored or request.covers is None:
            return None
        return {} if await self.approvals.covers(by, request.covers) else None

    async def is_still_valid(self, accepted: Elicitation, by: AskedBy) -> bool:
        """Return True if the acceptance of an earlier request still allows this request to start.

        If its approval was revoked, mark the acceptance as used, so that the gate is asked again.
        If a body already runs under the acceptance, this request waits for that body's result.
        """
        now, terms = self._elicitations.clock(), _terms(accepted)
        if not still_applies(accepted, self._elicitations):
            return False
        if not terms.can_be_kept or terms.covers is None or not _is_recent(accepted, now=now):
            return True
        if self._elicitations.is_claimed(accepted) or await self.approvals.covers(by, terms.covers):
            return True

        def used_up(found: Elicitation) -> Elicitation:
            if self._elicitations.is_claimed(found):
                return found
            return replace(found, delivered_at=now, content=None, holds_key=False)

        found = await self._elicitations.change(accepted.id, used_up)
        return found.delivered_at is None

    async def answer(self, claimed: Elicitation) -> Json:
        """Return no content: an approval has none."""
        return {}

    async def written_with(
        self, accepted: Elicitation, answer: Json, ticks: Collection[str]
    ) -> Sequence[Value]:
        """Return the remembered approval to store, according to the boxes ticked on the page."""
        terms = _terms(accepted)
        if not terms.can_be_kept:
            return []
        is_wide, is_for_all = _resources(ticks)
        return [await self.approvals.given(accepted, terms, is_wide=is_wide, is_for_all=is_for_all)]

    def log(self, accepted: Elicitation, ticks: Collection[str]) -> None:
        is_wide, is_for_all = _resources(ticks)
        about = {"id": accepted.id, "tool": accepted.asked.tool}
        _log.info("approval.given", extra={**about, "is_wide": is_wide, "is_for_all": is_for_all})


def still_applies(current: Elicitation, elicitations: Elicitations) -> bool:
    """Return True if an accepted gate still applies to its call.

    An acceptance applies for a limited time, and as long as the call's body runs.
    """
    if not traits_of(current.kind).is_gate or current.status is not Status.ACCEPTED:
        return False
    return elicitations.is_claimed(current) or _is_recent(current, now=elicitations.clock())


def _is_recent(accepted: Elicitation, *, now: datetime) -> bool:
    valid_for = traits_of(accepted.kind).holds_for_its_call
    assert accepted.settled_at is not None
    assert valid_for is not None
    return now < accepted.settled_at + valid_for


def _resources(ticks: Collection[str]) -> tuple[bool, bool]:
    """Return two booleans: the approval is for any arguments, and for all the person's clients."""
    return "remember" in ticks, "all_clients" in ticks


def _terms(elicitation: Elicitation) -> FormTerms:
    return msgspec.convert(elicitation.asked.terms, FormTerms)
