"""Decisions (kind `decision`): another person, the approver, accepts or declines.

The question belongs to the asker, as in every kind. An item in the inbox of the approver's name
refers to the question. The item belongs to another owner, so question and item are two writes.

Risks: one of the two rows is missing after a crash. The item is written first. If the process dies
before the question is written, the item refers to nothing and is skipped. The question's row alone
says whether the question is open, decided or withdrawn. After the decision the item is marked as
decided, so that lists of open items skip it. If that write is lost, the sweeper marks the item at
the question's end.

Another risk is a decision by somebody who must not decide: the asker, a former approver, a program
or the model. The only proof that settles a decision is created in `decide`, after it has checked
the person. No page of the question, client or API key can create that proof.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from flows.elicitation.states import RECORD_RETENTION, Asked, Completion, Elicitation, Json, Status
from flows.elicitation.traits import ByApprover
from flows.elicitation.voting import (
    MoreNeeded,
    Vote,
    is_enough,
    must_be_able_to_vote,
    terms_of,
    with_vote,
)
from flows.errors import InvalidAnswer, NotAllowed, NotPossible, Unreadable
from flows.kinds.form import Form, approver_of, voting_of
from flows.question import Link
from flows.shown import looks_of
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.question_kind import AskedBy, QuestionKind
from webapp.elicitations.service import Elicitations
from webapp.identity.approvers import Approvers, Deciding
from webapp.identity.identity import Caller
from webapp.records.ids import OWNER_TAG_CHARACTERS, RANDOM_BYTES, InboxItem, tail_of
from webapp.records.values import KINDS, Value
from webapp.stores import Conflict

LISTED_AT_MOST: Final = 20
REASON_CHARACTERS: Final = 500
DECIDED_SHOWN_FOR: Final = timedelta(days=30)
WITHDRAWN: Final = "withdrawn by whoever asked"
_ROWS_AT_ONCE: Final = 50
_ROWS_AT_MOST: Final = 1000  # read for one page at most
_DECIDED: Final = "decided"
_JOINERS: Final = "\u200c\u200d"  # invisible characters in Persian words and in emoji
_AT_LAST: Final = datetime.max.replace(tzinfo=UTC)  # a time after every escalation
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDecision:
    """A question in an inbox. `id` is the id of its inbox item, used in page addresses."""

    id: str
    approver: str
    asked: Elicitation = field(repr=False)


class Decisions(QuestionKind):
    """The kind `decision`, of a Form with an approver."""

    def __init__(self, *, elicitations: Elicitations, approvers: Approvers) -> None:
        self._elicitations = elicitations
        self.approvers = approvers

    def facts(self, request: Form) -> Json:
        """Return the request's facts. Raises NotConfigured if the approver's name is unknown."""
        assert request.approver is not None
        self.approvers.require_approver(request.approver)
        return request.facts()

    def must_be_decidable(self, request: Any, caller: Caller) -> None:
        """Raise NotConfigured if no person could decide a question of this caller."""
        if isinstance(request, Form) and request.approver is not None:
            self.approvers.must_decide_for(request.approver, caller)

    async def asked(self, request: Form, asked: Asked, *, link: Link, by: AskedBy) -> Asked:
        assert request.approver is not None
        voting = self.approvers.voting(request.approver, now=self._elicitations.clock())
        terms = {"asker": by.asker, **terms_of(voting)}
        return replace(asked, terms={**msgspec.to_builtins(request.terms), **terms})

    async def answer(self, claimed: Elicitation) -> Json:
        return {}

    def label(self, elicitation: Elicitation) -> str:
        return approver_of(elicitation) or ""

    async def announce(self, asked: Elicitation) -> None:
        """Add the question to the inbox, before the question itself is stored."""
        voting, elicitations = voting_of(asked), self._elicitations
        assert voting is not None
        for name in voting.names(_AT_LAST):
            owner = elicitations.rows.ids.approver(name)
            id = elicitations.rows.ids.inbox(
                owner, now=asked.created_at, random=elicitations.owners.random(RANDOM_BYTES)
            )
            item = InboxItem(
                id=id,
                owner=owner,
                elicitation_id=asked.id,
                expires_at=asked.expires_at,
                erase_at=asked.expires_at + RECORD_RETENTION,
                opens_at=None if name == voting.approver else voting.escalates_at,
            )
            await elicitations.write(item)

    async def inbox(
        self, approver: str, *, is_decided: bool = False, after: str | None = None
    ) -> tuple[Sequence[PendingDecision], str | None]:
        """Return waiting or decided questions, the latest first, and the cursor of the next page.

        `after` and the cursor are ids without the owner's tag. The cursor is None at the end.
        """
        elicitations = self._elicitations
        owner = elicitations.rows.ids.approver(approver)
        status, found = _DECIDED if is_decided else "waiting", list[PendingDecision]()
        last = None if after is None else owner + after
        for _ in range(_ROWS_AT_MOST // _ROWS_AT_ONCE):
            page = await elicitations.store.list(
                KINDS[InboxItem], owner=owner, status=status, after=last, limit=_ROWS_AT_ONCE
            )
            for record in page:
                last = record.id
                try:
                    item = await elicitations.rows.open(record, InboxItem)
                except Unreadable:
                    continue
                waiting = await self._waiting(item, approver)
                if waiting is not None and self._is_shown(waiting.asked, is_decided=is_decided):
                    found.append(waiting)
                if len(found) == LISTED_AT_MOST:
                    return found, last[OWNER_TAG_CHARACTERS:]
            if len(page) < _ROWS_AT_ONCE:
                return found, None
        return found, None if last is None else last[OWNER_TAG_CHARACTERS:]

    async def read(self, approver: str, id: str) -> PendingDecision | None:
        """Return the item with this id in the inbox of this name."""
        owner = self._elicitations.rows.ids.approver(approver)
        item = await self._elicitations.read(InboxItem, owner=owner, id=owner + id)
        return None if item is None else await self._waiting(item, approver)

    def is_open(self, asked: Elicitation) -> bool:
        return not asked.status.is_final and self._elicitations.clock() < asked.expires_at

    async def decide(
        self,
        waiting: PendingDecision,
        person: Deciding,
        *,
        accepts: bool,
        reason: str | None = None,
    ) -> Elicitation:
        """Decide the question, unless another approver decided it before. Return the question.

        The tool receives `reason` with a decline, and with an approval if the settings allow
        comments.

        Raises:
            NotAllowed: The person may not decide.
            InvalidAnswer: The reason is too long.
        """
        asked, comment = waiting.asked, comment_in(reason)
        self._must_be_approver(waiting, person)
        if len(comment or "") > REASON_CHARACTERS:
            raise InvalidAnswer([("reason", f"has more than {REASON_CHARACTERS} characters")])
        vote = self._vote(person, comment=comment)
        voting = voting_of(asked)
        if voting is not None and self.is_open(asked):
            if voting.comment == "none":
                vote = replace(vote, comment=None)
            if not (accepts and voting.has_approved(person.owner)):
                must_be_able_to_vote(voting, vote)
        proof = ByApprover(approver=waiting.approver, vote=vote)
        work = self._decide(asked, proof, accepts=accepts, reason=comment)
        ended = await self._elicitations.run_to_completion(work)
        if ended.status.is_final:
            await self.close_item(ended)
        return ended

    async def delegate(self, waiting: PendingDecision, person: Deciding, to: str) -> Elicitation:
        """Hand the question to another listed person, and return the question.

        `person` can then no longer decide it. `to` is the other person's name in the settings.
        Raises NotAllowed, and NotPossible if the question has ended.
        """
        self._must_be_approver(waiting, person)
        named = self.approvers.colleagues(person, waiting.asked)
        tag = next((tag for tag, name in named.items() if name == to), None)
        vote = replace(self._vote(person, comment=None), to=tag or "", to_label=to)
        counted = _counted(waiting.asked, vote)
        if not self.approvers.has_enough_without(person, waiting.asked):
            raise NotAllowed("Too few people could approve this request without you.")
        if tag is None:
            raise NotAllowed(
                "The request cannot be handed to this person. Choose a person who is "
                f"listed in [approvers.{waiting.approver}], and not the person who asked."
            )

        def handed(current: Elicitation) -> Elicitation:
            if not self.approvers.has_enough_without(person, current):
                raise NotAllowed("Too few people could approve this request without you.")
            return _counted(current, vote)

        changed = await self._elicitations.run_to_completion(
            self._elicitations.change(counted.id, handed)
        )
        about = {"id": counted.id, "approver": waiting.approver}
        _log.info("approval.delegated", extra=about)
        return changed

    def _must_be_approver(self, waiting: PendingDecision, person: Deciding) -> None:
        if waiting.approver not in self.approvers.names_of(person):
            raise NotAllowed(
                "You can't decide this, or you signed in too long ago. Sign in again. If that "
                "doesn't help, ask the operator of the server."
            )
        if self.approvers.is_asker(person, waiting.asked):
            raise NotAllowed("You asked for this yourself, so somebody else has to decide it.")

    def _vote(self, person: Deciding, *, comment: str | None) -> Vote:
        return Vote(
            owner=person.owner,
            known_by=person.known_by.value,
            name=person.name,
            label=person.label,
            issuer=person.issuer,
            at=self._elicitations.clock(),
            comment=comment,
        )

    def is_same_answer(self, ended: Elicitation, person: Deciding, *, accepts: bool) -> bool:
        """Return True if this person gave the same answer, now or before, and the answer counts."""
        by, voting = ended.decided_by, voting_of(ended)
        if accepts and voting is not None and voting.has_approved(person.owner):
            return not ended.status.is_final or ended.status is Status.ACCEPTED
        is_same = (ended.status is Status.ACCEPTED) == accepts
        return by is not None and by.name == person.name and is_same

    async def give_up(self, asked: Elicitation) -> Elicitation:
        """End the question for its asker. A decision is withdrawn and removed from the inbox."""
        if approver_of(asked) is None:
            return await self._elicitations.end(asked, Status.DECLINED)
        ended = await self._elicitations.end(asked, Status.CANCELLED, why=WITHDRAWN)
        await self.close_item(asked)
        return ended

    async def fall_due(self, item: InboxItem) -> None:
        """Mark the item if its question has ended or is missing, else record its escalation."""
        asked = await self._elicitations.get(item.elicitation_id)
        if asked is None or asked.status.is_final:
            await self._elicitations.write(replace(item, status=_DECIDED))
        elif item.opens_at is not None:
            await self._elicitations.write(replace(item, opens_at=None))
            voting = voting_of(asked)
            to = None if voting is None else voting.escalates_to
            _log.info("approval.escalated", extra={"id": asked.id, "approver": to})

    async def _decide(
        self, asked: Elicitation, proof: ByApprover, *, accepts: bool, reason: str | None
    ) -> Elicitation:
        elicitations, is_decided = self._elicitations, False
        if accepts:
            is_decided = await self._approve(asked, proof)
        elif not self.is_open(asked):
            return await elicitations.end(asked, Status.EXPIRED)
        else:
            try:
                await elicitations.settle(
                    asked.id,
                    Status.DECLINED,
                    why=reason,
                    proof=proof,
                    also=partial(_must_still_vote, vote=proof.vote),
                )
                is_decided = True
            except NotPossible:
                pass  # another approver was first, or the question was withdrawn
        if is_decided:
            about = {"id": asked.id, "approver": proof.approver, "accepts": accepts}
            _log.info("approval.decided", extra=about)
        return await elicitations.get(asked.id) or asked

    async def _approve(self, asked: Elicitation, proof: ByApprover) -> bool:
        """Count the approval. Return True if this approval decided the question."""
        elicitations = self._elicitations
        while True:  # a round fails only if another person voted in the meantime
            try:
                done = await complete_elicitation(elicitations, asked.id, {}, proof)
            except MoreNeeded:
                pass
            else:
                return done is Completion.ACCEPTED
            try:
                counted = await elicitations.change(
                    asked.id, partial(_counted_before_the_last, vote=proof.vote)
                )
            except NotPossible:
                return False
            voting = voting_of(counted)
            if voting is not None and voting.has_approved(proof.vote.owner):
                about = {"id": asked.id, "approver": proof.approver}
                _log.info("approval.counted", extra=about)
                return False

    async def close_item(self, asked: Elicitation) -> None:
        """Mark the items of an ended question, so that lists of open items skip them."""
        voting = voting_of(asked)
        for name in () if voting is None else voting.names(_AT_LAST):
            await self._close_item(asked, name)

    async def _close_item(self, asked: Elicitation, approver: str) -> None:
        elicitations = self._elicitations
        owner = elicitations.rows.ids.approver(approver)
        moment = elicitations.rows.ids.inbox_moment(owner, now=asked.created_at)
        page = await elicitations.store.list(
            KINDS[InboxItem], owner=owner, status="waiting", after=moment, limit=_ROWS_AT_ONCE
        )
        for record in page:
            if not record.id.startswith(moment):
                break
            item = await elicitations.read(InboxItem, owner=owner, id=record.id)
            if item is not None and item.elicitation_id == asked.id:
                await self._mark(PendingDecision(id=tail_of(item), approver=approver, asked=asked))

    async def _mark(self, waiting: PendingDecision) -> None:
        owner = self._elicitations.rows.ids.approver(waiting.approver)
        item = await self._elicitations.read(InboxItem, owner=owner, id=owner + waiting.id)
        if item is not None and item.status != _DECIDED:
            try:
                await self._elicitations.write(replace(item, status=_DECIDED))
            except Conflict:
                return  # marked by another process a moment ago

    async def _waiting(self, item: InboxItem, approver: str) -> PendingDecision | None:
        try:
            asked = await self._elicitations.get(item.elicitation_id)
        except Unreadable:
            return None
        voting = None if asked is None else voting_of(asked)
        if asked is None or voting is None:
            return None
        if approver not in voting.names(self._elicitations.clock()):
            return None
        return PendingDecision(id=item.id[OWNER_TAG_CHARACTERS:], approver=approver, asked=asked)

    def _is_shown(self, asked: Elicitation, *, is_decided: bool) -> bool:
        if not is_decided:
            return self.is_open(asked)
        ended = asked.settled_at or asked.expires_at
        return self._elicitations.clock() < ended + DECIDED_SHOWN_FOR


def _counted(elicitation: Elicitation, vote: Vote) -> Elicitation:
    """Return the elicitation with the vote. Raises NotPossible or NotAllowed."""
    if elicitation.status.is_final or vote.at >= elicitation.expires_at:
        raise NotPossible(status=elicitation.status, wanted=Status.ACCEPTED)
    return replace(elicitation, request=with_vote(elicitation.request, vote))


def _counted_before_the_last(elicitation: Elicitation, *, vote: Vote) -> Elicitation:
    """Return the elicitation with the vote, or unchanged if the vote is the last one needed."""
    counted = _counted(elicitation, vote)
    return elicitation if is_enough(counted.request) else counted


async def _must_still_vote(declined: Elicitation, *, vote: Vote) -> Sequence[Value]:
    """Raise NotAllowed if the person has delegated the question in the meantime."""
    voting = voting_of(declined)
    if voting is not None:
        must_be_able_to_vote(voting, vote)
    return ()


def comment_in(reason: str | None) -> str | None:
    """Return a comment or reason on one line, without control characters, or None if it is empty.

    Text that looks empty, such as a zero-width space, counts as empty.
    """
    plain = (
        each for each in reason or "" if each.isprintable() or each in _JOINERS or each.isspace()
    )
    words = " ".join("".join(plain).split())
    return words if looks_of(words) else None
