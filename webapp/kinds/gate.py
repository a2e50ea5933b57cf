"""Gates (kind `gate`): an approval before a tool's body starts, new or remembered.

Risks: an approval is used long after it was given or revoked, because its call asks other questions
and continues for days. Each request of the call therefore checks the approval again.

Risks: an approval covers more than the person intended. An approval belongs to one owner, client,
server, tool version and digest of arguments, and lasts 15 minutes. The person can extend the
approval on our own page only, with one box for any arguments (for an hour) and another box for all
the owner's clients.
"""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import cast

import msgspec
from msgspec.structs import replace

from flows.elicitation.states import RECORD_RETENTION, Elicitation, Json, Status
from flows.elicitation.tool_call import seen
from flows.elicitation.traits import traits_of
from flows.kinds.form import Form, FormTerms
from flows.kinds.gate import APPROVED_FOR, REMEMBERED_FOR, GatePolicy
from webapp.elicitations.question_kind import AskedBy
from webapp.elicitations.service import Elicitations
from webapp.kinds.page_kind import PageKind
from webapp.records.ids import tail_of
from webapp.records.values import Approval, Value

_log = logging.getLogger(__name__)
# the name in the log lines of earlier versions
_log_of_approvals = logging.getLogger("webapp.kinds.approvals")


GIVEN, REVOKED = "given", "revoked"
ABOUT_CHARACTERS = 200


class Gates(PageKind):
    """The kind `gate`, of a Form that is a gate."""

    can_answer_without_asking = True

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
        about = {"id": accepted.id, "tool": accepted.request.tool}
        _log.info("approval.given", extra={**about, "is_wide": is_wide, "is_for_all": is_for_all})


def still_applies(current: Elicitation, elicitations: Elicitations) -> bool:
    """Return True if an accepted gate still applies to its call.

    An acceptance applies for a limited time, and as long as the call's body runs.
    """
    if not traits_of(current.kind).is_gate or current.status is not Status.ACCEPTED:
        return False
    return elicitations.is_claimed(current) or _is_recent(current, now=elicitations.clock())


class Approvals:
    """The stored approvals, which an owner or an operator can list, revoke and clear."""

    def __init__(self, elicitations: Elicitations) -> None:
        self._elicitations = elicitations

    async def covers(self, by: AskedBy, digest: str) -> bool:
        """Return True if a call with these arguments is already approved."""
        now = self._elicitations.clock()
        for covered in (digest, None):
            for is_for_all in (False, True):
                found = await self._find(by, covered, is_for_all=is_for_all)
                if found is not None and found.status == GIVEN and now < found.until:
                    return True
        return False

    async def given(
        self, approved: Elicitation, terms: FormTerms, *, is_wide: bool, is_for_all: bool
    ) -> Approval:
        """Return the approval to store with an accepted gate.

        `is_wide`: for any arguments. `is_for_all`: for any client of the owner.
        """
        asked, now = approved.request, self._elicitations.clock()
        covered = None if is_wide else terms.covers
        until = now + (REMEMBERED_FOR if is_wide else APPROVED_FOR)
        by = AskedBy(
            owner=approved.owner,
            server=asked.server,
            tool=asked.tool,
            version=asked.version,
            client=asked.calling_client,
        )
        found = await self._find(by, covered, is_for_all=is_for_all)
        about = "whatever it is given" if is_wide else _about(terms)
        return Approval(
            id=self._id(by, covered, is_for_all=is_for_all),
            owner=approved.owner,
            server=asked.server,
            tool=asked.tool,
            tool_title=asked.tool_title,
            covers=covered,
            about=about if by.version is None else f"version {by.version}, {about}",
            given_at=now,
            until=until,
            client=None if by.client is None else seen(by.client),
            is_for_all=is_for_all,
            erase_at=until + RECORD_RETENTION,
            version=0 if found is None else found.version,
        )

    async def all(self, *, owner: str | None = None) -> list[Approval]:
        """Return the valid approvals of one owner, or of all owners, the latest first."""
        found = await self._elicitations.all(
            Approval, owner=owner, status=GIVEN, skips_unreadable=True
        )
        now = self._elicitations.clock()
        in_force = [one for one in found if now < one.until and (one.client or one.is_for_all)]
        return sorted(in_force, key=lambda approval: approval.given_at, reverse=True)

    async def revoke(self, id: str, *, owner: str | None = None, by: str | None = None) -> bool:
        """Revoke an approval. Return False if no approval with this id is in force.

        `id` is the full id, or the short id that lists show. `by` is recorded in the audit log.
        """
        for approval in await self.all(owner=owner):
            if id in (approval.id, tail_of(approval)):
                return bool(await self._revoke([approval], by=by))
        return False

    async def clear(self, *, owner: str | None = None) -> int:
        """Revoke all approvals of one owner, or of all owners. Return their number."""
        found = await self.all(owner=owner)
        return sum([await self._revoke([approval]) for approval in found])

    async def _revoke(self, approvals: Sequence[Approval], *, by: str | None = None) -> int:
        async def revoked() -> list[Approval]:
            read = [
                await self._elicitations.read(Approval, owner=one.owner, id=one.id)
                for one in approvals
            ]
            return [
                replace(one, status=REVOKED, revoked_by=by)
                for one in read
                if one and one.status == GIVEN
            ]

        ended = await self._elicitations.write_rebuilt(revoked)
        for one in approvals if ended else ():
            _log_of_approvals.info("approval.revoked", extra={"id": one.id, "tool": one.tool})
        return len(ended)

    async def _find(self, by: AskedBy, covered: str | None, *, is_for_all: bool) -> Approval | None:
        id = self._id(by, covered, is_for_all=is_for_all)
        return await self._elicitations.read(Approval, owner=by.owner, id=id)

    def _id(self, by: AskedBy, covered: str | None, *, is_for_all: bool) -> str:
        pepper = self._elicitations.owners.pepper
        what = ("any",) if covered is None else ("these", covered)
        client = "" if is_for_all or by.client is None else by.client.key
        what = ("for all" if is_for_all else "for", client, *what)
        if by.version is not None:
            what = (*what, "version", by.version)
        return by.owner + pepper.tag("approval", by.server, by.tool, *what, size=18)


def _is_recent(accepted: Elicitation, *, now: datetime) -> bool:
    valid_for = traits_of(accepted.kind).holds_for_its_call
    assert accepted.settled_at is not None
    assert valid_for is not None
    return now < accepted.settled_at + valid_for


def _resources(ticks: Collection[str]) -> tuple[bool, bool]:
    """Return two booleans: the approval is for any arguments, and for all the person's clients."""
    return "remember" in ticks, "all_clients" in ticks


def _terms(elicitation: Elicitation) -> FormTerms:
    return msgspec.convert(elicitation.request.terms, FormTerms)


def _about(terms: FormTerms) -> str:
    given = cast("Mapping[str, Json]", terms.arguments or {})
    words = ", ".join(
        f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in given.items()
    )
    return words[:ABOUT_CHARACTERS] or "without arguments"
