"""Proofs: the reasons to accept an answer.

Risks: an unverified answer is accepted. Code that completes an elicitation therefore passes a
proof, which is created in one place only, directly after the verification that it is named for.
Each kind lists the proofs that it accepts (`flows.elicitation.traits`). tests/test_house.py lists
the places.
"""

from dataclasses import dataclass
from typing import ClassVar

from msgspec import Struct

from flows.elicitation.voting import AskedT, MoreNeeded, Vote, is_enough, with_vote


class Decider(Struct, frozen=True, kw_only=True):
    """The person who decided for another person.

    `name` is the person as the operator configured them, `label` is the displayed text. The label
    is never compared.
    """

    name: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The base class of all proofs. `by` names who answered, if not the person who was asked."""

    # True if this proof can accept a question that has already ended (see `states.LATE`). A
    # person's click cannot.
    may_be_late: ClassVar[bool] = False
    why: ClassVar[str | None] = None  # stored with the record
    by: str | None = None

    @property
    def decider(self) -> Decider | None:
        """The person who decided, if that was not the person who asked."""
        return None

    def counted(self, asked: AskedT) -> AskedT:
        """Return the question with this answer counted. Raises if the answer is not enough."""
        return asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged(Proof):
    """An authorization code was redeemed at the provider for this account."""

    may_be_late: ClassVar[bool] = True
    account: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedBefore(Proof):
    """The account is already connected, and the person or an earlier choice allows its use."""

    account: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidSession(Proof):
    """A checkout session is paid, according to a signed webhook or a fetch from the provider."""

    may_be_late: ClassVar[bool] = True
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPage(Proof):
    """The person answered on our page, in the right browser and with its CSRF token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InClient(Proof):
    """The client returned its own form, or reported that the person agreed to open the link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedCode(Proof):
    """The author's code completed the question, or an external service reported completion.

    A service reports completion when it calls the callback URL or sends the browser to the return
    URL.
    """

    may_be_late: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedByAuthor(TrustedCode):
    """The author's code completed the question by an `elicitation_id` that the author chose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByModel(Proof):
    """The model answered, which the operator allowed."""

    why: ClassVar[str | None] = "answered by the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedByKey(Proof):
    """A program answered for the person, with an API key that names the person."""

    why: ClassVar[str | None] = "answered with an API key"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByApprover(Proof):
    """An approver decided, identified and different from the person who asked."""

    approver: str
    vote: Vote

    @property
    def decider(self) -> Decider:
        return Decider(name=self.vote.name, label=self.vote.label)

    def counted(self, asked: AskedT) -> AskedT:
        """Return the question with this vote. Raises MoreNeeded or NotAllowed."""
        counted = with_vote(asked, self.vote)
        if not is_enough(counted):
            raise MoreNeeded
        return counted
