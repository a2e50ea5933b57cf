"""Proofs: why an answer counts.

What could go wrong: an answer that nobody verified. So whoever completes an elicitation shows a
value that is made in one place alone, right after the verification that it is named for, and a
kind says which of them it goes by (`flows.elicitation.traits`). tests/test_house.py holds the list
of those places.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The base of all; `by` names who answered, where that is not the person who was asked."""

    # Whether it may still turn what ended into a kept yes (LATE): it is no person's click.
    may_be_late: ClassVar[bool] = False
    why: ClassVar[str | None] = None  # kept with the record
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged(Proof):
    """An authorization code was redeemed at the provider, for this account of ours."""

    may_be_late: ClassVar[bool] = True
    account: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedBefore(Proof):
    """The account is connected already, and the person allowed it, or it is allowed to the tool."""

    account: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidSession(Proof):
    """A checkout session of ours is paid, by a signed webhook or by asking the provider."""

    may_be_late: ClassVar[bool] = True
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OnPage(Proof):
    """The person answered on our page: in the right browser, with its CSRF token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InClient(Proof):
    """The client's own form came back, or it says that the person agreed to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedCode(Proof):
    """Code of the author's, or a service with its callback or return address, says so."""

    may_be_late: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedByAuthor(TrustedCode):
    """The same, by an id that the author gave to this question for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByModel(Proof):
    """The model answered, where the operator lets it."""

    why: ClassVar[str | None] = "answered by the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedByKey(Proof):
    """A program answered for the person, with an API key that names them."""

    why: ClassVar[str | None] = "answered with an API key"
