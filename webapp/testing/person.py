"""The person of a test: their planned actions, the questions they received, and the results.

Risks: a test waits for a person who never acts. So a question without a planned action fails at
once, and the test fails too.
"""

import asyncio
import re
from collections import deque
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Mapping,
)
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import (
    ElicitRequestParams,
    ElicitRequestURLParams,
    ElicitResult,
)

from flows.crypto.tokens import Purpose
from flows.elicitation.ending import Ending
from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import traits_of
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from webapp.deadline import HandClock
from webapp.service import Service
from webapp.sweeper import fall_due
from webapp.testing import acts
from webapp.testing.acts import ACCEPT, CANCEL, VALUE, Act, Do, Errand
from webapp.testing.told import (
    Heard,
    LastCall,
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
URL = "http://127.0.0.1:8765"
_LINK = re.compile(rf"{re.escape(URL)}/e/[^\s\"<>)]+")


class AskedPerson:
    """The simulated person: planned actions, received questions, and results.

    Plan the actions before the call, in the order of the questions. `clock` is the time of day that
    the test moves. `webhooks` are the payment provider's. If a test makes its own client, pass it
    `elicitation_callback` (a client of the `mcp` library) or `elicitation_handler` (FastMCP).
    """

    def __init__(
        self,
        *,
        service: Service,
        clock: HandClock,
        browser: httpx.AsyncClient,
        webhooks: ProviderWebhooks,
        places: Collection[str],
        failures: list[AssertionError],
        asked_of: dict[str, Told],
        last_call: LastCall,
    ) -> None:
        self.clock = clock
        self.webhooks = webhooks
        self.replayed: list[ReplayedCall] = []  # calls that ended in replay mode
        self._service = service
        self._browser = browser
        self._places = places
        self._failures = failures
        self._asked_of = asked_of
        self._last_call = last_call
        self._plan: deque[Act] = deque()
        self._later: list[Callable[[], Awaitable[object]]] = []
        self._done: set[str] = set()  # ids of the questions that the person acted on
        self._client: Client | None = None

    def meet(self, client: Client) -> None:
        """Set the client that `call` uses."""
        self._client = client

    @property
    def client(self) -> Client:
        """The client that `call` uses, for its other methods (`list_tools()`)."""
        assert self._client is not None
        return self._client

    # Planned actions.

    def accepts(self, **content: Json) -> None:
        """Accept any question. `content` fills in a form."""

        async def do(errand: Errand) -> ElicitResult:
            match traits_of(errand.asked.kind).page:
                case "account":
                    return await acts.connect(errand, account=None, decision="approve")
                case "payment":
                    return await acts.pay(errand)
                case "url":
                    return await self._walk(errand, {})
                case _:
                    return await acts.answer(errand, content)

        self._will("accept", do)

    def declines(self) -> None:
        """Decline on our page or in the client's form."""
        self._will("decline", acts.decline)

    def dismisses(self) -> None:
        """Close what the client shows without an answer. A later call can ask the same again."""
        self._will("dismiss it", acts.dismiss)

    def connects(self, account: str | None = None) -> None:
        """Connect an account, or allow the connected account.

        `account` is one of the sandbox's people, chosen on the provider's page.
        """
        does = partial(acts.connect, account=account, decision="approve")
        self._will("connect an account", does, "account")

    def types_key(self, key: str, *, user: str | None = None, tenant: str | None = None) -> None:
        """Type an API key, or a user name and a password, for an account.

        The provider's API tests it: simulate the API with `outside` of `elicit_person`.
        """
        given = {"tenant": tenant, "user": user, "key": key}
        fields = {name: value for name, value in given.items() if value is not None}
        self._will("type a key", partial(acts.type_key, fields=fields), "account")

    def denies(self) -> None:
        """Decline on the provider's page of an account."""
        does = partial(acts.connect, account=None, decision="deny")
        self._will("deny the account", does, "account")

    def pays(self) -> None:
        self._will("pay", acts.pay, "payment")

    def leaves(self) -> None:
        """Return from the checkout without paying."""
        self._will("leave the checkout", partial(acts.pay, button="cancel"), "payment")

    def pays_late(self) -> None:
        """Pay after the question has expired: the webhook arrives when the tool has given up.

        `call` delivers the webhook before it returns. With a client of your own, call `catch_up`.
        """

        async def do(errand: Errand) -> ElicitResult:
            self.webhooks.hold()
            await acts.pay(errand, comes_back=False)
            self._later.append(self.webhooks.release)
            return await self._expire(errand)

        self._will("pay late", do, "payment")

    def types(self, *value: str, **fields: Json) -> None:
        """Type a secret on our page: one text, or the fields by name."""
        content = {VALUE: value[0]} if value else fields
        does = partial(acts.answer, content=content)
        self._will("type a secret", does, "secret")

    def fills(self, **content: Json) -> None:
        """Fill in a form with these answers."""
        self._will("fill in a form", partial(acts.answer, content=content), "form", "confirm")

    def visits(self, **fields: str) -> None:
        """Follow a `url` question to the author's own pages and fill in their forms."""
        self._will("visit a page", partial(self._walk, fields=fields), "url")

    def completes(self, **content: Json) -> None:
        """Follow a `url` question, then complete it as the author's service would."""

        async def do(errand: Errand) -> ElicitResult:
            await errand.go_on()
            await self._service.completing.complete(errand.asked.id, content, owner=None)
            return ACCEPT

        self._will("complete a visit", do, "url")

    def never_comes(self) -> None:
        """Open nothing until the question expires."""
        self._will("leave the question unanswered", self._expire)

    def does(self, what: Callable[[str, httpx.AsyncClient], Awaitable[object]]) -> None:
        """Run a custom action: `what` receives the link and the person's browser."""

        async def do(errand: Errand) -> ElicitResult:
            await what(errand.link, errand.browser)
            return ACCEPT

        self._will("run the function of the test", do)

    # Calls.

    async def call(self, tool: str, /, **arguments: Json) -> Heard:
        """Call a tool and return what the model sees at the end.

        A client that does not declare URL mode gets the link in a result. The person follows the
        link, and the same call is made again.

        Raises:
            UnexpectedQuestion: A tool asked a question that the test did not plan.
        """
        heard = Heard.of(await self.client.call_tool(tool, dict(arguments)))
        while await self._follow_all(heard.text):
            heard = Heard.of(await self.client.call_tool(tool, dict(arguments)))
        self._raise_failure()
        await self.catch_up()
        await self._settled()
        return heard

    async def follows(self, link: str) -> bool:
        """Open a link that the model passed on to the person, and run the planned action.

        Return False if repeating the same call would not get any further.
        """
        token = link.rsplit("/", 1)[1]
        claims = self._service.links.read(token, purpose=Purpose.LINK, now=self.clock())
        asked = await self._get(claims.id)
        if asked.id in self._done or asked.status.is_final:
            return False
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
        await fall_due(self._service)
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
        """The questions that were asked, in order, each question once."""
        return tuple(self._asked_of.values())

    @property
    def endings(self) -> tuple[Ending, ...]:
        """The endings that callbacks of `elicit.on_end` received, one for each try."""
        return tuple(self._service.endings.ran)

    async def payments(self) -> list[Payment]:
        """Return all payments with their price, purpose, and whether they are spent or refunded."""
        return await self._rows("payment", Payment)

    async def accounts(self) -> list[Connection]:
        """Return the connected accounts."""
        return await self._rows("account", Connection)

    # Internals.

    def _will(self, says: str, do: Do, *pages: str) -> None:
        self._plan.append(Act(says=says, do=do, pages=frozenset(pages) or None))

    async def _walk(self, errand: Errand, fields: Mapping[str, str]) -> ElicitResult:
        return await acts.visit_page(errand, fields, [*self._places, *errand.asked.asked.origins])

    async def _expire(self, errand: Errand) -> ElicitResult:
        remaining = errand.asked.expires_at - self.clock()
        self.clock.tick(seconds=max(remaining, timedelta()).total_seconds() + 1)
        await self._service.elicitations.end(errand.asked, Status.EXPIRED)
        return CANCEL if errand.is_form else ACCEPT

    async def _answer(self, params: Any) -> ElicitResult:
        if isinstance(params, ElicitRequestURLParams):
            token = params.url.rsplit("/", 1)[1]
            claims = self._service.links.read(token, purpose=Purpose.LINK, now=self.clock())
            return await self._act(await self._get(claims.id), link=params.url, is_form=False)
        asked = await self._asked_in_form(str(params.message))
        if asked is None:
            self._failures.append(UnexpectedForm(str(params.message)))
            return CANCEL
        link = self._service.links.of(asked, now=self.clock())
        return await self._act(asked, link=link, is_form=True)

    async def _act(self, asked: Elicitation, *, link: str, is_form: bool) -> ElicitResult:
        if asked.id in self._done:
            return ACCEPT
        self._done.add(asked.id)
        act = await self._planned_for(asked)
        if act is None:
            planned = self._plan.popleft().says if self._plan else None
            return await self._fail(asked, UnexpectedQuestion(Told.of(asked), planned=planned))
        errand = Errand(
            service=self._service, browser=self._browser, asked=asked, link=link, is_form=is_form
        )
        try:
            result = await act.do(errand)
        except AssertionError as error:
            return await self._fail(asked, error)
        if result.action == "cancel" and not (await self._get(asked.id)).status.is_final:
            self._done.discard(asked.id)  # the question is still open, and can be answered later
        return result

    async def _planned_for(self, asked: Elicitation) -> Act | None:
        """Return the next planned action that is valid for the question, or None.

        If several questions are open together, a client can show them in any order, so all planned
        actions are candidates.
        """
        page = traits_of(asked.kind).page
        others = [await self._get(id) for id in self._asked_of if id not in self._done]
        is_alone = all(other.status.is_final for other in others)
        for act in [*self._plan][: 1 if is_alone else None]:
            if act.pages is None or page in act.pages:
                self._plan.remove(act)
                return act
        return None

    async def _fail(self, asked: Elicitation, error: AssertionError) -> ElicitResult:
        """Fail the question with this error, so that the tool continues and receives the error."""
        if error not in self._failures:
            self._failures.append(error)
        await self._service.elicitations.end(asked, Status.FAILED, why=str(error))
        return CANCEL

    async def _asked_in_form(self, message: str) -> Elicitation | None:
        for id in reversed(self._asked_of):
            asked = await self._get(id)
            is_open = id not in self._done and not asked.status.is_final
            if is_open and message.startswith(asked.asked.message):
                return asked
        return None

    async def _get(self, id: str) -> Elicitation:
        found = await self._service.elicitations.get(id)
        assert found is not None, id
        return found

    async def _rows(self, kind: str, of: type[T]) -> list[T]:
        rows = self._service.elicitations.rows
        found = await self._service.elicitations.store.list(kind)
        return [await rows.open(record, of) for record in found]

    async def _follow_all(self, text: str) -> bool:
        """Follow each link in the text. Return True if the same call can then continue."""
        links = dict.fromkeys(_LINK.findall(text))
        return any([await self.follows(link) for link in links])

    async def _settled(self) -> None:
        """Wait until the results are stored as delivered and the callbacks of `on_end` have run."""
        await self._service.running_tools.noted()
        await self._service.endings.settled()

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures.pop(0)

    async def is_awaited(self, id: str, *, at_most: timedelta) -> None:
        """Fail a question that is still open after `at_most`, because nobody acts on it."""
        await asyncio.sleep(at_most.total_seconds())
        asked = await self._get(id)
        if not asked.status.is_final:
            await self._fail(asked, StillOpen(Told.of(asked), last_call=str(self._last_call)))

    def must_be_done(self) -> None:
        """Raise the first failure of the test that was not raised yet.

        Raises:
            NeverAsked: A planned action is left over.
        """
        self._raise_failure()
        if self._plan:
            says = [act.says for act in self._plan]
            raise NeverAsked(says, last_call=str(self._last_call))
