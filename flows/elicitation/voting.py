"""Voting: the approvals that a question needs from its approvers, and the approvals it has.

A question copies the settings of its approvers when it is asked, so later changes of the settings
do not apply to it. The votes are stored in the question's terms, under a key that earlier versions
of this project do not read. A process of such a version keeps the terms, but finds no approver in
them. It therefore lets nobody decide a question whose settings it does not know.

Risks: one person counts as two. A person is compared by owner tag, and all approvals of a question
have to come from people who are identified by the same method and the same issuer. Each change is
computed from the stored question and written by compare-and-set, so two votes at the same moment
are both counted.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from flows.errors import ElicitError, NotAllowed

_TERM = "voting"


class Vote(Struct, frozen=True, kw_only=True):
    """An approval, or a delegation to the person `to` (an owner tag), who is shown as `to_label`.

    `issuer` is None without a sign-in, and in votes that earlier versions stored.
    """

    owner: str
    known_by: str
    name: str
    label: str
    at: datetime
    issuer: str | None = None
    comment: str | None = None
    to: str | None = None
    to_label: str | None = None


class Voting(Struct, frozen=True, kw_only=True):
    """The approvers of a question, how many have to approve, and the votes in their order."""

    approver: str
    needs: int = 1
    comment: Literal["none", "optional", "required"] = "none"
    lets_delegate: bool = False
    escalates_to: str | None = None
    escalates_at: datetime | None = None
    votes: tuple[Vote, ...] = ()

    @property
    def is_plain(self) -> bool:
        """True if one approver decides and nothing else is set: no vote is stored then."""
        return self == Voting(approver=self.approver)

    @property
    def approvals(self) -> tuple[Vote, ...]:
        return tuple(vote for vote in self.votes if vote.to is None)

    @property
    def comments(self) -> tuple[str, ...]:
        return tuple(vote.comment for vote in self.approvals if vote.comment)

    @property
    def progress(self) -> str:
        """A sentence with the numbers of approvals needed and given, or "" if one is enough."""
        if self.needs == 1:
            return ""
        return f"Needs {self.needs} approvals, {len(self.approvals)} given."

    @property
    def audit_text(self) -> str | None:
        """The state of an open question as text for the audit. None before the first vote."""
        if not self.votes:
            return None
        given, handed = len(self.approvals), len(self.votes) - len(self.approvals)
        return f"approval {given} of {self.needs}" + (f", delegated {handed}x" if handed else "")

    def names(self, now: datetime) -> tuple[str, ...]:
        """Return the names of the approvers who can decide at this time."""
        if self.escalates_to is None or self.escalates_at is None or now < self.escalates_at:
            return (self.approver,)
        return (self.approver, self.escalates_to)

    def has_approved(self, owner: str) -> bool:
        return any(vote.owner == owner for vote in self.approvals)

    def has_delegated(self, owner: str) -> bool:
        return any(vote.owner == owner and vote.to is not None for vote in self.votes)


class AskedWithTerms(Protocol):
    """The stored question: `flows.elicitation.states.Asked`."""

    @property
    def terms(self) -> Any: ...


AskedT = TypeVar("AskedT", bound=AskedWithTerms)


class MoreNeeded(ElicitError):
    """The question needs the approval of another person as well."""

    def __init__(self) -> None:
        super().__init__("The question needs the approval of another person as well.")


def voting_in(terms: Any) -> Voting | None:
    """Return the voting of a question's terms, or None if the person who asked decides."""
    if not isinstance(terms, Mapping):
        return None
    facts = cast("Mapping[str, Any]", terms)
    if _TERM in facts:
        return msgspec.convert(facts[_TERM], Voting)
    name = facts.get("approver")
    return None if name is None else Voting(approver=str(name))


def terms_of(voting: Voting) -> dict[str, Any]:
    """Return the terms that store the voting."""
    if voting.is_plain:
        return {"approver": voting.approver}
    return {_TERM: msgspec.to_builtins(voting)}


def with_vote(asked: AskedT, vote: Vote) -> AskedT:
    """Return the question with this vote. A person's second approval changes nothing.

    Raises:
        NotAllowed: The person has delegated the question, a comment is missing, or an earlier
            approval is from a person who is identified by another method.
    """
    voting = voting_in(asked.terms)
    if voting is None or (voting.has_approved(vote.owner) and vote.to is None):
        return asked
    must_be_able_to_vote(voting, vote)
    if may_have_approved(voting, known_by=vote.known_by, issuer=vote.issuer):
        raise NotAllowed(
            "An earlier approval is from a person who is identified by another method or another "
            "issuer, and you may be that person. Sign in by the same method as the other approver."
        )
    if voting.is_plain:
        return asked
    rest = {key: value for key, value in asked.terms.items() if key not in (_TERM, "approver")}
    counted = replace(voting, votes=(*voting.votes, vote))
    changed: Any = replace(cast("Any", asked), terms={**rest, **terms_of(counted)})
    return cast("AskedT", changed)


def may_have_approved(voting: Voting, *, known_by: str, issuer: str | None) -> bool:
    """Return True if this person may have approved before, by another sign-in method or issuer."""
    return any(
        one.known_by != known_by or (one.issuer != issuer and None not in (one.issuer, issuer))
        for one in voting.approvals
    )


def must_be_able_to_vote(voting: Voting, vote: Vote) -> None:
    """Raise NotAllowed if the person may not vote in this way."""
    if voting.has_delegated(vote.owner):
        raise NotAllowed("You handed this request to another person, so you can't decide it.")
    if vote.to is not None:
        if not voting.lets_delegate:
            raise NotAllowed(
                "Requests to these approvers can't be delegated: `delegate = true` in "
                f"[approvers.{voting.approver}] is not set."
            )
        if voting.has_approved(vote.owner) or voting.has_approved(vote.to):
            raise NotAllowed("You, or the other person, have already approved this request.")
        if voting.has_delegated(vote.to):
            raise NotAllowed("The other person has already handed this request on.")
    elif voting.comment == "required" and not vote.comment:
        raise NotAllowed("A comment is required here: say why you decide in this way.")


def is_enough(asked: AskedWithTerms) -> bool:
    """Return True if the question has all approvals that it needs."""
    voting = voting_in(asked.terms)
    return voting is None or voting.is_plain or len(voting.approvals) >= voting.needs
