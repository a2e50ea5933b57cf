"""Traits: the properties of each kind of question, and the proofs for which it accepts an answer.

Risks: an answer is erased while the call that asked still runs, or a later call gets an old answer.
There are therefore separate times for the call itself and for later calls. A shared store can have
questions of a kind that only another process knows. In this process, such a kind accepts no proof
and stores no answer.

Risks: an unverified answer is accepted. Code that completes an elicitation therefore passes a
proof, which is created in one place only, directly after the verification that it is named for.
Each kind lists the proofs that it accepts. tests/test_structure.py lists the places that create
proofs.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import ClassVar, Final, Literal, TypeAlias

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
    """The provider issued a token for a code, or accepted the API key in a test request."""

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
    """The model answered, and the operator's settings allow the model to answer."""

    why: ClassVar[str | None] = "answered by the model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovedByKey(Proof):
    """A program answered for the person, with an API key that names the person."""

    why: ClassVar[str | None] = "answered with an API key"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByApprover(Proof):
    """An identified approver decided, who is not the person who asked."""

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


PageName: TypeAlias = Literal["url", "account", "payment", "secret", "form", "confirm", "decision"]
_NO_TIME: Final = timedelta()
_A_DAY: Final = timedelta(days=1)
_TEN_MINUTES: Final = timedelta(minutes=10)
_TWO_MINUTES: Final = timedelta(minutes=2)


@dataclass(frozen=True, kw_only=True)
class Traits:
    """The properties of one kind of question.

    - `stored_for`: how long after the question's timeout a late answer still counts, and an unused
      answer stays stored for the same question. If zero, late answers do not count. Accounts and
      receipts stay stored in any case.
    - `stored_for_after_answer`: how long after the answer an unused answer stays stored. If set, it
      replaces the storage time of `stored_for`.
    - `joined_from_answer`: how long after the answer a later, equal call can use the answer. The
      call that asked can use the answer until it is erased.
    """

    name: str
    page: PageName  # page that shows the question
    proofs: tuple[type[Proof], ...] = ()  # any of these proofs completes the question
    stored_for: timedelta = _NO_TIME
    stored_for_after_answer: timedelta | None = None
    joined_from_answer: timedelta | None = None
    # Set for gates only. A call can have several requests. For this long after the approval, any of
    # them may start the tool's body, even if the answer's content is already erased.
    holds_for_its_call: timedelta | None = None
    fits_client_form: bool = False  # the client's own form may ask it
    may_be_anonymous: bool = False  # an anonymous caller may be asked
    # if its `await` is missing, later questions and actions are refused
    stops_what_follows: bool = False
    # another person decides; the person who asked may only view and withdraw it
    is_anothers: bool = False
    is_secret: bool = False  # the answer must never reach the model
    takes_key: bool = False  # the person types a key of the account on this server's page
    # what the tool receives, stored beyond the call
    gives: Literal["account", "receipt"] | None = None

    @cached_property
    def is_gate(self) -> bool:
        return self.holds_for_its_call is not None

    def accepts_proof(self, proof: Proof) -> bool:
        return isinstance(proof, self.proofs)


BUILT_IN: Final = (
    Traits(
        name="url",
        page="url",
        proofs=(OnPage, InClient, TrustedCode),
        stored_for=_TEN_MINUTES,
        may_be_anonymous=True,
    ),
    Traits(
        name="oauth",
        page="account",
        proofs=(Exchanged, ConnectedBefore),
        stored_for=_TEN_MINUTES,
        gives="account",
    ),
    Traits(
        name="api_key",
        page="account",
        proofs=(Exchanged, ConnectedBefore),
        stored_for=_TEN_MINUTES,
        gives="account",
        takes_key=True,
    ),
    Traits(
        name="payment",
        page="payment",
        proofs=(PaidSession,),
        stored_for=timedelta(days=30),
        may_be_anonymous=True,
        stops_what_follows=True,
        gives="receipt",
    ),
    Traits(
        name="secret",
        page="secret",
        proofs=(OnPage,),
        stored_for_after_answer=_TEN_MINUTES,
        is_secret=True,
    ),
    Traits(
        name="form",
        page="form",
        proofs=(OnPage, InClient, NamedByAuthor, ByModel, ApprovedByKey),
        stored_for_after_answer=_TEN_MINUTES,
        joined_from_answer=_TWO_MINUTES,
        fits_client_form=True,
        may_be_anonymous=True,
    ),
    Traits(
        name="confirm",
        page="confirm",
        proofs=(OnPage, InClient, ApprovedByKey),
        stored_for_after_answer=_TEN_MINUTES,
        joined_from_answer=_TWO_MINUTES,
        fits_client_form=True,
        may_be_anonymous=True,
        stops_what_follows=True,
    ),
    Traits(
        name="gate",
        page="confirm",
        proofs=(OnPage, InClient),
        stored_for_after_answer=_TWO_MINUTES,
        joined_from_answer=_TWO_MINUTES,
        holds_for_its_call=timedelta(minutes=15),
        fits_client_form=True,
        may_be_anonymous=True,
        stops_what_follows=True,
    ),
    # Decided by the named approver, over hours or days. An approval is for one use by the call that
    # asked, whose client may return the next morning.
    Traits(
        name="decision",
        page="decision",
        proofs=(ByApprover,),
        stored_for_after_answer=_A_DAY,
        joined_from_answer=_A_DAY,
        stops_what_follows=True,
        is_anothers=True,
    ),
)


class _Declared(dict[str, Traits]):
    def __missing__(self, kind: str) -> Traits:
        return Traits(name=kind, page="form")


_declared: Final = _Declared({traits.name: traits for traits in BUILT_IN})
# A bound method of the dict instead of a function that calls it, to save time: one tool call looks
# up traits about 50 times.
traits_of: Final[Callable[[str], Traits]] = _declared.__getitem__


@contextmanager
def declared(kinds: Mapping[str, Traits]) -> Generator[None]:
    """Declare more kinds within this block. Raises ValueError if a name is already used."""
    for name, traits in kinds.items():
        if _declared.get(name, traits) != traits:
            raise ValueError(f"A kind named {name} already exists. Give this kind another name.")
    fresh = kinds.keys() - _declared.keys()
    _declared.update(kinds)
    try:
        yield
    finally:
        for name in fresh:
            del _declared[name]
