"""The person of a test: their planned actions, the questions they received, and the results.

Risks: a test waits for a person who never acts. So a question without a planned action fails at
once, and the test fails too.
"""

import asyncio
import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import httpx
from anyio import CancelScope
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.server.auth.provider import AccessToken
from mcp_types import CallToolResult, ElicitRequestParams, ElicitRequestURLParams, ElicitResult

from flows.crypto.tokens import Purpose
from flows.elicitation.ending import Ending
from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import traits_of
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from webapp.records.ids import owner_of
from webapp.sweeper import fall_due
from webapp.testing.acts import ACCEPT, CANCEL, Act, Errand, Pause
from webapp.testing.application import (
    LIMITS,
    MODERN,
    URL,
    ConnectedClient,
    TestedApplication,
    calling_as,
)
from webapp.testing.planned import PlannedActions
from webapp.testing.told import (
    Heard,
    NeverAsked,
    StillOpen,
    Told,
    UnexpectedForm,
    UnexpectedQuestion,
)
from webapp.testing.webhooks import ProviderWebhooks

if TYPE_CHECKING:
    from webapp.calls.replay import ReplayedCall

T = TypeVar("T", Payment, Connection)
_CallOf: TypeAlias = tuple[str, Mapping[str, Json]]  # a tool and its arguments
_Shown: TypeAlias = tuple[_CallOf, str]  # the call that asked, and the link
_LINK = re.compile(rf"{re.escape(URL)}/e/[A-Za-z0-9_.-]+")
_ELSEWHERE = ("192.0.2.7", 49152)  # the address of a service on another machine
# The client ended the call because the person has not answered: the model gets no result.
_GAVE_UP = Heard.of(CallToolResult(content=[], is_error=True))


class AskedPerson(PlannedActions):
    """The simulated person: planned actions, received questions, and results.

    Plan the actions before the call, in the order of the questions. `clock` is the time of day that
    the test moves. `webhooks` are the payment provider's. If a test makes its own client, pass it
    `elicitation_callback` (a client of the `mcp` library) or `elicitation_handler` (FastMCP).
    """

    def __init__(
        self,
        app: TestedApplication,
        *,
        subject: str | None,
        revision: str,
        declares: Collection[str],
        webhooks: ProviderWebhooks,
        places: Collection[str],
        first: "AskedPerson | None" = None,
    ) -> None:
        """Create a person. `subject` is None for the user of this machine."""
        super().__init__(app, webhooks=webhooks, places=places)
        self.clock = app.clock
        self.replayed: list[ReplayedCall] = []  # calls that ended in replay mode
        self._subject = subject
        self._revision = revision
        self._declares = frozenset(declares)
        self.people: list[AskedPerson] = [self] if first is None else first.people
        self._done: set[str] = set()  # ids of the questions that the person acted on
        self._left: set[str] = set()  # those that the person leaves open during this call
        self._shown: dict[str, _Shown] = {}  # those that the client still shows after their call
        self._unseen: set[str] = set()  # those that the client does not show
        self._acting: set[asyncio.Task[ElicitResult]] = set()
        self._calling: CancelScope | None = None
        self._call: _CallOf = ("", {})
        self._is_lost = False
        self._browser: httpx.AsyncClient
        self._connection: ConnectedClient | None = None

    async def join(self) -> None:
        """Open the browser and connect the client that `call` uses."""
        if self._subject is None and self._app.has_approvers:
            self._subject = "person"
        self._browser = await self._app.browsers.enter_async_context(self._app.browser())
        await self.connect()

    async def leave(self) -> None:
        """Close the clients of all people."""
        for person in self.people:
            await person.disconnect()

    @property
    def client(self) -> Client:
        """The client that `call` uses, for its other methods (`list_tools()`)."""
        assert self._connection is not None
        return self._connection.client

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
        answers are their own. Their client is as the first person's, unless you say otherwise.
        """
        if self._app.owner_of(subject) in [one.owner for one in self.people]:
            raise AssertionError(f"{subject!r} is already a person of this test.")
        person = AskedPerson(
            self._app,
            subject=subject,
            revision=revision or self._revision,
            declares=self._declares if declares is None else declares,
            webhooks=self.webhooks,
            places=self._places,
            first=self,
        )
        await person.join()
        self.people.append(person)
        return person

    async def restarts(self) -> None:
        """Restart the server between two calls.

        All that its process has in memory is lost: connections, waiting calls, caches. The store,
        the payment provider and people's browsers stay. If the test passed a function that makes
        the server, the function makes a new one.
        """
        for person in self.people:
            await person.disconnect()
        await self._app.close()
        await self._app.open()
        for person in self.people:
            await person.connect()

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

    async def call(self, tool: str, /, **arguments: Json) -> Heard:
        """Call a tool and return what the model sees at the end.

        A client that does not declare URL mode gets the link in a result. The person follows the
        link, and the same call is made again.

        Raises:
            UnexpectedQuestion: A tool asked a question that the test did not plan.
        """
        self._call = (tool, arguments)
        self._left.clear()
        await self._answer_shown()
        heard = await self._call_once(tool, arguments)
        while heard is None or await self._follow_all(heard.text):
            heard = await self._call_once(tool, arguments)
        await asyncio.gather(*self._acting, return_exceptions=True)
        self._raise_failure()
        await self.catch_up()
        await self._settled()
        return heard

    async def _call_once(self, tool: str, arguments: Mapping[str, Json]) -> Heard | None:
        """Return the result, or None if the same call has to be made again."""
        result: CallToolResult | None = None
        try:
            with CancelScope() as self._calling, calling_as(self._token):
                result = await self.client.call_tool(tool, dict(arguments))
        finally:
            self._calling = None
            self._app.hold(nothing=False)
        if self._is_lost:
            await self.disconnect()
            await self.connect()
            return None
        if result is not None:
            return Heard.of(result)
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
            await self.disconnect()
            await self.connect()
        if pause is not None:
            return pause is not Pause.LEFT_OPEN
        if (await self._act(asked, link=link, is_form=False)).action == "cancel":
            return False
        return not self._failures and (await self._get(asked.id)).status is not Status.EXPIRED

    async def catch_up(self) -> None:
        """Run the actions that happen after the tool has given up."""
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
    def asked(self) -> tuple[Told, ...]:
        """The questions that this person was asked, in order, each question once."""
        asked_of = self._app.asked_of
        return tuple(told for id, told in asked_of.items() if self._is_own(owner_of(id)))

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

    @property
    def owner(self) -> str:
        """The owner tag of this person's data in the store."""
        return self._app.owner_of(self._subject)

    @property
    def _token(self) -> AccessToken | None:
        """The access token of this person's calls, which names no client."""
        if self._subject is None:
            return None
        claims = {"iss": self._app.issuer}
        return AccessToken(
            token=self._subject, client_id="", scopes=[], subject=self._subject, claims=claims
        )

    def _is_own(self, owner: str) -> bool:
        """Return True for this person's data. Data of unknown owners is the first person's."""
        others = [one.owner for one in self.people if one is not self]
        return owner not in others if self is self.people[0] else owner == self.owner

    async def connect(self) -> None:
        """Connect a new client for `call`, as after a lost connection."""
        self._is_lost = False
        self._connection = await ConnectedClient.open(
            self._app,
            revision=self._revision,
            declares=self._declares,
            callback=self.elicitation_callback,
            token=self._token,
        )

    async def disconnect(self) -> None:
        """Close the connection of the client that `call` uses."""
        if self._connection is not None:
            await self._connection.close()

    async def _answer(self, params: Any) -> ElicitResult:
        if isinstance(params, ElicitRequestURLParams):
            asked, link = await self._asked_by(params.url), params.url
        else:
            found = await self._asked_in_form(str(params.message))
            if found is None:
                self._failures.append(UnexpectedForm(str(params.message)))
                return CANCEL
            asked, link = found, self._app.service.links.of(found, now=self.clock())
        is_form = not isinstance(params, ElicitRequestURLParams)
        pause = Pause.UNSEEN if asked.id in self._unseen else self._next_pause()
        if pause is not None:
            await self._pause(pause, asked, link=link, is_form=is_form)
            return ACCEPT
        return await self._act(asked, link=link, is_form=is_form)

    def _next_pause(self) -> Pause | None:
        if self.plan and isinstance(self.plan[0], Pause):
            return cast("Pause", self.plan.popleft())
        return None

    async def _pause(self, pause: Pause, asked: Elicitation, *, link: str, is_form: bool) -> None:
        """Let the client behave as planned. Return only if the client answers the server.

        Move the clock so far that the server no longer holds the call.
        """
        if self._calling is None:
            raise AssertionError(f"The action {pause.value!r} needs person.call(...).")
        is_modern = self._revision == MODERN
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
        """Answer the questions of this call that its client still shows from an earlier one."""
        for id, (call, link) in [*self._shown.items()]:
            if call != self._call:
                continue
            asked, pause = await self._get(id), None
            if not (asked.status.is_final or id in self._done):
                pause = self._next_pause()
                if pause is None:
                    await self._act(asked, link=link, is_form=False)
            if pause is Pause.LEFT_OPEN:
                self._left.add(id)
                self._app.hold(nothing=True)
                continue
            del self._shown[id]
            if pause is Pause.DISCONNECTED:
                await self.disconnect()
                await self.connect()

    async def _act(self, asked: Elicitation, *, link: str, is_form: bool) -> ElicitResult:
        if asked.id in self._done:
            return ACCEPT
        self._done.add(asked.id)
        self._unseen.discard(asked.id)
        await self._app.learn_ids()
        act = await self._planned_for(asked)
        if act is None:
            planned = self.plan.popleft() if self.plan else None
            says = planned.says if isinstance(planned, Act) else planned and planned.value
            return await self._fail(asked, UnexpectedQuestion(self._told(asked), planned=says))
        if self._subject is not None:
            await self._app.sign_in(self._browser, self._subject)
        errand = Errand(
            app=self._app, browser=self._browser, asked=asked, link=link, is_form=is_form
        )
        acting = asyncio.create_task(self._do(act, errand))
        self._acting.add(acting)  # a client stops its callback when the question has ended
        acting.add_done_callback(self._acting.discard)
        result = await asyncio.shield(acting)
        if result.action == "cancel" and not (await self._get(asked.id)).status.is_final:
            self._done.discard(asked.id)  # the question is still open, and can be answered later
        return result

    async def _do(self, act: Act, errand: Errand) -> ElicitResult:
        try:
            return await act.do(errand)
        except AssertionError as error:
            return await self._fail(errand.asked, error)

    def _told(self, asked: Elicitation) -> Told:
        return self._app.asked_of.get(asked.id) or Told.of(asked)

    async def _planned_for(self, asked: Elicitation) -> Act | None:
        """Return the next planned action that is valid for the question, or None.

        If several questions are open together, a client can show them in any order, so all planned
        actions are candidates.
        """
        page = traits_of(asked.kind).page
        others = [await self._get(told.id) for told in self.asked if told.id not in self._done]
        is_alone = all(other.status.is_final for other in others)
        for act in [*self.plan][: 1 if is_alone else None]:
            if isinstance(act, Act) and (act.pages is None or page in act.pages):
                self.plan.remove(act)
                return act
        return None

    async def _fail(self, asked: Elicitation, error: AssertionError) -> ElicitResult:
        """Fail the question with this error, so that the tool continues and receives the error."""
        if error not in self._failures:
            self._failures.append(error)
        await self._app.service.elicitations.end(asked, Status.FAILED, why=str(error))
        return CANCEL

    async def _asked_in_form(self, message: str) -> Elicitation | None:
        for told in reversed(self.asked):
            asked = await self._get(told.id)
            is_open = told.id not in self._done and not asked.status.is_final
            if is_open and message.startswith(asked.asked.message):
                return asked
        return None

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

    async def is_awaited(self, id: str, *, at_most: timedelta) -> None:
        """Fail a question that is still open after `at_most`, because nobody acts on it."""
        await asyncio.sleep(at_most.total_seconds())
        asked = await self._get(id)
        if not asked.status.is_final:
            await self._fail(
                asked, StillOpen(self._told(asked), last_call=str(self._app.last_call))
            )

    def must_be_done(self) -> None:
        """Raise the first failure of the test that was not raised yet.

        Raises:
            NeverAsked: A planned action is left over.
        """
        self._raise_failure()
        plan = [each for person in self.people for each in person.plan]
        if plan:
            says = [each.says if isinstance(each, Act) else each.value for each in plan]
            raise NeverAsked(says, last_call=str(self._app.last_call))

    @property
    def _failures(self) -> list[AssertionError]:
        return self._app.failures

    async def _asked_by(self, link: str) -> Elicitation:
        """Return the question of a link."""
        token = link.rsplit("/", 1)[1]
        claims = self._app.service.links.read(token, purpose=Purpose.LINK, now=self.clock())
        return await self._get(claims.id)
