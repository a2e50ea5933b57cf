"""The Elicit class: the asker of a Python program, over the HTTP API of a server.

Risks: an answer is used up before the program has saved its results. So the client reports no
answer as used until the block ends (`webapp.client` explains how).
"""

import asyncio
import inspect
import json
import re
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar, cast

import httpx

from flows import question as questions
from flows.elicitation.ending import refusal
from flows.elicitation.misuse import Unasked
from flows.elicitation.once_work import OnceWork
from flows.elicitation.shown_link import Show, ShownLink
from flows.elicitation.states import Completion, Json, Status
from flows.elicitation.tool_call import CallingPerson
from flows.errors import (
    Cancelled,
    ElicitError,
    InvalidQuestion,
    NotAccepted,
    NotAllowed,
    NotPossible,
    NotSupported,
    Processing,
)
from flows.kinds.form import Form
from flows.payments.receipt import Receipt
from flows.payments.session import is_paid_otherwise
from flows.question import Outcome, Question, ReturningRequest, current_body
from flows.requests import PaymentRequest
from webapp.calls.unasked import all_were_asked, must_have_asked_blocking
from webapp.client.answers import ServersReach, answer_of, processing
from webapp.client.requests import PATIENCE, WAIT_SECONDS, Requests, ServerRefused, body_of
from webapp.deadline import Deadline
from webapp.printing import print_text

T = TypeVar("T")
NAME_CHARACTERS: Final = 255
RESULT_CHARACTERS_AT_MOST: Final = 60 * 1024  # characters of JSON that `once` stores
_PROCESSING_POLL_SECONDS: Final = 5  # per long poll, if the program does not wait for the money
_CLAIMED_AGAIN_SECONDS: Final = 10.0
_BUSY_SECONDS: Final = 1.0
_WORD: Final = re.compile(r"[A-Za-z0-9._~-]{1,128}")  # a valid id or name of a secret


class Elicit:
    """A context manager in which questions go to the user `user`, through the server at `url`.

    Args:
        url: The address of the server.
        api_key: The program's API key.
        run: The name of the unit of work, for this user. If the program starts again with the same
            name, it continues with the same questions, payments and results of `once`.
        user: The program's own id of the user.
        access_token: The person's access token, or a function that returns it, instead of `user`.
        show: A function that receives each link once the server is waiting for the answer. It may
            be async. It is cancelled when the link is no longer needed, and its exceptions are
            raised by the await. By default the link is printed.
        on_notice: A function that receives the messages of `notify`.
        access_tokens: Give accounts their access token. The API key needs the scope `tokens`.
        patience: How long to retry while the server does not respond. While the block waits for an
            answer, it also retries until the question's timeout has passed.
        transport: An httpx transport, for example with your own certificates.

    Answers are used up when the block ends without an error. An error that reports the person's
    decision (NotAccepted, but not Cancelled or Processing) also ends the run. After any other
    error, all answers stay available to the same run.

    Raises:
        InvalidQuestion: An argument is not valid, or the HTTP API cannot ask the question.
        ServerUnreachable: The server did not respond in time.
        ServerRefused: The server refused a request.
        AlreadyDone: The run ended less than two minutes ago, and used a payment or `once`.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str,
        run: str,
        user: str | None = None,
        access_token: str | Callable[[], str] | None = None,
        show: Show | None = None,
        on_notice: Callable[[str], Awaitable[object] | object] | None = None,
        access_tokens: bool = False,
        patience: timedelta = PATIENCE,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not 0 < len(run) <= NAME_CHARACTERS:
            raise InvalidQuestion(
                f"run= must name the piece of work in 1 to {NAME_CHARACTERS} characters, for "
                'example Elicit(url, run="order 8", ...).'
            )
        if (user is None) == (access_token is None):
            raise InvalidQuestion(
                "Pass either user= or the user's access_token=, to name the person to ask."
            )
        self.run = run
        self._show = show or _print
        self._on_notice = on_notice
        self._with_tokens = access_tokens
        self._requests = Requests(
            url,
            api_key=api_key,
            user=user,
            access_token=access_token,
            patience=patience,
            transport=transport,
        )
        self._reach = ServersReach(self._requests, run=run)
        self._stack = AsyncExitStack()
        self._unasked = Unasked()
        self._begin()

    def _begin(self) -> None:
        self._by = secrets.token_urlsafe(12)  # identifies this block when it claims work
        self._asked = Counter[tuple[str, str]]()
        self._ids: dict[str, int] = {}  # ids of this block's questions, with their `nth`
        self._shown = set[str]()
        self._finished: dict[str, None] = {}  # the questions whose outcome the program received
        self._receipt: str | None = None  # the last payment, unless it was a permanent purchase
        self._is_begun = False  # True if the block has a run to end
        self._again = False

    async def __aenter__(self) -> Self:
        self._begin()
        stack = AsyncExitStack()
        await self._requests.open(stack)
        self._unasked = stack.enter_context(questions.asking(self, is_tool=False))
        self._stack = stack
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        async with self._stack:
            if error is None:
                await all_were_asked(self._unasked, tool="the program")
                await self._end(is_error=False)
            elif isinstance(error, NotAccepted) and not isinstance(error, Cancelled | Processing):
                with suppress(ElicitError):  # the person's refusal is being raised
                    await self._end(is_error=True)

    @property
    def resources(self) -> ServersReach:
        return self._reach

    async def ask(self, question: Question[T]) -> Outcome[T]:
        await must_have_asked_blocking()
        outcome = await self._ask(question)
        self._has(question, outcome)
        return outcome

    async def ask_together(
        self, questions: Sequence[Question[Any]], *, stops_at_no: bool
    ) -> tuple[Outcome[Any], ...]:
        await must_have_asked_blocking()

        async def ask(question: Question[Any]) -> Outcome[Any]:
            outcome = await self._ask(question)
            if stops_at_no and outcome.error is not None and question.no is None:
                raise outcome.error
            return outcome

        try:
            async with asyncio.TaskGroup() as tasks:
                asking = [tasks.create_task(ask(question)) for question in questions]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        outcomes = tuple(task.result() for task in asking)
        for question, outcome in zip(questions, outcomes, strict=True):
            self._has(question, outcome)  # a restarted run needs the same order
        return outcomes

    async def once(self, work: OnceWork) -> Json:
        """Do the work once. Store its result under the run, or under the last payment in the run.

        The result has 60 KiB of JSON at most.
        """
        await must_have_asked_blocking()
        with current_body().using(work.name, work.key):
            return await self._once(work)

    async def on_end(self, callback: str, payload: str, *, key: str) -> None:
        _served_only(
            "on_end works only in a tool and in an `asking` block: a server cannot call this "
            "program back. The server sends the end of a question to an address of yours (outgoing "
            "webhooks), or your own except and finally clauses run."
        )

    def caller(self) -> CallingPerson:
        _served_only("This program names the person itself: use the id that you passed as user=.")

    async def forget(self, name: str) -> bool:
        if not _is_plain(name):  # no secret can have this name
            return False
        try:
            await self._requests.delete(f"/api/secrets/{name}")
        except ServerRefused as refused:
            if refused.status == 404:
                return False
            raise
        return True

    async def notify(self, message: str) -> None:
        if self._on_notice is not None:
            result = self._on_notice(message)
            if inspect.isawaitable(result):
                await result

    async def cancel(self, elicitation_id: str) -> None:
        """Cancel a question. Code that awaits the question gets Cancelled.

        Args:
            elicitation_id: The id of the link.

        Raises:
            InvalidQuestion: `elicitation_id` is not an id.
            ServerRefused: The server refused the request.
            ServerUnreachable: The server did not respond in time.
        """
        if not _is_plain(elicitation_id):
            raise InvalidQuestion(
                "elicitation_id is not the id of a link. Pass link.elicitation_id."
            )
        try:
            await self._requests.post(f"/api/questions/{elicitation_id}/cancel", {})
        except ServerRefused as refused:
            if refused.problem != NotPossible.name:  # the question has already ended
                raise

    def can(self, mode: str) -> bool:
        return mode == "url"

    async def complete(
        self,
        elicitation_id: str,
        content: Json,
        *,
        owner: str | None = None,
        program: str | None = None,
        tool: str | None = None,
    ) -> Completion:
        """Complete a visit that this program asked for, by the id of the link that was shown.

        Raises NotSupported for `program` and `tool`: a program completes only its own questions.
        """
        if program is not None or tool is not None:
            _served_only(
                "A program can complete only its own questions. Leave out program= and tool=."
            )
        if not _is_plain(elicitation_id):  # the id may come from an untrusted source
            return Completion.UNKNOWN
        path = f"/api/questions/{elicitation_id}/complete"
        try:
            reply = await self._requests.post(path, {"content": content})
        except ServerRefused as refused:
            if refused.problem == NotPossible.name:
                return Completion.ALREADY_SETTLED
            if refused.status == 404:
                return Completion.UNKNOWN
            raise
        return Completion.LATE if reply.get("is_late") else Completion.ACCEPTED

    async def complete_return(self, request: ReturningRequest, content: Json) -> Completion:
        _served_only(
            "Only the server can do this: the browser returns there. Here, pass the id of the link."
        )

    def token(self, elicitation_id: str, *, timeout: timedelta) -> str:
        _served_only("Only the server can create tokens. Send the id of the link instead.")

    def read_token(self, text: str) -> str:
        _served_only("Only the server can read tokens. Use the id of the link instead.")

    def failed(self, error: ElicitError) -> None:
        """Do nothing: the program has the error itself."""

    async def _ask(self, question: Question[T]) -> Outcome[T]:
        try:
            state = await self._stated(question)
        except (NotAllowed, NotSupported) as error:
            return question.unasked(error)
        while True:
            if not Status(state["status"]).is_final:
                self._is_begun = True
                state = await self._waited(question, state)
            if state.get("superseded_by") is None:
                return await self._outcome(question, state)
            # An earlier, equal question was paid late: ask for that question.
            nth = self._ids[state["id"]]
            state = await self._post(question, nth=nth)
            self._ids[str(state["id"])] = nth

    async def _stated(self, question: Question[Any]) -> dict[str, Any]:
        """Ask the question at its place in the run. Return its state.

        If this block already has the question at that place, use the next place. Questions that
        differ here can be equal on the server, for example with and without the name of the only
        provider.
        """
        fact = question.request.kind, question.digest
        while True:
            nth = self._asked[fact]
            self._asked[fact] += 1
            state = await self._post(question, nth=nth)
            if state["id"] is None or state["id"] not in self._ids:
                break
        if state["id"] is not None:
            self._ids[state["id"]] = nth
        return state

    async def _post(self, question: Question[Any], *, nth: int) -> dict[str, Any]:
        step = {**self._requests.user_field, "run": self.run, "nth": nth}
        return await self._requests.post("/api/questions", {**body_of(question), **step})

    def _has(self, question: Question[Any], outcome: Outcome[Any]) -> None:
        """Remember the outcome's receipt: later work in `once` is done once for that payment."""
        request, content = question.request, outcome.content
        if isinstance(request, PaymentRequest) and isinstance(content, Receipt):
            self._receipt = None if request.once else content.id

    async def _waited(self, question: Question[Any], state: dict[str, Any]) -> dict[str, Any]:
        try:
            async with asyncio.TaskGroup() as tasks:
                showing = tasks.create_task(self._show_link(state))
                state = await self._held(question, state)
                showing.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        return state

    async def _show_link(self, state: Mapping[str, Any]) -> None:
        id = str(state["id"])
        if id in self._shown or state["url"] is None:
            return
        self._shown.add(id)
        showing = self._show(
            ShownLink(
                url=state["url"],
                kind=state["kind"],
                message=state["message"],
                elicitation_id=str(id),
                expires_at=datetime.fromisoformat(state["expires_at"]),
                needs_code=state["needs_code"],
                _wrong=lambda typed: self._wrong(id, typed),
            )
        )
        if inspect.isawaitable(showing):
            await showing

    async def _wrong(self, id: str, typed: str) -> str | None:
        reply = await self._requests.post(f"/api/questions/{id}/user-code", {"code": typed})
        return cast("str | None", reply["says"])

    async def _held(self, question: Question[Any], state: dict[str, Any]) -> dict[str, Any]:
        """Wait until the question has ended, or its payment is in progress if that suffices."""
        until = Deadline(question.timeout, ticks=asyncio.get_running_loop().time)
        seconds = WAIT_SECONDS if question.waits_for_money else _PROCESSING_POLL_SECONDS
        path = f"/api/questions/{state['id']}"
        while not Status(state["status"]).is_final:
            has_come = not question.waits_for_money and state["progress"] is not None
            if has_come or is_paid_otherwise(state["progress"]):
                break
            state = await self._requests.read(path, {"wait": seconds}, until=until)
        return state

    async def _outcome(self, question: Question[T], state: Mapping[str, Any]) -> Outcome[T]:
        status, id = Status(state["status"]), state["id"]
        if not status.is_final:
            return processing(question, state)
        if id is not None:
            self._is_begun = True
            self._finished[id] = None
        if status is Status.ACCEPTED:
            self._again = self._again or question.again
            return Outcome(
                status=status,
                content=await answer_of(
                    question, state, reach=self._reach, with_token=self._with_tokens
                ),
                is_late=bool(state["is_late"]),
                comments=tuple(state.get("comments", ())),
            )
        error = refusal(
            status,
            message=question.message,
            elicitation_id=str(id),
            timeout=question.timeout,
            why=state["why"],
            approver=question.request.approver if isinstance(question.request, Form) else None,
        )
        return Outcome(status=status, error=error)

    async def _once(self, work: OnceWork) -> Json:
        named = {"run": self.run, "name": work.name, "key": work.key, "by": self._by}
        step = {**self._requests.user_field, **named}
        if self._receipt is not None:
            step["payment"] = self._receipt
        claim = {**step, "again": work.again}
        self._is_begun = True
        while (state := await self._requests.post("/api/runs/once", claim))["status"] == "busy":
            await self._requests.pause(_BUSY_SECONDS)
        if state["status"] == "yours":
            renewing = asyncio.create_task(self._renew(claim))
            try:
                given: Any = work(state["idempotency_key"])
                done = _result_fields(await given if inspect.isawaitable(given) else given)
            except Exception:
                with suppress(ElicitError):  # the error of the work is being raised
                    await self._requests.post("/api/runs/once/done", {**step, "failed": True})
                raise
            finally:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)
            state = await self._requests.post("/api/runs/once/done", {**step, **done})
        return cast("Json", state["result"])

    async def _renew(self, claim: Mapping[str, Any]) -> None:
        """Renew the claim while the work lasts, so that other processes wait for its end."""
        while True:
            await self._requests.pause(_CLAIMED_AGAIN_SECONDS)
            with suppress(ElicitError):
                await self._requests.post("/api/runs/once", claim)

    async def _end(self, *, is_error: bool) -> None:
        """End the run on the server. Its answers are used up in one write."""
        if not self._is_begun:
            return
        about = {"run": self.run, "questions": list(self._finished), "is_error": is_error}
        await self._requests.post(
            "/api/runs/end", {**self._requests.user_field, **about, "again": self._again}
        )


def _result_fields(given: object) -> dict[str, Any]:
    """Return the fields that report the result of finished work to the server."""
    try:
        text = json.dumps(given, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        return {"fault": f"is not JSON: {error}"}
    if len(text) > RESULT_CHARACTERS_AT_MOST:
        return {"fault": f"is longer than {RESULT_CHARACTERS_AT_MOST} characters of JSON"}
    return {"result": json.loads(text)}


def _is_plain(word: str) -> bool:
    """Return True if the word is safe to use as one segment of a URL path."""
    return _WORD.fullmatch(word) is not None and word.strip(".") != ""


def _print(link: ShownLink) -> None:
    print_text(f"{link.message}\n{link.url}", links=[link.url])
    if link.needs_code:
        print_text(
            "The page shows a code. Pass Elicit a show= that asks for the code and confirms it."
        )


def _served_only(why: str) -> NoReturn:
    raise NotSupported("url", why=why)
