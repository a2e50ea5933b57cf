"""Completion of questions by trusted code and by browsers that return from a site."""

from collections.abc import Mapping, Sequence
from copy import copy
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from flows.crypto.tokens import Purpose
from flows.elicitation import states
from flows.elicitation.once_work import OnceWork
from flows.elicitation.states import Completion, Elicitation, Json
from flows.elicitation.tool_call import CallingPerson
from flows.elicitation.traits import NamedByAuthor, Proof, TrustedCode, traits_of
from flows.errors import ElicitError, InvalidAnswer, InvalidToken, NoAsker, NotAllowed
from flows.question import Outcome, Question, Resources, ReturningRequest
from flows.schema.schema import Fault, Schema, check, without_blanks
from webapp.elicitations.aliases import AskingParty, aliased
from webapp.elicitations.complete import complete_elicitation
from webapp.elicitations.links import Links
from webapp.elicitations.service import Elicitations
from webapp.http.browser import Browser, cookies_of
from webapp.identity.identity import Identity
from webapp.kinds.registry import Kinds

T = TypeVar("T")
RETURN_PARAMETER = "elicitation"


class Completing:
    """An Asker for the author's routes, which can complete questions but not ask."""

    def __init__(
        self,
        *,
        elicitations: Elicitations,
        links: Links,
        browser: Browser,
        identity: Identity,
        kinds: Kinds,
        server: str | None = None,
    ) -> None:
        """Limit completion to the questions of `server`.

        If `server` is None, questions of every server on the store can be completed.
        """
        self._server = server
        self.why_not: str | None = None
        self._elicitations = elicitations
        self._kinds = kinds
        self._identity = identity
        self._links = links
        self._browser = browser

    def refusing(self, why: str) -> "Completing":
        """Return a copy that refuses questions with this reason."""
        one = copy(self)
        one.why_not = why
        return one

    def _nobody_asks(self) -> NoReturn:
        raise NoAsker(self.why_not)

    async def ask(self, question: Question[T]) -> Outcome[T]:
        self._nobody_asks()

    async def ask_together(
        self, questions: Sequence[Question[Any]], *, stops_at_no: bool
    ) -> tuple[Outcome[Any], ...]:
        self._nobody_asks()

    async def once(self, work: OnceWork) -> Json:
        self._nobody_asks()

    async def on_end(self, callback: str, payload: str, *, key: str) -> None:
        self._nobody_asks()

    def caller(self) -> CallingPerson:
        self._nobody_asks()

    @property
    def resources(self) -> Resources:
        self._nobody_asks()

    async def forget(self, name: str) -> bool:
        self._nobody_asks()

    async def notify(self, message: str) -> None:
        """Do nothing: a route has no client to notify."""

    def can(self, mode: str) -> bool:
        return False

    def token(self, elicitation_id: str, *, timeout: timedelta) -> str:
        now = self._elicitations.clock()
        return self._links.author_token(elicitation_id, expires_at=now + timeout, now=now)

    def read_token(self, text: str) -> str:
        """Return the elicitation's id from an author's token. Raises InvalidToken."""
        now = self._elicitations.clock()
        return self._links.read(text, purpose=Purpose.AUTHOR, now=now).id

    def failed(self, error: ElicitError) -> None:
        """Do nothing: a route has no tool that could fail."""

    async def complete(
        self,
        elicitation_id: str,
        content: Json,
        *,
        owner: str | None = None,
        program: str | None = None,
        tool: str | None = None,
        by: str | None = None,
    ) -> Completion:
        """Complete an elicitation by its id, or by the id that `program` or `tool` gave it.

        With `program` or `tool`, only the elicitations of that program or tool of this server are
        found, even if `elicitation_id` is the elicitation's own id. `by` is the name in the audit.
        If the calling task is cancelled, the completion still finishes.

        Raises:
            OwnerNeeded: Several people or tools have an elicitation with this id.
            InvalidQuestion: The content is not JSON, or too large.
            InvalidAnswer: The content does not match the question.
        """
        checked = states.checked_content(content)
        asker = AskingParty(server=self._server, program=program, tool=tool)
        settled = self._settled(elicitation_id, checked, owner=owner, asker=asker, by=by)
        return await self._elicitations.run_to_completion(settled)

    async def complete_return(self, request: ReturningRequest, content: Json) -> Completion:
        """Complete the elicitation that a returning browser names.

        Raises:
            NotAllowed: This is not the browser that pressed Continue.
        """
        token = request.query_params.get(RETURN_PARAMETER, "")
        try:
            elicitation = await self.returned(token)
        except InvalidToken:
            return Completion.UNKNOWN
        cookies = cookies_of(request)
        decision = await self._identity.access(elicitation, request.scope, cookies)
        if not decision.is_open or not self.is_bound(elicitation, cookies):
            raise NotAllowed(
                "Only the person who opened the link can continue here, in the same browser."
            )
        return await self.complete_with(elicitation, content, TrustedCode())

    async def returned(self, token: str) -> Elicitation:
        """Return the elicitation of a return token. Raises InvalidToken."""
        return await self._named(token, Purpose.RETURN)

    async def called_back(self, token: str, content: Mapping[str, Json]) -> Completion:
        """Complete an elicitation for the callback of a service, if its link has been opened.

        Raises InvalidToken.
        """
        elicitation = await self._named(token, Purpose.CALLBACK)
        if elicitation.attempt is None:
            return Completion.UNKNOWN
        return await self.complete_with(elicitation, content, TrustedCode())

    async def complete_with(self, current: Elicitation, content: Json, proof: Proof) -> Completion:
        """Complete an elicitation with an answer, such as an approver's, and its proof.

        If the calling task is cancelled, the completion still finishes.

        Raises:
            InvalidQuestion: The content is not JSON, or too large.
            InvalidAnswer: The content does not match the question.
        """
        checked = states.checked_content(content)
        return await self._elicitations.run_to_completion(self._proved(current, checked, proof))

    def is_bound(self, elicitation: Elicitation, cookies: Mapping[str, str]) -> bool:
        """Return True if the cookies are those of the browser that began the latest attempt."""
        attempt = elicitation.attempt
        return attempt is not None and self._browser.is_same(attempt.browser, cookies)

    async def _settled(
        self, id: str, content: Json, *, owner: str | None, asker: AskingParty, by: str | None
    ) -> Completion:
        elicitations, proof = self._elicitations, TrustedCode(by=by)
        current = await elicitations.rows.as_remembered(id)
        if current is None or asker.excludes(current.request):
            current = await aliased(elicitations, id, owner=owner, by=asker)
            proof = NamedByAuthor(by=by)
        if current is None or owner not in (None, current.owner):
            return Completion.UNKNOWN
        return await self._proved(current, content, proof)

    async def _proved(self, current: Elicitation, content: Json, proof: Proof) -> Completion:
        elicitations = self._elicitations
        if not traits_of(current.kind).accepts_proof(proof):
            return Completion.UNKNOWN
        if (kind := self._kinds.on_page(current.kind)) is not None:
            if current.status.is_final or elicitations.clock() >= current.expires_at:
                return Completion.ALREADY_SETTLED
            content = await self._checked(current, content, kind.schema(current))
            if self._kinds.plugins.see_answers:
                content = await self._kinds.reduced(current, content, proof, by=kind)
        return await complete_elicitation(elicitations, current.id, content, proof)

    async def _checked(self, current: Elicitation, content: Json, schema: Schema[Any]) -> Json:
        """Validate the content and return it without blank fields. Raises InvalidAnswer."""
        given = without_blanks(schema, content)
        faults: Sequence[Fault] = check(schema, given)
        faults = faults or await self._kinds.rules.faults(current, given)
        if faults:
            details = [(fault.path, fault.message) for fault in faults]
            raise InvalidAnswer(details, elicitation_id=current.id)
        return given

    async def _named(self, token: str, purpose: Purpose) -> Elicitation:
        claims = self._links.read(token, purpose=purpose, now=self._elicitations.clock())
        elicitation = await self._elicitations.get(claims.id)
        if elicitation is None:
            raise InvalidToken("erased")
        return elicitation
