"""The person of a test: their planned actions, the questions they received, and the results.

Risks: a test waits for a person who never acts. So a question without a planned action fails at
once, and the test fails too.
"""

import asyncio
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import httpx
from anyio import CancelScope
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import CallToolResult, ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from flows.crypto.tokens import Purpose
from flows.elicitation.ending import Ending
from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import traits_of
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from webapp.deadline import HandClock
from webapp.records.ids import owner_of
from webapp.sweeper import fall_due
from webapp.testing._acts import ACCEPT, AGAIN, CANCEL, Act, Errand, Pause
from webapp.testing._application import (
    LIMITS,
    MODERN,
    URL,
    PersonClient,
    calling_as,
)
from webapp.testing.planned import PlannedActions
from webapp.testing.received import (
    ReceivedQuestion,
    ReceivedResult,
    UnexpectedForm,
    UnexpectedQuestion,
)

if TYPE_CHECKING:
    from webapp.calls.replay import ReplayedCall

T = TypeVar("T", Payment, Connection)
_CallOf: TypeAlias = tuple[str, Mapping[str, Json]]  # a tool and its arguments
_Shown: TypeAlias = tuple[_CallOf, str]  # the call that asked, and the link
_LINK = re.compile(rf"{re.escape(URL)}/e/[A-Za-z0-9_.-]+")
_ELSEWHERE = ("192.0.2.7", 49152)  # the address of a service on another machine
# The client ended the call because the person has not answered: the model gets no result.
_GAVE_UP = ReceivedResult.of(CallToolResult(content=[], is_error=True))


class AskedPerson(PlannedActions):
    """The simulated person: planned actions, received questions, and results.

    Plan the actions before the call, in the order of the questions. `clock` is the time of day that
    the test moves. `webhooks` sends the webhooks of the payment provider. If a test makes its own
    client, pass `elicitation_callback` (a client of the `mcp` library) or `elicitation_handler`
    (FastMCP) to that client.
    """

    clock: HandClock
    replayed: "list[ReplayedCall]"  # calls that ended in replay mode
    _client: PersonClient
    _done: set[str]  # ids of the questions that the person acted on
    _left: set[str]  # questions that the person leaves open during this call
    _shown: dict[str, _Shown]  # questions that the client still shows after their call
    _unseen: set[str]  # questions that the client does not show
    _acting: set[asyncio.Task[ElicitResult]]
    _calling: CancelScope | None = None
    _call: _CallOf = ("", {})
    _is_lost: bool = False
    _browser: httpx.AsyncClient

    @property
    def client(self) -> Client:
        """The client that `call` uses, for its other methods (`list_tools()`)."""
        return self._client.connected

    # People and processes.

    async def another(
        self,
        subject: str,
        *,
        revision: str | None = None,
        declares: Collection[str] | None = None,
    ) -> "AskedPerson":
        """Return another person, who calls the same server with a client of their own.

        `subject` is their name at the issuer where people sign in. Their accounts, payments and
        answers are their own. `revision` and `declares` are by default those of the first person.
        """
        if self._app.owner_of(subject) in [one.owner for one in self._app.clients]:
            raise AssertionError(f"{subject!r} is already a person of this test.")
        person: AskedPerson = await self._app.new_person(
            subject,
            revision=revision or self._client.revision,
            declares=self._client.declares if declares is None else declares,
        )
        return person

    async def restarts(self) -> None:
        """Restart the server between two calls.

        All that its process has in memory is lost: connections, waiting calls, caches. The store,
        the payment provider and people's browsers stay. If the test passed a function that makes
        the server, the function makes a new one.
        """
        await self._app.close()
        await self._app.open()
        for client in self._app.clients:
            await client.connect()

    async def posts(
        self,
        path: str,
        *,
        json: Any = None,
        content: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send a POST to a route of your server, as a service on another machine does."""
        transport = httpx.ASGITransport(self._app.asgi, client=_ELSEWHERE)
        async with httpx.AsyncClient(transport=transport, base_url=URL) as service:
            return await service.post(path, json=json, content=content, headers=headers)

    # Calls.

    async def call(self, tool: str, /, **arguments: Json) -> ReceivedResult:
        """Call a tool and return what the model sees at the end.

        A client that does not declare URL mode gets the link in a result. The person follows the
        link, and the same call is made again.

        Raises:
            UnexpectedQuestion: A tool asked a question that the test did not plan.
        """
        self._call = (tool, arguments)
        self._left.clear()
        await self._answer_shown()
        result = await self._call_once(tool, arguments)
        while result is None or await self._follow_all(result.text):
            result = await self._call_once(tool, arguments)
        await asyncio.gather(*self._acting, return_exceptions=True)
        self._raise_failure()
        await self.catch_up()
        await self._settled()
        return result

    async def _call_once(self, tool: str, arguments: Mapping[str, Json]) -> ReceivedResult | None:
        """Return the result, or None if the same call has to be made again."""
        result: CallToolResult | None = None
        try:
            with CancelScope() as self._calling, calling_as(self._client.token):
                result = await self.client.call_tool(tool, dict(arguments))
        finally:
            self._calling = None
            self._app.hold(nothing=False)
        if self._is_lost:
            self._is_lost = False
            await self._client.connect()
            return None
        if result is not None:
            return ReceivedResult.of(result)
        return None if self._unseen else _GAVE_UP

    async def follows(self, link: str) -> bool:
        """Open a link that the model passed on to the person, and run the planned action.

        Return False if repeating the same call would not get any further.
        """
        asked = await self._asked_by(link)
        if asked.id in self._done | self._left or asked.status.is_final:
            return False
        pause = self._next_pause()
        if pause is Pause.DISCONNECTED:
            await self._client.connect()
        if pause is not None:
            return pause is not Pause.LEFT_OPEN
        result = await self._act(asked, link=link, is_form=False)
        if result is AGAIN:
            return await self.follows(link)
        if result.action == "cancel":
            return False
        return not self._failures and (await self._get(asked.id)).status is not Status.EXPIRED

    async def catch_up(self) -> None:
        """Run the actions that are planned for the time after the tool has given up."""
        later, self._later = self._later, []
        for each in later:
            await each()

    async def let_pass(self, **amount: float) -> None:
        """Move the clock (`minutes=5`), then run the work that has become due."""
        self.clock.tick(**amount)
        await fall_due(self._app.service)
        await self._settled()

    async def elicitation_callback(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        """Answer a client of the `mcp` library: Client(server, elicitation_callback=...)."""
        return await self._answer(params)

    async def elicitation_handler(
        self, _message: str, _type: object, params: Any, _context: object, /
    ) -> ElicitResult:
        """Answer a client of FastMCP: Client(server, elicitation_handler=...)."""
        return await self._answer(params)

    # Results.

    @property
    def asked(self) -> tuple[ReceivedQuestion, ...]:
        """The questions that this person was asked, in order, each question once."""
        asked_of = self._app.asked_of
        return tuple(question for id, question in asked_of.items() if self._is_own(owner_of(id)))

    @property
    def endings(self) -> tuple[Ending, ...]:
        """The endings that callbacks of `elicit.on_end` received, one for each try."""
        return tuple(self._app.service.endings.ran)

    async def payments(self) -> list[Payment]:
        """Return all payments with their price, purpose, and whether they are spent or refunded."""
        return await self._rows("payment", Payment)

    async def accounts(self) -> list[Connection]:
        """Return the connected accounts."""
        return await self._rows("account", Connection)

    # Internals.

    def _is_own(self, owner: str) -> bool:
        """Return True for this person's data. Data of unknown owners is the first person's."""
        own, clients = self._client, self._app.clients
        others = [one.owner for one in clients if one is not own]
        return owner not in others if own is clients[0] else owner == own.owner

    async def _answer(self, params: Any) -> ElicitResult:
        is_form, message = not isinstance(params, ElicitRequestURLParams), str(params.message)
        found = await (self._asked_in_form(message) if is_form else self._asked_by(params.url))
        if found is None:
            self._failures.append(UnexpectedForm(message))
            return CANCEL
        asked = found
        link = self._app.service.links.of(asked, now=self.clock()) if is_form else params.url
        pause = Pause.UNSEEN if asked.id in self._unseen else self._next_pause()
        if pause is not None:
            await self._pause(pause, asked, link=link, is_form=is_form)
            return ACCEPT
        if is_form and asked.id in self._done:
            return await self._fail(asked, AssertionError(f"The form was shown again: {message}"))
        result = await self._act(asked, link=link, is_form=is_form)
        return await self._answer(params) if result is AGAIN else result

    def _next_pause(self) -> Pause | None:
        if self._plan and isinstance(self._plan[0], Pause):
            return cast("Pause", self._plan.popleft())
        return None

    async def _pause(self, pause: Pause, asked: Elicitation, *, link: str, is_form: bool) -> None:
        """Let the client behave as planned. Return only if the client answers the server.

        Move the clock so far that the server no longer holds the call.
        """
        if self._calling is None:
            raise AssertionError(f"The action {pause.value!r} needs person.call(...).")
        is_modern = self._client.revision == MODERN
        if pause is Pause.DISCONNECTED:
            self._is_lost = True
            self._calling.cancel()
            await asyncio.Event().wait()
        (self._unseen if pause is Pause.UNSEEN else self._left).add(asked.id)
        self.clock.tick(seconds=LIMITS.call.total_seconds() + 1)
        if pause is Pause.LEFT_OPEN and not is_modern:
            self._shown[asked.id] = (self._call, link)
        if pause is Pause.LEFT_OPEN and not is_form:
            self._app.hold(nothing=True)
            return
        if is_modern:
            self._calling.cancel()  # the client shows its form, or nothing, and ends the call
        else:
            self._app.service.elicitations.waiters.wake_all()
        await asyncio.Event().wait()

    async def _answer_shown(self) -> None:
        """Answer the questions of this call that the client still shows from an earlier call."""
        for id, (call, link) in [*self._shown.items()]:
            if call != self._call:
                continue
            asked, pause, result = await self._get(id), None, AGAIN
            while result is AGAIN and not (asked.status.is_final or id in self._done):
                pause, result = self._next_pause(), ACCEPT
                if pause is None:
                    result = await self._act(asked, link=link, is_form=False)
            if pause is Pause.LEFT_OPEN:
                self._left.add(id)
                self._app.hold(nothing=True)
                continue
            del self._shown[id]
            if pause is Pause.DISCONNECTED:
                await self._client.connect()

    async def _act(self, asked: Elicitation, *, link: str, is_form: bool) -> ElicitResult:
        if asked.id in self._done:
            return ACCEPT
        self._done.add(asked.id)
        self._unseen.discard(asked.id)
        await self._app.learn_ids()
        act = await self._planned_for(asked)
        if act is None:
            planned = self._plan.popleft() if self._plan else None
            says = planned.says if isinstance(planned, Act) else planned and planned.value
            return await self._fail(asked, UnexpectedQuestion(self._received(asked), planned=says))
        if self._client.subject is not None:
            await self._app.sign_in(self._browser, self._client.subject)
        errand = Errand(
            app=self._app, browser=self._browser, asked=asked, link=link, is_form=is_form
        )
        acting = asyncio.create_task(self._do(act, errand))
        self._acting.add(acting)  # a client stops its callback when the question has ended
        acting.add_done_callback(self._acting.discard)
        result = await asyncio.shield(acting)
        if act.leaves_open:
            self._done.discard(asked.id)
        if result.action == "cancel" and not (await self._get(asked.id)).status.is_final:
            self._done.discard(asked.id)  # the question is still open, and can be answered later
        return result

    async def _do(self, act: Act, errand: Errand) -> ElicitResult:
        try:
            return await act.do(errand)
        except Exception as error:  # noqa: BLE001 - also from the test's own code: `call` raises it
            return await self._fail(errand.asked, error)

    def _received(self, asked: Elicitation) -> ReceivedQuestion:
        return self._app.asked_of.get(asked.id) or ReceivedQuestion.of(asked)

    async def _planned_for(self, asked: Elicitation) -> Act | None:
        """Return the next planned action that is valid for the question, or None.

        If several questions are open together, a client can show them in any order, so all planned
        actions are candidates.
        """
        page = traits_of(asked.kind).page
        others = [
            await self._get(question.id) for question in self.asked if question.id not in self._done
        ]
        is_alone = all(other.status.is_final for other in others)
        for act in [*self._plan][: 1 if is_alone else None]:
            if isinstance(act, Act) and (act.pages is None or page in act.pages):
                self._plan.remove(act)
                return act
        return None

    async def _fail(self, asked: Elicitation, error: Exception) -> ElicitResult:
        """Fail the question with this error, so that the tool continues and receives the error."""
        says = str(error) if isinstance(error, AssertionError) else repr(error)
        if error not in self._failures:
            self._failures.append(error)
        await self._app.service.elicitations.end(asked, Status.FAILED, why=says)
        return CANCEL

    async def _asked_in_form(self, message: str) -> Elicitation | None:
        found: Elicitation | None = None
        for question in reversed(self.asked):
            asked = await self._get(question.id)
            # A form that is shown again begins with the errors of the last answer.
            if not asked.status.is_final and f"\n\n{asked.request.message}" in f"\n\n{message}":
                if question.id not in self._done:
                    return asked
                found = found or asked
        return found

    async def _get(self, id: str) -> Elicitation:
        found = await self._app.service.elicitations.get(id)
        assert found is not None, id
        return found

    async def _rows(self, kind: str, of: type[T]) -> list[T]:
        rows = self._app.service.elicitations.rows
        found = await self._app.store.list(kind)
        return [await rows.open(record, of) for record in found if self._is_own(record.owner)]

    async def _follow_all(self, text: str) -> bool:
        """Follow each link in the text. Return True if the same call can then continue."""
        return any([await self.follows(link) for link in dict.fromkeys(_LINK.findall(text))])

    async def _settled(self) -> None:
        """Wait until the results are stored as delivered and the callbacks of `on_end` have run."""
        await self._app.learn_ids()
        await self._app.service.running_tools.noted()
        await self._app.service.endings.settled()

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures.pop(0)

    @property
    def _failures(self) -> list[Exception]:
        return self._app.failures

    async def _asked_by(self, link: str) -> Elicitation:
        """Return the question of a link."""
        token = link.rsplit("/", 1)[1]
        claims = self._app.service.links.read(token, purpose=Purpose.LINK, now=self.clock())
        return await self._get(claims.id)
