"""The values and errors that a test reads: questions, results, the last call and the last page.

The errors are AssertionErrors whose messages say what to write in the test.

A tool can fail before it asks, and only the model sees the cause. For some exceptions the libraries
hide the cause even from the model and only log it. So this module wraps every call, from any
client, and reads those logs.
"""

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from warnings import warn

import httpx
import mcp_types as types
import msgspec
from mcp.server.context import CallNext, HandlerResult

from flows.elicitation.states import Elicitation, Json
from flows.elicitation.traits import traits_of
from flows.errors import NotAccepted
from flows.oauth.authorization_code import AccountTerms
from flows.payments.money import Money
from flows.payments.session import CheckoutTerms
from webapp.demo.walker import Page
from webapp.importing import raised_at
from webapp.kinds.page_kind import arguments_in
from webapp.logs.events import TOOL_LOGGERS, root_cause
from webapp.mcp.leg import wire_form
from webapp.mcp.tools import Context, middleware_of

# The call to suggest, by the page of the question.
_HINTS: Mapping[str, str] = {
    "account": "connects()",
    "payment": "pays()",
    "secret": 'types("...")',
    "form": "fills(...)",
    "confirm": "accepts()",
    "url": "visits(), person.completes(...), person.continues(...)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedQuestion:
    """A question as the person received it.

    `id` is the question's id (`link.id`). `elicitation_id` is the id that your tool gave to the
    question, or else `id`. `price` is set for a payment, `provider` for an account. `timeout`
    is the time until the question expires.
    """

    id: str
    elicitation_id: str
    kind: str
    message: str
    tool: str
    timeout: timedelta
    price: Money | None = None
    provider: str | None = None
    scopes: tuple[str, ...] = ()
    arguments: Json = None

    @classmethod
    def of(cls, asked: Elicitation) -> "ReceivedQuestion":
        terms = asked.request.terms
        gives = traits_of(asked.kind).gives
        price, provider = None, None
        scopes: tuple[str, ...] = ()
        if gives == "receipt":
            price = msgspec.convert(terms, CheckoutTerms).price
        elif gives == "account":
            account = msgspec.convert(terms, AccountTerms)
            provider, scopes = account.provider, account.scopes
        return cls(
            id=asked.id,
            elicitation_id=asked.id,
            kind=asked.kind,
            message=asked.request.message,
            tool=asked.request.tool,
            timeout=asked.expires_at - asked.created_at,
            price=price,
            provider=provider,
            scopes=scopes,
            arguments=arguments_in(asked) if gives is None and terms is not None else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedResult:
    """The result that the model sees: its text, and its code if the result is one of our errors."""

    text: str
    is_error: bool
    code: str | None
    structured: Any
    result: types.CallToolResult = field(repr=False)

    @classmethod
    def of(cls, result: types.CallToolResult) -> "ReceivedResult":
        parts = [part.text for part in result.content if isinstance(part, types.TextContent)]
        text = "\n".join(parts)
        code = (result.meta or {}).get("errorId")
        return cls(
            text=text,
            is_error=bool(result.is_error),
            code=None if code is None else str(code),
            structured=result.structured_content,
            result=result,
        )


class _AboutQuestion(AssertionError):
    """A test failed because of this question, which a tool asked."""

    question: ReceivedQuestion

    @property
    def told(self) -> ReceivedQuestion:
        """The former name of `question`, until the next release."""
        warn("told is now question.", DeprecationWarning, stacklevel=2)
        return self.question


class UnexpectedQuestion(_AboutQuestion):
    """A tool asked a question that the test did not expect. `question` is the question."""

    def __init__(self, question: ReceivedQuestion, *, planned: str | None) -> None:
        self.question = question
        traits = traits_of(question.kind)
        hint = 'types_key("...")' if traits.takes_key else _HINTS.get(traits.page, "accepts()")
        if traits.is_anothers:
            hint = "approves(), person.refuses()"
        instead = f" The next action that the test planned is: {planned}." if planned else ""
        super().__init__(
            f"The tool {question.tool} asked a question of kind {question.kind}, and the test "
            f"planned no answer to it: {question.message!r}.{instead} Plan the answer before the "
            f"call, on the person of elicit_person: person.{hint}, person.declines() or "
            "person.never_comes()."
        )


class UnexpectedForm(AssertionError):
    """A tool used its library's own form (`ctx.elicit`), which is not one of our questions."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"The tool used the form of its MCP library (ctx.elicit): {message!r}. elicit_person "
            "answers only questions that elicit asks. Use elicit.form(...) in the tool, or answer "
            "this form in the test's own client."
        )


class NeverAsked(AssertionError):
    """The test planned an action that no tool asked for."""

    def __init__(self, planned: Sequence[str], *, last_call: str) -> None:
        self.planned: tuple[str, ...] = tuple(planned)
        super().__init__(
            f"No tool asked for these planned actions of elicit_person: {', '.join(planned)}. "
            "Remove them from the test, or check why the tool did not ask. A tool does not ask "
            "again for a connected account, a permanent purchase or a saved secret.\n"
            f"{last_call}"
        )


class StillOpen(_AboutQuestion):
    """A question is still open: the test's own client left it, or the person did not end it."""

    def __init__(self, question: ReceivedQuestion, *, is_done: bool, last_call: str) -> None:
        self.question = question
        if is_done:
            super().__init__(
                f"The person did the planned action, and the question {question.message!r} of the "
                f"tool {question.tool} is still open. Nothing has completed it: call "
                "complete_elicitation(...) in your route, or plan person.completes(...).\n"
                f"{last_call}"
            )
            return
        super().__init__(
            f"The tool {question.tool} asked {question.message!r}, and the test's client did not "
            "pass the question to the person. Create the client with "
            "elicitation_callback=person.elicitation_callback (FastMCP: "
            "elicitation_handler=person.elicitation_handler), or open the link that the client "
            f"received: await person.follows(link).\n{last_call}"
        )


class OutsideReached(AssertionError):
    """A request went to an origin outside the test."""

    def __init__(self, method: str, url: str) -> None:
        super().__init__(
            f"{method} {url} is a request to an address outside the test: elicit_person serves "
            "only the application and the sandbox. To answer the request, write "
            "elicit_person(server, outside=httpx.MockTransport(...)). To send it, write "
            "outside=httpx.AsyncHTTPTransport(); pytest-httpx can answer that transport."
        )


_CHARACTERS_AT_MOST = 2000


class LastCall(logging.Filter):
    """The text that the last call returned, and the exception of its tool with file and line.

    The string form also names the last page that a person saw, with its status, headline and
    address.
    """

    def __init__(self) -> None:
        super().__init__()
        self._result_text: str | None = None
        self._raised: BaseException | None = None
        self._seen: str | None = None

    async def see(self, response: httpx.Response) -> None:
        """Record a page that a person's browser has loaded."""
        if response.has_redirect_location:
            return
        await response.aread()
        url = response.url
        path = "/e/…" if url.path.startswith("/e/") else url.path  # the link's token is a secret
        headline = Page(response.text).heading or "no headline"
        address = f"{url.scheme}://{url.netloc.decode('ascii')}{path}"
        self._seen = f"{response.status_code} {headline!r} at {address}"

    def __str__(self) -> str:
        return "\n".join(
            [*self._call_lines(), *([f"The person last saw: {self._seen}"] if self._seen else [])]
        )

    def _call_lines(self) -> list[str]:
        if self._result_text is None:
            return ["No tool call has ended."]
        lines = [f"The last call returned: {self._result_text[:_CHARACTERS_AT_MOST]}"]
        if self._raised is not None:
            says, at = str(self._raised), raised_at(self._raised)
            is_in_result = not says or says in self._result_text
            its_own = "" if is_in_result else f": {says[:_CHARACTERS_AT_MOST]}"
            where = f" at {at}" if at else ""
            lines.append(f"The tool raised {type(self._raised).__name__}{where}{its_own}")
        return lines

    @contextmanager
    def listening(self, server: Any) -> Generator[None]:
        """Wrap the calls of a server that is already attached."""
        middleware_of(server).insert(0, self._called)
        loggers = [logging.getLogger(name) for name in TOOL_LOGGERS]
        for logger in loggers:
            logger.addFilter(self)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Store the exception of a tool that the library logs.

        An answer such as a decline is no error of the tool, so its traceback is removed.
        """
        cause = root_cause(record)
        self._raised = cause or self._raised
        if isinstance(cause, NotAccepted):
            record.exc_info = (type(cause), cause, None)
        return True

    async def _called(self, context: Context, call_next: CallNext) -> HandlerResult:
        if context.method != "tools/call":
            return await call_next(context)
        self._raised = None
        try:
            result = await call_next(context)
        except Exception as error:
            self._result_text, self._raised = str(error), error
            raise
        parts = wire_form(result).get("content", ())
        texts = [part["text"] for part in parts if part.get("type") == "text"]
        if texts:  # a result without text asks the client for input
            self._result_text = "\n".join(texts)
        return result
