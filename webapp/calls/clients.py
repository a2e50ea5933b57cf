"""MCP clients: what each client did with questions, and whether it showed them to a person.

Risks: a client declares that it supports forms but shows none. Such a client refuses within
milliseconds in its person's name, or does not answer until it gives up its call. An answer that
comes sooner than a person can read is therefore treated as automatic and ignored. A client's
behaviour is remembered for a day. A client that was seen to show nothing gets the link for its
person instead. This module never settles a question as accepted. If it is wrong about a client, the
person gets a link although they could have answered in the client.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from enum import Enum, StrEnum, auto
from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from flows.elicitation.states import Elicitation
from flows.elicitation.traits import traits_of
from flows.errors import ElicitError
from webapp.calls.patience import Patience, store_bounded
from webapp.elicitations.service import Elicitations
from webapp.identity.identity import Caller
from webapp.limits import CallLimits
from webapp.records.ids import tail_of
from webapp.records.values import KINDS, ClientReaction, ClientRecord
from webapp.settings.quotas import ListedClient, PolicySettings
from webapp.stores import Record

REMEMBERED: Final = timedelta(days=1)
STORED, FORGOTTEN = "kept", "forgotten"
# The ways to send a question to a client: as a form that the client shows, or as a link that it
# opens.
FORM: Final = "form"
LINK: Final = "url"
# Forms without fields are remembered separately: some clients show them but cannot submit them.
CONFIRM: Final = "confirm"
# consecutive unanswered questions after which a client no longer counts as ANSWERED
UNANSWERED_AT_MOST: Final = 2
_ATTRIBUTES: Final = {FORM: "forms", LINK: "links", CONFIRM: "confirms"}
Mode: TypeAlias = Literal["form", "url"]
RememberedMode: TypeAlias = Literal["form", "url", "confirm"]
_CLIENTS_AT_MOST = 10_000
_QUESTIONS_AT_MOST = 20_000
_NAME_CHARACTERS = 200
_PROXY = " (proxy)"
_log = logging.getLogger(__name__)


class Reaction(StrEnum):
    """A client's reaction to a question.

    All reactions except ANSWERED mean that the client did not show the form to a person.

    Stored records contain these texts.
    """

    ANSWERED = "answered"
    AT_ONCE = "answered at once"
    SILENT = "said nothing"
    GAVE_UP = "gave its call up"
    NEVER = "never answered"
    EMPTY = "sent its form back empty"


class ClientName(NamedTuple):
    """The name of a client: its owner, the name it declares, and its own version."""

    owner: str
    name: str
    release: str


class SentState(Enum):
    """The state of a question that was sent to a client.

    `UNFIT` means that the client's answer was not valid, and `LINKED` that the person has the link.
    """

    OUT = auto()
    ANSWERED = auto()
    UNFIT = auto()
    LINKED = auto()


class SentQuestion(NamedTuple):
    """A question that was sent to a client. `at` is the time when the question was first sent.

    `is_overdue`: the question was sent once more, after `McpClients.silence` without an answer.
    """

    state: SentState
    at: datetime
    is_overdue: bool = False


class McpClients:
    """The remembered behaviour of MCP clients.

    Records are in the store for later processes. A record is read once per client and written when
    it changes.
    """

    def __init__(
        self, elicitations: Elicitations, *, settings: PolicySettings, limits: CallLimits
    ) -> None:
        self._elicitations = elicitations
        self._settings = settings
        self._listed = {one.name: one for one in settings.clients}
        self._known: OrderedDict[str, ClientRecord | None] = OrderedDict()
        self.patience = Patience(patient_clients=settings.patient_clients, clock=elicitations.clock)
        # The questions that this process sent, by elicitation id.
        self.sent_questions: OrderedDict[str, SentQuestion] = OrderedDict()
        self.limits, self.silence = limits, limits.silence
        self.min_answer = settings.min_answer
        elicitations.subscribers.append(self._on_change)

    @property
    def now(self) -> datetime:
        return self._elicitations.clock()

    def listed(self, name: str | None, release: str) -> ListedClient | None:
        """Return the operator's setting for this client, or None."""
        if not self._listed or name is None:
            return None
        return self._listed.get(f"{name}/{release}") or self._listed.get(name)

    async def did(self, client: ClientName, mode: RememberedMode) -> str | None:
        """Return what the client did last in this mode, or None if that is unknown or expired."""
        reaction = await self._reaction(client, mode)
        return None if reaction is None else reaction.what

    async def _reaction(self, client: ClientName, mode: RememberedMode) -> ClientReaction | None:
        id = self._id(client)
        if id not in self._known:
            found = await self._elicitations.read(ClientRecord, owner=client.owner, id=id)
            store_bounded(self._known, id, found, at_most=_CLIENTS_AT_MOST)
        return self._of(self._known[id], mode)

    def _of(self, record: ClientRecord | None, mode: RememberedMode) -> ClientReaction | None:
        reaction: ClientReaction | None = (
            None if record is None else getattr(record, _ATTRIBUTES[mode])
        )
        return reaction if reaction and self.now < reaction.until else None

    async def note(
        self, client: ClientName, mode: RememberedMode, what: Reaction, *, about: str | None = None
    ) -> None:
        """Record what the client did with the question `about` (an elicitation id).

        ANSWERED stays recorded until two questions in a row are left without an answer.
        """
        try:
            before = await self._reaction(client, mode)
            if self._next(before, what, about=about) != before:
                await self._elicitations.run_to_completion(
                    self._note(client, mode, what, about=about)
                )
        except ElicitError:  # the question continues without the record
            _log.warning("client.not_stored", exc_info=True)

    async def all(self, *, owner: str | None = None) -> list[ClientRecord]:
        """Return the records of one owner or of all owners, the latest first."""
        found = await self._elicitations.all(
            ClientRecord, owner=owner, status=STORED, skips_unreadable=True
        )
        remembered = [one for one in found if self.now < one.erase_at]
        return sorted(remembered, key=lambda one: one.erase_at, reverse=True)

    async def forget(self, id: str | None = None) -> int:
        """Forget one client by its full or shortened id, or all clients. Return their number."""
        found = [one for one in await self.all() if id in (None, one.id, tail_of(one))]
        for one in found:
            await self._elicitations.write(
                ClientRecord(
                    id=one.id,
                    owner=one.owner,
                    name="",
                    release="",
                    erase_at=one.erase_at,
                    status=FORGOTTEN,
                    version=one.version,
                )
            )
            self._known.pop(one.id, None)
        return len(found)

    def _next(
        self, before: ClientReaction | None, what: Reaction, *, about: str | None
    ) -> ClientReaction | None:
        """Return the reaction to remember after `what`, or `before` if `what` changes nothing."""
        fresh = ClientReaction(what=what, at=self.now, until=self.now + REMEMBERED)
        if before is None or before.what not in (what, Reaction.ANSWERED):
            return fresh
        if before.what == what:
            return fresh if before.unanswered else before
        if (
            what not in (Reaction.SILENT, Reaction.NEVER)
            or about is None
            or about in before.unanswered
        ):
            return before
        unanswered = (*before.unanswered, about)
        if len(unanswered) >= UNANSWERED_AT_MOST:
            return fresh
        return replace(before, unanswered=unanswered)

    async def _note(
        self, client: ClientName, mode: RememberedMode, what: Reaction, *, about: str | None
    ) -> None:
        id, fresh = self._id(client), list[ClientRecord]()

        async def noted() -> Sequence[ClientRecord]:
            until = self.now + REMEMBERED
            record = await self._elicitations.read(ClientRecord, owner=client.owner, id=id)
            reaction = self._next(self._of(record, mode), what, about=about)
            before = ClientRecord(id=id, owner=client.owner, name="", release="", erase_at=until)
            known = replace(
                record or before,
                name=client.name[:_NAME_CHARACTERS],
                release=client.release[:_NAME_CHARACTERS],
                erase_at=until,
                status=STORED,
            )
            fresh[:] = [replace(known, **{_ATTRIBUTES[mode]: reaction})]
            return fresh

        await self._elicitations.write_rebuilt(noted)
        store_bounded(self._known, id, fresh[0], at_most=_CLIENTS_AT_MOST)

    def _id(self, client: ClientName) -> str:
        ids = self._elicitations.rows.ids
        return ids.client(client.owner, name=client.name, release=client.release)

    async def _on_change(self, record: Record) -> None:
        """Drop the cached record, because another process has written it."""
        if record.kind == KINDS[ClientRecord]:
            self._known.pop(record.id, None)


class AskedClient:
    """The client of one call, to which the call sends questions.

    `has_page` returns True if a person can answer this kind on our page. Otherwise the client
    is the only way to ask. `is_proxy`: the client behind the proxy may not support questions. Then
    its call fails and this server gets no reply, so the next identical call gets the link.
    `apart` distinguishes the client from other clients with the same library name.
    """

    def __init__(
        self,
        clients: McpClients,
        *,
        caller: Caller,
        name: str | None,
        release: str,
        has_page: Callable[[str], bool],
        is_proxy: bool = False,
        apart: str | None = None,
    ) -> None:
        self._clients = clients
        # Programs that use the same library, and so have the same name, can behave differently.
        mark = _PROXY if is_proxy else "" if apart is None else f" ({apart})"
        known_as = f"{name or ''}{mark}"
        # An anonymous caller has no stored record.
        self._client = None if caller.owner is None else ClientName(caller.owner, known_as, release)
        self._is_proxy = is_proxy
        self._listed = clients.listed(name, release)
        self.has_page = has_page
        self.silence = clients.silence

    def is_automatic(
        self, asked: Elicitation, mode: Mode, action: str, content: object, *, after: float
    ) -> bool:
        """Return True if no person can have answered within `after` seconds.

        A form with content is always believed, because a person must have supplied the content.
        """
        if not self.is_too_soon(after):
            return False
        if action != "accept":
            return not self._may_answer(asked, mode)
        # For a link, "accept" settles the question only if the tool does not wait for the outcome.
        is_yes = not asked.request.waits
        if mode == FORM:
            is_yes = traits_of(asked.kind).page == "confirm" or not content
        return is_yes and not self._may_answer(asked, mode)

    def is_too_soon(self, after: float) -> bool:
        """Return True if `after` seconds are too few for a person to read a question."""
        return after < self._clients.min_answer.total_seconds()

    async def has_answered(self, asked: Elicitation, mode: Mode) -> bool:
        """Return True if the client was seen to let a person answer, or is in the settings."""
        return await self._did(asked, mode) == Reaction.ANSWERED

    async def draws_nothing(self, asked: Elicitation, mode: Mode) -> bool:
        """Return True if the client was seen to show nothing in this mode."""
        return await self._did(asked, mode) not in (None, Reaction.ANSWERED)

    async def needs_link(self, asked: Elicitation, mode: Mode) -> bool:
        """Return True if the person gets the link, and the client is not asked this question.

        A repeated call without an answer does not mean that the client showed nothing: an engine
        that replays its steps repeats the call first and sends the person's answer later. The
        client is therefore asked again until `silence` has passed, and once more after that.
        """
        if asked.is_for_page or await self.draws_nothing(asked, mode):
            return True
        sent = self._clients.sent_questions.get(asked.id)
        if sent is None or sent.state is SentState.ANSWERED:
            return False
        if sent.state is SentState.OUT and not (sent.is_overdue or self._is_proxy):
            return False
        if sent.state is SentState.OUT:
            await self._note(asked, mode, Reaction.NEVER)
        return True

    def is_unanswered(self, id: str) -> bool:
        """Return True if the client was asked this question and has not answered yet."""
        return self._is(id, SentState.OUT)

    def is_invalid(self, id: str) -> bool:
        """Return True if the client's answer was not valid."""
        return self._is(id, SentState.UNFIT)

    def has_link(self, id: str) -> bool:
        return self._is(id, SentState.LINKED)

    def is_known_question(self, id: str) -> bool:
        """Return True if the client replied to this question, or its person has the link."""
        sent = self._clients.sent_questions.get(id)
        return sent is not None and sent.state is not SentState.OUT

    def has_replied(self, asked: Elicitation) -> None:
        """Record a reply to a question that was settled before the reply came."""
        if self.is_unanswered(asked.id):
            self._set_state(asked, SentState.ANSWERED)

    def was_just_asked(self, asked: Elicitation) -> bool:
        """Return True if the client was asked just now: no person can have read the question."""
        sent = self._clients.sent_questions.get(asked.id)
        if sent is None or sent.state is not SentState.OUT:
            return False
        return self.is_too_soon((self._clients.now - sent.at).total_seconds())

    def first_sent_at(self, asked: Elicitation, *, is_again: bool, now: datetime) -> datetime:
        """Return when the client was first asked, or `now` if no earlier request asked it."""
        sent = self._clients.sent_questions.get(asked.id)
        if sent is not None:
            return sent.at
        return asked.created_at if is_again else now

    def sent(self, asked: Elicitation, *, is_again: bool = False, now: datetime) -> None:
        """Record that the client is asked now. `is_again`: an earlier request asked it too."""
        at = self.first_sent_at(asked, is_again=is_again, now=now)
        self._set_state(asked, SentState.OUT, at=at, is_overdue=now - at >= self.silence)

    def linked(self, asked: Elicitation) -> None:
        """Record that the link is sent in a result."""
        if not self._is(asked.id, SentState.ANSWERED):
            self._set_state(asked, SentState.LINKED)

    async def answered(
        self,
        asked: Elicitation,
        mode: Mode,
        *,
        after: float,
        content: object = None,
        is_valid: bool = True,
    ) -> None:
        """Record the client's answer, `after` seconds after the client was asked.

        An invalid answer is no evidence that the client lets a person answer.
        """
        self._set_state(asked, SentState.ANSWERED if is_valid else SentState.UNFIT)
        if is_valid and not self.is_too_soon(after):
            await self._note(asked, mode, Reaction.ANSWERED)
        elif not is_valid and self.is_too_soon(after):
            await self._note(asked, mode, Reaction.AT_ONCE)
        elif not (is_valid or content):
            await self._note(asked, mode, Reaction.EMPTY)

    async def drew_nothing(self, asked: Elicitation, mode: Mode, reaction: Reaction) -> None:
        self._set_state(asked, SentState.OUT)
        await self._note(asked, mode, reaction)

    async def record_silence(self, asked: Elicitation, mode: Mode) -> None:
        """Record that the client did not answer while the call was held."""
        await self._note(asked, mode, Reaction.SILENT)

    def _may_answer(self, asked: Elicitation, mode: Mode) -> bool:
        return mode == FORM and self._listed is not None and asked.kind in self._listed.answers

    def _is(self, id: str, state: SentState) -> bool:
        sent = self._clients.sent_questions.get(id)
        return sent is not None and sent.state is state

    def _set_state(
        self,
        asked: Elicitation,
        state: SentState,
        *,
        at: datetime | None = None,
        is_overdue: bool = False,
    ) -> None:
        at = at or self.first_sent_at(asked, is_again=False, now=self._clients.now)
        sent = SentQuestion(state, at, is_overdue)
        store_bounded(self._clients.sent_questions, asked.id, sent, at_most=_QUESTIONS_AT_MOST)

    async def _did(self, asked: Elicitation, mode: Mode) -> str | None:
        if self._listed is not None:
            return Reaction.ANSWERED
        if self._client is None:
            return None
        remembered_mode = _remembered(asked, mode)
        did = await self._clients.did(self._client, remembered_mode)
        # If a client shows no forms, it shows no CONFIRM forms either.
        if did is None and remembered_mode == CONFIRM:
            did = await self._clients.did(self._client, FORM)
            return None if did == Reaction.ANSWERED else did
        return did

    async def _note(self, asked: Elicitation, mode: Mode, reaction: Reaction) -> None:
        if self._client is not None and self._listed is None:
            # A client that answers automatically does so with every form.
            remembered_mode = mode if reaction is Reaction.AT_ONCE else _remembered(asked, mode)
            await self._clients.note(self._client, remembered_mode, reaction, about=asked.id)


def _remembered(asked: Elicitation, mode: Mode) -> RememberedMode:
    return CONFIRM if mode == FORM and traits_of(asked.kind).page == "confirm" else mode
