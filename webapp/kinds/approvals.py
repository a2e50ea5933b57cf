"""Approvals: what a person has allowed a tool, and for how long nobody asks again.

What could go wrong: a yes that reaches further than the person meant. It is the owner's, for the
client that asked, one version of one tool of one server and one digest of arguments, for 15
minutes; for any arguments only by a choice on our own page, and for an hour; for the owner's other
clients only by another.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from flows.elicitation.calling_client import seen
from flows.elicitation.states import RECORD_KEPT, Elicitation, Json
from flows.kinds.form import FormTerms
from flows.kinds.gate import APPROVED_FOR, REMEMBERED_FOR
from webapp.elicitations.question_kind import AskedBy
from webapp.elicitations.service import Elicitations
from webapp.records.ids import tail_of
from webapp.records.values import Approval

_log = logging.getLogger(__name__)

GIVEN, REVOKED = "given", "revoked"
ABOUT_CHARACTERS = 200


class Approvals:
    """By owner, and for an operator of all owners: listed, revoked one by one, cleared."""

    def __init__(self, elicitations: Elicitations) -> None:
        self._elicitations = elicitations

    async def covers(self, by: AskedBy, digest: str) -> bool:
        """Whether a call with these arguments needs no asking now."""
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
        """What is written with the yes to a gate.

        `is_wide`: whatever the arguments are; `is_for_all`: whichever client of the owner calls.
        """
        asked, now = approved.asked, self._elicitations.clock()
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
            covers=covered,
            about=about if by.version is None else f"version {by.version}, {about}",
            given_at=now,
            until=until,
            client=None if by.client is None else seen(by.client),
            is_for_all=is_for_all,
            erase_at=until + RECORD_KEPT,
            version=0 if found is None else found.version,
        )

    async def all(self, *, owner: str | None = None) -> list[Approval]:
        """Those in force, of one owner or of all, the latest first."""
        found = await self._elicitations.all(
            Approval, owner=owner, status=GIVEN, skips_unreadable=True
        )
        now = self._elicitations.clock()
        in_force = [one for one in found if now < one.until and (one.client or one.is_for_all)]
        return sorted(in_force, key=lambda approval: approval.given_at, reverse=True)

    async def revoke(self, id: str, *, owner: str | None = None, by: str | None = None) -> bool:
        """End one; `id` is whole or as the lists show it. False if there is none in force.

        `by` is told by the audit.
        """
        for approval in await self.all(owner=owner):
            if id in (approval.id, tail_of(approval)):
                return bool(await self._revoke([approval], by=by))
        return False

    async def clear(self, *, owner: str | None = None) -> int:
        """End all of one owner, or of everybody; how many there were."""
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

        ended = await self._elicitations.write_afresh(revoked)
        for one in approvals if ended else ():
            _log.info("approval.revoked", extra={"id": one.id, "tool": one.tool})
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


def _about(terms: FormTerms) -> str:
    given = cast("Mapping[str, Json]", terms.arguments or {})
    words = ", ".join(
        f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for name, value in given.items()
    )
    return words[:ABOUT_CHARACTERS] or "without arguments"
