"""Traits: what is true of every question of one kind, declared once; all else reads them here.

What could go wrong: an answer that is wiped while the call that asked still goes on, or that a
later call gets long after; so the call's own time and a later one's are told apart. Or a kind that
this process does not know, in a store that others serve too: it goes by nothing and keeps nothing.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from flows.elicitation.proof import (
    ApprovedByKey,
    ByApprover,
    ByModel,
    ConnectedBefore,
    Exchanged,
    InClient,
    NamedByAuthor,
    OnPage,
    PaidSession,
    Proof,
    TrustedCode,
)

PageName: TypeAlias = Literal["url", "account", "payment", "secret", "form", "confirm", "decision"]
_NO_TIME: Final = timedelta()
_A_DAY: Final = timedelta(days=1)
_TEN_MINUTES: Final = timedelta(minutes=10)
_TWO_MINUTES: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """One kind of question.

    `kept` is how long after the elicitation's own time an answer that nobody used stands for the
    same question, and a late one still counts: without it, none does. An account or a receipt stays
    in any case. `kept_from_answer` counts from the answer instead. `joined_from_answer` is how long
    a later call of the same may have it; the call that asked has it till it is wiped.
    """

    name: str
    page: PageName  # that shows it
    proofs: tuple[type[Proof], ...] = ()  # any of which completes it
    kept: timedelta = _NO_TIME
    kept_from_answer: timedelta | None = None
    joined_from_answer: timedelta | None = None
    # A yes to it stands before a tool's body: though wiped, it holds for every leg of its call
    # that starts this soon after it.
    holds_for_its_call: timedelta | None = None
    fits_client_form: bool = False  # it may be asked in the client's own form
    may_be_anonymous: bool = False  # it may be asked of a caller without a name
    stops_what_follows: bool = False  # a tool that forgot its `await` acts on a yes nobody gave
    is_anothers: bool = False  # to decide: whoever asked may only look on and withdraw it
    is_secret: bool = False  # no word of the answer may reach the model
    gives: Literal["account", "receipt"] | None = None  # what the tool gets, kept beyond the call

    @property
    def is_gate(self) -> bool:
        return self.holds_for_its_call is not None

    def goes_by(self, proof: Proof) -> bool:
        return isinstance(proof, self.proofs)


BUILT_IN: Final = (
    Traits(
        name="url",
        page="url",
        proofs=(OnPage, InClient, TrustedCode),
        kept=_TEN_MINUTES,
        may_be_anonymous=True,
    ),
    Traits(
        name="oauth",
        page="account",
        proofs=(Exchanged, ConnectedBefore),
        kept=_TEN_MINUTES,
        gives="account",
    ),
    Traits(
        name="payment",
        page="payment",
        proofs=(PaidSession,),
        kept=timedelta(days=30),
        may_be_anonymous=True,
        stops_what_follows=True,
        gives="receipt",
    ),
    Traits(
        name="secret",
        page="secret",
        proofs=(OnPage,),
        kept_from_answer=_TEN_MINUTES,
        is_secret=True,
    ),
    Traits(
        name="form",
        page="form",
        proofs=(OnPage, InClient, NamedByAuthor, ByModel, ApprovedByKey),
        kept_from_answer=_TEN_MINUTES,
        joined_from_answer=_TWO_MINUTES,
        fits_client_form=True,
        may_be_anonymous=True,
    ),
    Traits(
        name="confirm",
        page="confirm",
        proofs=(OnPage, InClient, ApprovedByKey),
        kept_from_answer=_TEN_MINUTES,
        joined_from_answer=_TWO_MINUTES,
        fits_client_form=True,
        may_be_anonymous=True,
        stops_what_follows=True,
    ),
    Traits(
        name="gate",
        page="confirm",
        proofs=(OnPage, InClient),
        kept_from_answer=_TWO_MINUTES,
        joined_from_answer=_TWO_MINUTES,
        holds_for_its_call=timedelta(minutes=15),
        fits_client_form=True,
        may_be_anonymous=True,
        stops_what_follows=True,
    ),
    # Decided by the approver that it names, over hours or days. A yes is for one use by the call
    # that asked, whose client may come back the next morning.
    Traits(
        name="decision",
        page="decision",
        proofs=(ByApprover,),
        kept_from_answer=_A_DAY,
        joined_from_answer=_A_DAY,
        stops_what_follows=True,
        is_anothers=True,
    ),
)
_declared: dict[str, Traits] = {traits.name: traits for traits in BUILT_IN}


def traits_of(kind: str) -> Traits:
    return _declared.get(kind) or Traits(name=kind, page="form")


@contextmanager
def declared(kinds: Mapping[str, Traits]) -> Generator[None]:
    """Within it, this process knows these kinds too. Raises ValueError for a name that is taken."""
    for name, traits in kinds.items():
        if _declared.get(name, traits) != traits:
            raise ValueError(f"There is a kind {name} already: give this one another name.")
    fresh = kinds.keys() - _declared.keys()
    _declared.update(kinds)
    try:
        yield
    finally:
        for name in fresh:
            del _declared[name]
