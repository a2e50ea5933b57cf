"""Audit entries: the short record of each change of a row, without the answer.

Risks: a change is recorded twice or not at all. So each row has a state word (`word_of`), and an
entry is made when a write changes the word. Leases and token refreshes do not change the word.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Generic, NamedTuple, Protocol, TypeVar, cast

from msgspec import Struct
from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Status
from flows.kinds.form import voting_of
from flows.oauth.connection import Connection
from flows.payments.claims import DISPUTED
from flows.payments.claims import audit_state_of as payment_word
from flows.payments.receipt import Payment, ReceiptStatus
from webapp.records.owners import SERVICE

REMEMBERED_AT_MOST = 10_000
_CHARACTERS_AT_MOST: Final = 100  # of each text that other people chose
AUDITED: Final = frozenset({"elicitation", "payment", "account", "approval", "secret"})
_USED: Final = "used"  # a member of a team has used the team's account
_OF_SERVICE: Final = "registration"  # its changes make events, but no audit entries
_ASKED = "asked"
_FAILED = "refund failed"
# During an exchange, an elicitation has the word of an opened elicitation, so no entry is made.
_WORDS: Final[Mapping[str, str]] = {
    Status.PENDING: _ASKED,
    Status.EXCHANGING: Status.OPENED.value,
}


class Entry(Struct, frozen=True, array_like=True):
    """A change of one row of an owner. `about` is the row's id without the owner's tag.

    `proof` is the proof of the answer, and `digest` the hash of everything the person was shown.
    `by` is who made the change: `operator` for a command, `service`, an API key or a person over
    the API, or the person who decided for the owner.
    """

    kind: str
    what: str
    about: str
    at: datetime | None = None  # the time of the write
    by: str | None = None
    proof: str | None = None
    why: str | None = None
    server: str | None = None
    tool: str | None = None
    client: str | None = None
    asks: str | None = None  # the kind of question
    digest: str | None = None
    amount: str | None = None


class Audited(Protocol):
    """A row whose changes may be recorded."""

    @property
    def id(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def version(self) -> int: ...


AuditedT = TypeVar("AuditedT", bound=Audited)


class StateChange(NamedTuple, Generic[AuditedT]):
    """A change of a row's state word. `former` is the word before the write of `value`."""

    value: AuditedT
    former: str | None
    entry: Entry


class Words(Generic[AuditedT]):
    """The last known state word and version of each row that this process wrote or read."""

    def __init__(
        self,
        kinds: Mapping[type[Struct], str],
        *,
        stored: Callable[[AuditedT], Awaitable[AuditedT | None]],
    ) -> None:
        """Create the memory. `stored` reads a row that this process does not remember."""
        self._kinds = kinds
        self._stored = stored
        self._known: OrderedDict[tuple[str, str], tuple[int, str]] = OrderedDict()

    async def state_changes(self, values: Sequence[AuditedT]) -> list[StateChange[AuditedT]]:
        """Return the changes of the values whose state word differs from the stored row's."""
        found = list[StateChange[AuditedT]]()
        for value in values:
            kind = self._kinds[cast("type[Struct]", type(value))]
            is_audited = kind in AUDITED and value.owner != SERVICE
            if not is_audited and kind != _OF_SERVICE:
                continue
            word = word_of(kind, value)
            if word is None:
                continue
            previous = await self._previous_word(value, kind)
            if word != previous:
                about = value.id.removeprefix(value.owner)
                entry = _entry(value, Entry(kind=kind, what=word, about=about), previous)
                found.append(StateChange(value, previous, entry))
        return found

    def remember(self, value: AuditedT, *, version: int) -> None:
        kind = self._kinds[cast("type[Struct]", type(value))]
        if kind not in AUDITED and kind != _OF_SERVICE:
            return
        word = word_of(kind, value)
        if word is None:
            return
        self._known[kind, value.id] = version, word
        self._known.move_to_end((kind, value.id))
        if len(self._known) > REMEMBERED_AT_MOST:
            self._known.popitem(last=False)

    def forget(self) -> None:
        self._known.clear()

    async def _previous_word(self, value: AuditedT, kind: str) -> str | None:
        if value.version == 0:
            return None
        known = self._known.get((kind, value.id))
        if known is not None and known[0] == value.version:
            return known[1]
        found = await self._stored(value)
        return None if found is None else word_of(kind, found)


def word_of(kind: str, value: object) -> str | None:
    """Return the state word of a row of this kind."""
    if isinstance(value, Elicitation):
        if value.delivered_at is not None:
            return "delivered"
        if value.is_late and value.status is Status.ACCEPTED:
            return "accepted late"
        if not value.status.is_final and (voting := voting_of(value)) is not None:
            return voting.audit_text or _ASKED
        return _WORDS.get(value.status, value.status.value)
    if isinstance(value, Payment):
        return payment_word(value)
    if isinstance(value, Connection) and value.is_connected and value.last_member is not None:
        return f"{_USED} by {value.last_member}"  # a use by another member gets its own entry
    if isinstance(value, Connection) and value.is_connected and value.warned_at is not None:
        return "expiring"
    if kind == "secret":
        return "kept" if getattr(value, "erase_at", None) is None else "forgotten"
    word: str = getattr(value, "status", "")
    return word


def _entry(value: object, entry: Entry, previous: str | None) -> Entry:
    """Return the entry with the facts recorded for such a row. `previous` is its earlier word."""
    if isinstance(value, Elicitation):
        by = None
        if value.delivered_at is None:
            by = value.settled_by if value.decided_by is None else value.decided_by.name
            voting = None if value.status.is_final else voting_of(value)
            by = voting.votes[-1].name if voting is not None and voting.votes else by
        entry = replace(entry, proof=value.proof, why=_short(value.why), by=_short(by))
        if entry.what != _ASKED:
            return entry
        asked = value.request
        return replace(
            entry,
            server=_short(asked.server),
            tool=_short(asked.tool),
            client=_short(asked.client),
            asks=value.kind,
            digest=asked.digest,
        )
    if isinstance(value, Payment):
        # Only a refund is requested by a person or program, and `by` then names the requester.
        refund = _refund_in(entry.what)
        is_new = refund not in ("", _refund_in(previous)) and not refund.startswith(_FAILED)
        # After a dispute about all of the money, the state names earlier refunds again.
        was_disputed = (previous or "").partition(":")[0] in DISPUTED
        ends_dispute = value.status not in (ReceiptStatus.DISPUTED, ReceiptStatus.REFUNDED)
        is_restored = was_disputed and ends_dispute
        return replace(
            entry,
            by=value.refund_asked_by if is_new and not is_restored else None,
            why=_short(value.reason),
            server=value.seller,
            tool=_short(value.tool),
            amount=str(value.price),
        )
    if isinstance(value, Connection):
        by = value.ended_by
        if entry.what.startswith(f"{_USED} by "):
            by, entry = f"person {value.last_member}", replace(entry, what=_USED)
        elif entry.what == "connected" and value.connected_by is not None:
            by = f"person {value.connected_by}"
        return replace(entry, server=value.provider, by=by)
    by = getattr(value, "revoked_by", None)
    return replace(entry, tool=_short(getattr(value, "tool", None)), by=by)


def _refund_in(word: str | None) -> str:
    """Return the part of a payment's word from "refund" on, or "" if the word has no "refund"."""
    _, refund, rest = (word or "").partition("refund")
    return refund + rest


def _short(text: object) -> str | None:
    return text[:_CHARACTERS_AT_MOST] if isinstance(text, str) else None
