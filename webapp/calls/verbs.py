"""What a running tool may do beside asking: keep work, complete, forget, use what it was given."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from flows.elicitation.run import AskedStep, Run, Step
from flows.elicitation.states import Completion, Elicitation, Json, Status
from flows.elicitation.tool_call import ToolCall
from flows.elicitation.traits import traits_of
from flows.errors import ElicitError, NotAllowed
from flows.question import (
    Outcome,
    Question,
    Request,
    ReturningRequest,
    current_body,
    digest_of,
)
from webapp.calls.once import KEPT, KEPT_UNDER_A_RECEIPT, OnceKey, Working, do_once, do_unkept
from webapp.calls.prefetched import Fact, Prefetched
from webapp.calls.presenter import Prompts
from webapp.calls.resources import OwnersReach
from webapp.calls.run import CurrentRun
from webapp.calls.together import ask_all
from webapp.calls.unasked import nothing_stands_before
from webapp.completion import Completing
from webapp.elicitations.question_kind import AskedBy
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.identity.identity import Caller
from webapp.kinds.registry import Kinds

T = TypeVar("T")


class Verbs(ABC):
    """The part of flows.question.Asker that no waiting belongs to; `Call` has the rest."""

    leg: str  # of the run, which this call is

    def __init__(
        self,
        *,
        elicitations: Elicitations,
        completing: Completing,
        kinds: Kinds,
        outbound: Outbound,
        caller: Caller,
        tool: ToolCall,
        run: CurrentRun,
        accounts: Mapping[str, str],
    ) -> None:
        """`accounts` are those that the body got in earlier legs, by the digest of the question."""
        self.elicitations = elicitations
        self.kinds = kinds
        self.run = run
        self.tool = tool
        self.caller = caller
        self.last_error: ElicitError | None = None
        self.is_over = False
        self.handed = Prefetched()
        self.hidden: set[str] = set()  # what no error may carry to the model
        self.accounts = dict(accounts)  # and in this one
        self._of_earlier_legs = frozenset(accounts)
        self.working = Working()
        self.has_paid = False  # the body has seen a payment
        self.again: bool | None = None  # of what `note_use` tells; None: of nothing yet
        self._receipt: str | None = None  # what was paid last in this leg, for this very call
        self._completing = completing
        self._outbound = outbound

    @property
    def has_accounts_of_earlier_legs(self) -> bool:
        return bool(self._of_earlier_legs)

    def drop_accounts(self) -> None:
        """Their run goes on no more: this call gets what is in use by now."""
        for digest in self._of_earlier_legs:
            self.accounts.pop(digest, None)
        self._of_earlier_legs = frozenset[str]()

    @property
    def resources(self) -> OwnersReach:
        run = self.run.value
        return OwnersReach(
            owner=run.owner,
            run=run.id,
            leg=self.leg,
            tool=self.tool.tool,
            calling_client=self.tool.calling_client,
            is_over=lambda: self.is_over,
            payments=self.kinds.payments,
            outbound=self._outbound,
            accounts=self.kinds.accounts,
            hide=self.hidden.add,
        )

    def fact(self, request: Request) -> Fact:
        """What tells its question from others. Raises NotConfigured."""
        facts = self.kinds[request.kind].facts(request)
        return request.kind, digest_of(request.kind, facts)

    async def ask_together(
        self, questions: Sequence[Question[Any]], *, stops_at_no: bool
    ) -> tuple[Outcome[Any], ...]:
        try:
            await nothing_stands_before()
            outcomes = await ask_all(self, questions, stops_at_no=stops_at_no)
        except ElicitError as error:
            self.last_error = error
            raise
        noes = (outcome.error for outcome in outcomes if outcome.error is not None)
        self.last_error = next(noes, None)
        return outcomes

    async def once(
        self,
        name: str,
        work: Callable[[str], Awaitable[Json]],
        *,
        key: str | int | None = None,
        again: bool | None,
    ) -> Json:
        """Kept under the run: the same call made again after a crash carries it on.

        After a payment it is kept under the receipt: whichever call gets that again, what was
        bought happens once. `again` is None where it is not the tool's own work, which is named by
        whoever does it. Raises NotAllowed for a caller who is refused: nothing could be kept, and
        the work would be done again.
        """
        body = current_body()
        try:
            await nothing_stands_before()
            if again is None:
                result = await self._once(name, work, step=("", "", ""))
            else:
                step = (self.tool.tool, body.path, json.dumps(key))
                with body.using(name, key):
                    result = await self._once(name, work, step=step)
            if again is not None:
                self.note_use(again=again)
            return result
        except ElicitError as error:
            self.last_error = error
            raise

    def token(self, elicitation_id: str, *, timeout: timedelta) -> str:
        return self._completing.token(elicitation_id, timeout=timeout)

    def read_token(self, text: str) -> str:
        try:
            return self._completing.read_token(text)
        except ElicitError as error:
            self.last_error = error
            raise

    async def complete(
        self, elicitation_id: str, content: Json, *, owner: str | None = None
    ) -> Completion:
        await nothing_stands_before()
        return await self._completing.complete(elicitation_id, content, owner=owner)

    async def complete_return(self, request: ReturningRequest, content: Json) -> Completion:
        await nothing_stands_before()
        return await self._completing.complete_return(request, content)

    async def forget(self, name: str) -> bool:
        await nothing_stands_before()
        await self._must_be_going_on()
        owner = self.caller.must_be_known()
        return await self.kinds.secrets.forget(owner=owner, server=self.tool.server, name=name)

    def note(self, fact: Fact, content: Json) -> None:
        """Remember what is secret of an answer, and which account or receipt it is."""
        kind, digest = fact
        traits = traits_of(kind)
        if traits.is_secret:
            self.hidden.update(_texts(content))
        elif traits.gives == "account" and isinstance(content, Mapping):
            self.hidden.update(_texts(content.get("access_token")))
            self.accounts[digest] = str(content.get("connection"))
        elif traits.gives == "receipt" and isinstance(content, Mapping):
            self.has_paid = True
            # What is bought for good is used by many calls, each of which does its own work.
            is_for_good = bool(content.get("once"))
            self._receipt = None if is_for_good else str(content.get("id"))
            if not is_for_good:
                self.note_use(again=False)

    def note_use(self, *, again: bool) -> None:
        """The result will have used a payment or `once`: the same call made again may repeat it."""
        self.again = again or bool(self.again)

    def failed(self, error: ElicitError) -> None:
        self.last_error = error

    async def _known(self, request: Request, digest: str, asking: AskedStep | None) -> Json | None:
        """An answer that needs no asking, unless what was asked there may still bring one."""
        kind = self.kinds[request.kind]
        if not kind.may_know:
            return None
        by = AskedBy(
            owner=self.run.value.owner,
            server=self.tool.server,
            tool=self.tool.tool,
            version=self.tool.version,
            client=self.tool.calling_client,
            account=self.accounts.get(digest),
            is_later_leg=digest in self._of_earlier_legs,
        )
        if asking is not None:
            asked = await self.elicitations.get(asking.elicitation_id)
            if asked is not None and asked.delivered_at is None and await self._is_open(asked, by):
                return None
        return await kind.known(request, by)

    def _must_be_askable(self, kind: str, *, in_client: bool) -> None:
        """Raises NotSupported, NotAllowed."""
        self.kinds.policies.must_have_form(kind, in_client=in_client)
        self.caller.must_be_answerable(kind, in_client=in_client)

    async def _is_open(self, asked: Elicitation, by: AskedBy) -> bool:
        if traits_of(asked.kind).is_gate and asked.status is Status.ACCEPTED:
            return await self.kinds.gates.still_stands(asked, by)
        return self.elicitations.clock() < asked.kept_until

    async def _once(
        self, name: str, work: Callable[[str], Awaitable[Json]], *, step: OnceKey
    ) -> Json:
        await self._must_be_going_on()
        if self.caller.owner is None:
            if self.caller.refusal is not None:
                raise NotAllowed(
                    f"once({name!r}) was not begun, as nothing of it could be kept. "
                    f"{self.caller.refusal}"
                )
            return await do_unkept(name, work, working=self.working)
        await self._the_run()
        run = await self.run.begin()
        return await do_once(
            self.elicitations,
            owner=run.owner,
            scope=self._receipt or run.id,
            kept=KEPT if self._receipt is None else KEPT_UNDER_A_RECEIPT,
            name=name,
            step=step,
            work=work,
            working=self.working,
            wait=self.wait_for,
        )

    @abstractmethod
    async def wait_for(self, others: Collection[asyncio.Future[Any]]) -> None: ...

    @property
    @abstractmethod
    def is_interrupted(self) -> bool: ...

    @abstractmethod
    async def step(self, question: Question[T]) -> Step | Outcome[T]: ...

    @abstractmethod
    async def ask_at(self, step: Step, question: Question[T], group: Prompts) -> Outcome[T]: ...

    @abstractmethod
    async def _must_be_going_on(self) -> None:
        """Raises CallOver."""

    @abstractmethod
    async def _the_run(self) -> Run:
        """This leg's run; does not return where its result is there already."""


def _texts(content: Json) -> list[str]:
    match content:
        case str():
            return [content]
        case Mapping():
            return [text for value in content.values() for text in _texts(value)]
        case list() | tuple():
            return [text for value in content for text in _texts(value)]
        case int() | float() if not isinstance(content, bool):
            return [str(content)]
        case _:
            return []
