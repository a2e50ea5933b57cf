"""HTTP requests of a program to its server: send, retry and read.

Risks: the server restarts during a request. So a request without a response is sent again, after a
longer pause each time. This is safe: every request names its subject, so a request that arrives
twice has the same effect as a request that arrives once. A response could also come from a proxy
server in front of the server. So a response counts as an error of the server only if it contains
problem details with one of the server's own codes.
"""

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from http import HTTPStatus
from ssl import SSLContext
from typing import Any, Final, cast

import httpx
import msgspec

from flows.elicitation.traits import traits_of
from flows.errors import (
    AlreadyDone,
    Cancelled,
    Declined,
    Denied,
    ElicitError,
    Expired,
    Failed,
    InvalidQuestion,
    InvalidSchema,
    NotAllowed,
    NotConfigured,
    ResultNotStored,
    Superseded,
    TooManyPending,
)
from flows.kinds.form import Form
from flows.kinds.secret import Secret
from flows.kinds.url import Visit
from flows.origin import origin_of
from flows.question import Question
from flows.requests import AccountRequest, ApiKeyRequest, PaymentRequest
from webapp.deadline import Deadline

WAIT_SECONDS: Final = 50  # per long-polling request; the API's own limit
_ANSWERED_WITHIN_SECONDS: Final = 20
_FIRST_PAUSE_SECONDS: Final = 0.1
_LONGEST_PAUSE_SECONDS: Final = 10.0
_AGAIN: Final = frozenset(
    {
        *("STORE_UNAVAILABLE", "ELICITATION_TOO_OFTEN", "QUESTION_BUSY"),
        *("ISSUER_UNAVAILABLE", "TOO_MANY_OPEN"),
    }
)
_TOKEN_EXPIRED: Final = "ACCESS_TOKEN_REFUSED"  # noqa: S105 - a code of the API's
_GATEWAY_ERRORS: Final = frozenset(
    {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
)
_ERRORS_BY_CODE: Final = {
    error.name: error
    for error in (
        *(InvalidQuestion, InvalidSchema, ResultNotStored, NotAllowed),
        *(Declined, Denied, Cancelled, Expired, Failed, Superseded),
    )
}
Pause = Callable[[float], Awaitable[object]]
PATIENCE: Final = timedelta(minutes=10)


class ServerUnreachable(ElicitError):
    """The server did not respond in time. Start the same run again to continue it."""

    name = "SERVER_UNREACHABLE"
    http_status = 503

    def __init__(self, url: str, *, why: str) -> None:
        self.why = why
        super().__init__(
            f"The server at {url} does not answer ({why}). Check that it runs, and that this is "
            "its address. Nothing is lost: start the same run again, and it continues."
        )


class ServerRefused(ElicitError):
    """The server refused a request. `problem` is the error's code, `status` the HTTP status."""

    name = "SERVER_REFUSED"

    def __init__(self, detail: str, *, problem: str | None, status: int) -> None:
        self.problem = problem
        self.status = status
        super().__init__(detail)


class Requests:
    """The HTTP client of one run of a program with its API key."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str,
        user: str | None,
        access_token: "str | Callable[[], str] | None",
        patience: timedelta,
        transport: httpx.AsyncBaseTransport | None,
        pause: Pause = asyncio.sleep,
    ) -> None:
        """Check the URL. Raises InvalidQuestion if an API key must not be sent to the URL."""
        origin_of(url)
        self._url = url.rstrip("/")
        self._user = user
        self._api_key = api_key
        self._access_token = access_token
        self._patience = patience
        self._transport = transport
        self.pause = pause
        self._client: httpx.AsyncClient | None = None

    async def open(self, stack: AsyncExitStack) -> None:
        self._client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=self._url,
                timeout=httpx.Timeout(
                    _ANSWERED_WITHIN_SECONDS, read=WAIT_SECONDS + _ANSWERED_WITHIN_SECONDS
                ),
                transport=self._transport,
                verify=True if self._transport is not None else _trust(),
            )
        )

    @property
    def client(self) -> httpx.AsyncClient:
        assert self._client is not None  # inside the block
        return self._client

    @property
    def credentials(self) -> dict[str, str]:
        """The API key, and the person's current access token."""
        found = {"authorization": f"Bearer {self._api_key}"}
        token = self._access_token
        if token is not None:
            found["user-access-token"] = token if isinstance(token, str) else token()
        return found

    @property
    def user_field(self) -> dict[str, str]:
        """The request field that names the user, or {} if an access token names the person."""
        return {} if self._user is None else {"user": self._user}

    async def post(
        self, path: str, body: Mapping[str, Any], query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return await self._send("POST", path, json=dict(body), params=query)

    async def read(
        self, path: str, query: Mapping[str, Any], *, until: Deadline | None = None
    ) -> dict[str, Any]:
        return await self._send("GET", path, params=query, until=until)

    async def delete(self, path: str) -> None:
        await self._send("DELETE", path, params=self.user_field)

    async def _send(
        self, method: str, path: str, *, until: Deadline | None = None, **about: Any
    ) -> dict[str, Any]:
        """Send a request, with retries, and return the response body.

        If the person's token expired during a long wait, send the request once more with a new
        token from the function.

        Raises:
            ServerUnreachable: No response came, and both `until` and the client's patience have
                ended.
            ElicitError: The error that the server returned.
        """
        patience = Deadline(self._patience, ticks=asyncio.get_running_loop().time)
        limits = [patience] if until is None else [patience, until]
        longest, why, may_renew = _FIRST_PAUSE_SECONDS, "", callable(self._access_token)
        while True:
            seconds = longest * (1 + random.random()) / 2  # noqa: S311 - spreads out retries
            try:
                about["headers"] = self.credentials
                reply = await self.client.request(method, path, **about)
            except httpx.TransportError as error:
                why = type(error).__name__
            else:
                if may_renew and _problem_in(reply).get("code") == _TOKEN_EXPIRED:
                    may_renew = False
                    continue
                if not _can_be_retried(reply):
                    return _body_of(reply)
                why = str(reply.status_code)
                seconds = max(seconds, _asked_to_wait(reply))
            if all(limit.has_ended for limit in limits):
                raise ServerUnreachable(self._url, why=why) from None
            await self.pause(seconds)
            longest = min(2 * longest, _LONGEST_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedQuestion:
    """A question as a list shows it: without its answer.

    `user` is the id of the user who is asked, or None for a person who signs in at an issuer. `url`
    is the link for that person. Only the program that asked receives it, while the question is
    open.
    """

    id: str
    kind: str
    status: str
    message: str
    user: str | None
    asked_at: datetime
    expires_at: datetime
    url: str | None
    needs_code: bool


async def list_questions(
    url: str,
    *,
    api_key: str,
    user: str | None = None,
    access_token: str | Callable[[], str] | None = None,
    waiting: bool = False,
    patience: timedelta = PATIENCE,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[ListedQuestion]:
    """Yield the questions of the key's program, or, for an approver's key, those it may answer.

    With `user` or `access_token`, yield only the questions to this person. With `waiting`, yield
    only unanswered questions. A question that is opened in the meantime may appear twice.

    Raises:
        InvalidQuestion: An API key must not be sent to this URL.
        ServerUnreachable: The server did not answer within `patience`.
        ServerRefused: The server refused the request.
    """
    requests = Requests(
        url,
        api_key=api_key,
        user=user,
        access_token=access_token,
        patience=patience,
        transport=transport,
    )
    query = {**requests.user_field, "waiting": "true" if waiting else "false"}
    async with AsyncExitStack() as stack:
        await requests.open(stack)
        while True:
            page = await requests.read("/api/questions", query)
            for each in page["questions"]:
                yield msgspec.convert(each, ListedQuestion)
            if page["after"] is None:
                return
            query["after"] = page["after"]


def body_of(question: Question[Any]) -> dict[str, Any]:
    """Return the request body that asks the question.

    Raises:
        InvalidQuestion: The HTTP API cannot ask the question. This is an error of the program, so
            it is raised even if the question returns `False` or `None` when a person declines.
    """
    match question.request:
        case Visit(url=str(url), waits=waits):
            own: dict[str, Any] = {"message": question.message, "url": url}
            own["wait_for_completion"] = waits
        case Visit():
            raise InvalidQuestion(
                "url= cannot be a function over the HTTP API. Pass the address as text, and "
                "complete the question with the id of the link that is shown."
            )
        case AccountRequest() as asked:
            own = {"provider": asked.name}
            own |= {} if isinstance(asked, ApiKeyRequest) else {"scopes": list(asked.scopes)}
            own |= {"account": asked.account, "reason": asked.reason}
            own |= {"again": True} if asked.again else {}
            own |= {} if asked.tenant is None else {"tenant": asked.tenant}
        case PaymentRequest() as asked:
            amount, _, currency = str(asked.price).partition(" ")
            own = {"amount": amount, "currency": currency, "what": asked.what}
            own |= {"provider": asked.seller, "once": asked.once}
        case Form(kind="confirm" | "decision", arguments=arguments, approver=approver):
            own = {"message": question.message, "arguments": arguments, "approver": approver}
        case Form(check=check) | Secret(check=check) if check is not None:
            raise InvalidQuestion(
                f"check={check.__name__} does not work over the HTTP API: the server does not have "
                "the program's code. Check the answer in the program, and ask again if it is wrong."
            )
        case Form(kind="form", schema=schema):
            own = {"message": question.message, "schema": schema.json}
        case Secret(schema=schema, name=name):
            own = {"message": question.message, "schema": schema.json, "name": name}
        case other:
            raise InvalidQuestion(
                f"A question of kind {other.kind} does not work over the HTTP API, only in a tool. "
                f"Nobody was asked {question.message!r}. Ask another kind of question here, or ask "
                "this one in a tool."
            )
    is_anothers = traits_of(question.request.kind).is_anothers
    own |= {"kind": "confirm" if is_anothers else question.request.kind, "key": question.key}
    own |= {"elicitation_id": question.elicitation_id}
    own["timeout_seconds"] = math.ceil(question.timeout.total_seconds())
    return {name: value for name, value in own.items() if value is not None}


def _can_be_retried(reply: httpx.Response) -> bool:
    """Return True if repeating the same request later may get a proper response."""
    code = _problem_in(reply).get("code")
    return code in _AGAIN or (code is None and reply.status_code in _GATEWAY_ERRORS)


def _body_of(reply: httpx.Response) -> dict[str, Any]:
    """Return the body of a successful response, or raise the error of a failed one."""
    if reply.is_success:
        return cast("dict[str, Any]", reply.json()) if reply.content else {}
    problem = _problem_in(reply)
    detail = str(problem.get("detail", reply.reason_phrase))
    match problem.get("code"):
        case AlreadyDone.name:
            raise AlreadyDone
        case NotConfigured.name:
            missing = NotConfigured(*problem.get("missing", ("a setting",)))
            missing.args = (detail,)
            raise missing
        case TooManyPending.name:
            raise TooManyPending(limit=int(problem.get("limit", 0)))
        case str(code) if code in _ERRORS_BY_CODE:
            raise _ERRORS_BY_CODE[code](detail)
        case code:
            raise ServerRefused(detail, problem=code, status=reply.status_code)


def _problem_in(reply: httpx.Response) -> dict[str, Any]:
    if not reply.headers.get("content-type", "").startswith("application/problem+json"):
        return {}
    body: Any = reply.json()
    return cast("dict[str, Any]", body) if isinstance(body, dict) else {}


def _asked_to_wait(reply: httpx.Response) -> float:
    """Return the Retry-After header in seconds. A date counts as 0."""
    asked = reply.headers.get("retry-after", "")
    return min(float(asked), 60.0) if asked.isdecimal() else 0.0


@cache
def _trust() -> SSLContext:
    """Return the TLS context. It is cached, because loading it takes a tenth of a second."""
    return httpx.create_ssl_context()
