"""Clients: what each of them did with what it was sent, and whether anybody was asked at all.

What could go wrong: a client declares forms and shows none. It refuses within milliseconds in its
person's name, or says nothing until it gives its call up. So an answer that comes sooner than a
person can read is nobody's; what a client did is remembered for a day; and one that was seen to
show nothing is given the link for its person. Nothing here makes a yes: at worst the link is shown
to somebody who could have answered in the client.

Patience is beside it: most clients allow a call 60 s, some whatever is reported meanwhile, and none
of them says how long. So a call is held for less than that, unless its client was seen to wait
longer, or the operator says that it does.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from enum import Enum, StrEnum, auto
from typing import Final, Literal, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from flows.elicitation.states import Elicitation
from flows.elicitation.traits import traits_of
from flows.errors import ElicitError
from webapp.deadline import ticks_of
from webapp.elicitations.service import Elicitations
from webapp.http.connection import ClientConnection
from webapp.identity.identity import Caller
from webapp.records.ids import tail_of
from webapp.records.values import KINDS, ClientDeed, ClientRecord
from webapp.settings.quotas import ListedClient, PolicySettings
from webapp.stores import Record

REMEMBERED: Final = timedelta(days=1)
MOST_ALLOW: Final = timedelta(seconds=60)
KEPT, FORGOTTEN = "kept", "forgotten"
# Why a question ended, where what was filled in for it did not fit.
DOES_NOT_FIT: Final = "the client's answer did not fit"
# How a question is put to a client: in a form of its own, or as a link that it opens.
FORM: Final = "form"
LINK: Final = "url"
K = TypeVar("K")
V = TypeVar("V")
Mode: TypeAlias = Literal["form", "url"]
_CLIENTS_AT_MOST = 10_000
_QUESTIONS_AT_MOST = 20_000
_NAME_CHARACTERS = 200
_log = logging.getLogger(__name__)


class Deed(StrEnum):
    """What a client did with what it was sent; all but the first show that it drew nothing."""

    ANSWERED = "answered"
    AT_ONCE = "answered at once"
    SILENT = "said nothing"
    GAVE_UP = "gave its call up"
    NEVER = "never answered"


class ClientName(NamedTuple):
    """Whose client it is, what it calls itself, and its own version."""

    owner: str
    name: str
    release: str


class _Put(Enum):
    """How a question stands that was put to a client: out, answered, or its link is given."""

    OUT = auto()
    ANSWERED = auto()
    LINKED = auto()


class McpClients:
    """Kept in the store for the next process; read once a client, and written when it changes."""

    def __init__(
        self, elicitations: Elicitations, *, settings: PolicySettings, silence: timedelta
    ) -> None:
        self._elicitations = elicitations
        self._settings = settings
        self._listed = {one.name: one for one in settings.clients}
        self._ticks = ticks_of(elicitations.clock)
        self._known: OrderedDict[str, ClientRecord | None] = OrderedDict()
        self._patient: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.puts: OrderedDict[str, _Put] = OrderedDict()  # by elicitation, of this process
        self.silence = silence
        self.min_answer = settings.min_answer
        elicitations.hearers.append(self._hear)

    @property
    def now(self) -> datetime:
        return self._elicitations.clock()

    def listed(self, name: str | None, release: str) -> ListedClient | None:
        """What the operator says of it."""
        if not self._listed or name is None:
            return None
        return self._listed.get(f"{name}/{release}") or self._listed.get(name)

    def is_patient(self, caller: Caller, *, name: str | None) -> bool:
        """Whether its client waits as long as it takes; `name` is what it declares."""
        is_named = name in self._settings.patient_clients
        return is_named or (caller.owner or "", caller.client) in self._patient

    def watch(self, caller: Caller, wire: ClientConnection | None) -> Callable[[], None]:
        """A call begins; if its result finds the client there after that time, it is patient.

        To be called when there is a result: a client that gave its call up is there, too.
        """
        owner, began_at = caller.owner, self._ticks()

        def has_result() -> None:
            if wire is not None and owner is not None:
                wire.on_end(end)

        def end(arrived: bool) -> None:  # noqa: FBT001 - the wire's callback
            assert owner is not None
            if arrived and self._ticks() - began_at >= MOST_ALLOW.total_seconds():
                _keep(self._patient, (owner, caller.client), None, at_most=_CLIENTS_AT_MOST)

        return has_result

    async def did(self, client: ClientName, mode: Mode) -> str | None:
        """What it did last in this mode, if that is not too long ago."""
        id = self._id(client)
        if id not in self._known:
            found = await self._elicitations.read(ClientRecord, owner=client.owner, id=id)
            _keep(self._known, id, found, at_most=_CLIENTS_AT_MOST)
        record = self._known[id]
        if record is None:
            return None
        deed = record.forms if mode == FORM else record.links
        return deed.what if deed and self.now < deed.until else None

    async def note(self, client: ClientName, mode: Mode, what: Deed) -> None:
        """It did this; what it did before stays where that is the same, or was a person's."""
        try:
            if await self.did(client, mode) not in (what, Deed.ANSWERED):
                await self._elicitations.whole(self._note(client, mode, what))
        except ElicitError:  # the question goes on all the same
            _log.warning("client.not_remembered", exc_info=True)

    async def all(self, *, owner: str | None = None) -> list[ClientRecord]:
        """What is remembered, of one owner or of all, the latest first."""
        found = await self._elicitations.all(
            ClientRecord, owner=owner, status=KEPT, skips_unreadable=True
        )
        kept = [one for one in found if self.now < one.erase_at]
        return sorted(kept, key=lambda one: one.erase_at, reverse=True)

    async def forget(self, id: str | None = None) -> int:
        """One by its id, whole or as the list shows it, or all; how many there were."""
        found = [one for one in await self.all() if id in (None, one.id, tail_of(one))]
        for one in found:
            await self._elicitations.write(
                replace(one, status=FORGOTTEN, name="", release="", forms=None, links=None)
            )
            self._known.pop(one.id, None)
        return len(found)

    async def _note(self, client: ClientName, mode: Mode, what: Deed) -> None:
        id, fresh = self._id(client), list[ClientRecord]()

        async def noted() -> Sequence[ClientRecord]:
            until = self.now + REMEMBERED
            record = await self._elicitations.read(ClientRecord, owner=client.owner, id=id)
            deed = ClientDeed(what=what, at=self.now, until=until)
            before = ClientRecord(id=id, owner=client.owner, name="", release="", erase_at=until)
            known = replace(
                record or before,
                name=client.name[:_NAME_CHARACTERS],
                release=client.release[:_NAME_CHARACTERS],
                erase_at=until,
                status=KEPT,
            )
            now = replace(known, forms=deed) if mode == FORM else replace(known, links=deed)
            fresh[:] = [now]
            return fresh

        await self._elicitations.write_afresh(noted)
        _keep(self._known, id, fresh[0], at_most=_CLIENTS_AT_MOST)

    def _id(self, client: ClientName) -> str:
        ids = self._elicitations.rows.ids
        return ids.client(client.owner, name=client.name, release=client.release)

    async def _hear(self, record: Record) -> None:
        """Another process has written it."""
        if record.kind == KINDS[ClientRecord]:
            self._known.pop(record.id, None)


class AskedClient:
    """The client of one call, as that puts questions to it.

    `has_page` says of a kind whether a person can answer it on our page; where nobody can, the
    client is all there is.
    """

    def __init__(
        self,
        clients: McpClients,
        *,
        caller: Caller,
        name: str | None,
        release: str,
        has_page: Callable[[str], bool],
    ) -> None:
        self._clients = clients
        # Nothing is kept of a caller without a name.
        self._client = (
            None if caller.owner is None else ClientName(caller.owner, name or "", release)
        )
        self._listed = clients.listed(name, release)
        self.has_page = has_page

    @property
    def silence(self) -> timedelta:
        return self._clients.silence

    def is_nobodys(
        self, asked: Elicitation, mode: Mode, action: str, content: object, *, after: float
    ) -> bool:
        """Whether no person can have given this answer, so many seconds after it was put out.

        A form with content is taken as it comes, as what is in it was given by somebody.
        """
        if not self.is_too_soon(after):
            return False
        if action != "accept":
            return not self._may_answer(asked, mode)
        # To agree to a link settles a question whose tool waits for no more than that.
        is_yes = not asked.asked.waits
        if mode == FORM:
            is_yes = traits_of(asked.kind).page == "confirm" or not content
        return is_yes and not self._may_answer(asked, mode)

    def is_too_soon(self, after: float) -> bool:
        """Whether nobody can have read it in so many seconds."""
        return after < self._clients.min_answer.total_seconds()

    async def has_answered(self, mode: Mode) -> bool:
        """Whether it was seen to let a person answer, or the operator says that it does."""
        return await self._did(mode) == Deed.ANSWERED

    async def draws_nothing(self, mode: Mode) -> bool:
        """Whether it was seen to show nobody what it was sent."""
        return await self._did(mode) not in (None, Deed.ANSWERED)

    async def needs_link(self, asked: Elicitation, mode: Mode, *, was_out: bool) -> bool:
        """Whether its person is to be given the link, before it is sent this question afresh.

        `was_out`: it was sent it by an earlier call, in another process perhaps.
        """
        did, put = await self._did(mode), self._clients.puts.get(asked.id)
        if put is _Put.ANSWERED:
            return did not in (None, Deed.ANSWERED)
        is_open = put is not None or (was_out and did != Deed.ANSWERED)
        if is_open and put is not _Put.LINKED and self._is_overdue(asked):
            await self._note(mode, Deed.NEVER)
        return is_open or did not in (None, Deed.ANSWERED)

    def is_out(self, asked: Elicitation) -> bool:
        """Whether it was sent it and has not answered."""
        return self._clients.puts.get(asked.id) is _Put.OUT

    def has_link(self, asked: Elicitation) -> bool:
        return self._clients.puts.get(asked.id) is _Put.LINKED

    def sent(self, asked: Elicitation) -> None:
        """It is put to the client."""
        self._put(asked, _Put.OUT)

    def linked(self, asked: Elicitation) -> None:
        """The link goes out in a result."""
        if self._clients.puts.get(asked.id) is not _Put.ANSWERED:
            self._put(asked, _Put.LINKED)

    async def answered(self, asked: Elicitation, mode: Mode, *, after: float) -> None:
        """The client has answered it, whatever it said."""
        self._put(asked, _Put.ANSWERED)
        if not self.is_too_soon(after):
            await self._note(mode, Deed.ANSWERED)

    async def filled_in(self, ended: Elicitation, *, after: float) -> None:
        """Its form's answer did not fit. If nobody can have typed it, the client draws no forms."""
        if ended.why == DOES_NOT_FIT and self.is_too_soon(after):
            await self._note(FORM, Deed.AT_ONCE)

    async def drew_nothing(self, asked: Elicitation, mode: Mode, deed: Deed) -> None:
        self._put(asked, _Put.OUT)
        await self._note(mode, deed)

    def _may_answer(self, asked: Elicitation, mode: Mode) -> bool:
        return mode == FORM and self._listed is not None and asked.kind in self._listed.answers

    def _is_overdue(self, asked: Elicitation) -> bool:
        return self._clients.now - asked.created_at >= self.silence

    def _put(self, asked: Elicitation, put: _Put) -> None:
        _keep(self._clients.puts, asked.id, put, at_most=_QUESTIONS_AT_MOST)

    async def _did(self, mode: Mode) -> str | None:
        if self._listed is not None:
            return Deed.ANSWERED
        return None if self._client is None else await self._clients.did(self._client, mode)

    async def _note(self, mode: Mode, deed: Deed) -> None:
        if self._client is not None and self._listed is None:
            await self._clients.note(self._client, mode, deed)


def _keep(kept: OrderedDict[K, V], key: K, value: V, *, at_most: int) -> None:
    """The latest of them."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > at_most:
        kept.popitem(last=False)
