"""Answers for a program: accounts and receipts that work through the server.

Risks: a program that needs no access token has one anyway. So an account's client sends requests
through the server's proxy, which adds the token. The program gets a token only if it asks for one.
"""

from collections.abc import Coroutine, Mapping
from typing import Any, Final, NoReturn, TypeVar, cast

import httpx
import msgspec

from flows.elicitation.states import Json, Status
from flows.elicitation.traits import traits_of
from flows.errors import Failed, InvalidAnswer, NotAllowed, NotSupported, Processing
from flows.oauth.account import Account, Content
from flows.payments.money import Money
from flows.payments.receipt import Payment, Receipt, ReceiptStatus, RefundStatus
from flows.payments.session import PAID_OTHERWISE, is_paid_otherwise
from flows.question import OnWire, Outcome, Question, Request
from flows.requests import AccountRequest, PaymentRequest
from flows.schema.schema import Refused
from webapp.client.requests import Requests

T = TypeVar("T")
_STATE_FIELDS: Final = {"account": "account", "receipt": "payment"}
# Headers for the server itself. The provider gets the account's credentials from the server.
_NOT_PASSED_ON = frozenset({"authorization", "cookie", "host"})
_LOCATION = {b"elicit-location": b"location"}


async def answer_of(
    question: Question[T], state: Mapping[str, Any], *, reach: "ServersReach", with_token: bool
) -> T:
    """Convert the server's state of an answered question to the answer for the program.

    Raises:
        Failed: The answer has been erased.
        InvalidAnswer: The answer is not valid for the question.
    """
    request: Request = question.request
    id = state["id"]
    content = state[_STATE_FIELDS.get(traits_of(request.kind).gives or "", "content")]
    if content is None:
        raise Failed(
            "The answer was erased before the program received it. Ask again.", elicitation_id=id
        )
    if isinstance(request, AccountRequest):
        account = _account_of(content, reach=reach, with_token=with_token)
        return cast("T", await account)
    if isinstance(request, PaymentRequest):
        return cast("T", _receipt_of(content, elicitation_id=id or "", reach=reach))
    try:
        return question.answer(content)
    except Refused as refused:
        if traits_of(request.kind).is_secret:  # no error text may contain what a person typed
            raise
        details = [(fault.path, fault.message) for fault in refused.faults]
        raise InvalidAnswer(details, elicitation_id=id) from None


def processing(question: Question[T], state: Mapping[str, Any]) -> Outcome[T]:
    if is_paid_otherwise(state["progress"]):
        failed = Failed(
            f"{question.message!r} was {PAID_OTHERWISE}. The person has nothing more to do and "
            "must not pay again.",
            elicitation_id=state["id"],
        )
        return Outcome(status=Status(state["status"]), error=failed)
    error = Processing(
        f"The payment for {question.message!r} is on its way, and can take days. The person has "
        "nothing more to do and must not pay again: run this again later.",
        elicitation_id=state["id"],
    )
    return Outcome(status=Status(state["status"]), error=error)


class AccountThroughServer(Account):
    """An account whose provider is called through the server."""

    __slots__ = ("_connection", "_requests")

    def __init__(self, content: Content, *, connection: str, reach: "ServersReach") -> None:
        super().__init__(content, resources=reach)
        self._connection = connection
        self._requests = reach.requests

    @property
    def access_token(self) -> str:
        """The access token. Raises NotAllowed if the run has no `access_tokens=True`."""
        if not self._content.access_token:
            raise NotAllowed(
                "This program did not receive the access token of the account. account.client() "
                "works without the token. To receive the token, write Elicit(..., "
                "access_tokens=True), with an API key created with --scopes ask,tokens."
            )
        return self._content.access_token

    def client(self) -> httpx.AsyncClient:
        """Return a client for the provider's API. The server sends the client's requests."""
        transport = _Proxy(self._requests, self._connection)
        return httpx.AsyncClient(
            base_url=self.api, transport=transport, timeout=self._requests.client.timeout
        )


class ServersReach:
    """The implementation of flows.question.Resources for one run."""

    def __init__(self, requests: Requests, *, run: str) -> None:
        self.requests = requests
        self._run = run

    def client(self, *, base_url: str, auth: httpx.Auth, on_wire: OnWire) -> NoReturn:
        raise NotSupported("url", why="Create the client of this account with account.client().")

    def sync_client(self, *, base_url: str, auth: httpx.Auth, on_wire: OnWire) -> NoReturn:
        raise NotSupported(
            "url",
            why="sync_client() works only in a tool that runs in a thread. Use account.client().",
        )

    def now(self) -> NoReturn:
        raise NotSupported("url", why="Only the server can prove the account's key.")

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        work.close()
        raise NotSupported("url", why="This client has no blocking calls. Await the call.")

    async def renew(self, connection: str, refused: str) -> tuple[str, str | None] | None:
        return None

    async def invalidate(self, connection: str, refused: str) -> None:
        raise NotSupported(
            "url",
            why="The server renews the token of this account. Use account.client(), or read the "
            "token again with a new block.",
        )

    async def spend(self, receipt_id: str) -> Json:
        body = {**self.requests.user_field, "run": self._run, "payment": receipt_id}
        return await self.requests.post("/api/runs/spend", body)

    async def refund(self, receipt_id: str, *, reason: str | None) -> Json:
        """Refund the payment. Return the data that `refund_of` reads."""
        body = {"run": self._run} | ({} if reason is None else {"reason": reason})
        path = f"/api/payments/{receipt_id}/refund"
        payment = await self.requests.post(path, body, self.requests.user_field)
        is_done = payment["status"] == ReceiptStatus.REFUNDED
        status = RefundStatus.SUCCEEDED if is_done else RefundStatus.PENDING
        about = {"id": payment["id"], "amount": payment["amount"], "currency": payment["currency"]}
        return {**about, "status": status.value}


async def _account_of(
    account: Mapping[str, Any], *, reach: ServersReach, with_token: bool
) -> Account:
    """Return the account of an answer, with its access token if `with_token` is set."""
    id, key = str(account["id"]), dict[str, Any]()
    if with_token:
        requests = reach.requests
        key = await requests.read(f"/api/accounts/{id}/token", requests.user_field)
    content = Content(
        provider=account["provider"],
        id=id,
        label=account["label"],
        scopes=tuple(account["scopes"]),
        missing=tuple(account.get("missing", ())),
        tenant=account.get("tenant"),
        details=account.get("details", {}),
        team=account.get("team"),
        access_token=key.get("access_token", ""),
        api=account["api"] or "",
        api_hosts=tuple(key.get("api_hosts", ())),
    )
    return AccountThroughServer(content, connection=id, reach=reach)


def _receipt_of(payment: Mapping[str, Any], *, elicitation_id: str, reach: ServersReach) -> Receipt:
    """Return the receipt of an answer. Ledger fields that the server does not send are empty."""
    paid = Payment(
        id=payment["id"],
        owner="",
        elicitation_id=elicitation_id,
        dedupe_key="",
        server="",
        tool="",
        seller=payment["provider"],
        session="",
        payment_intent=None,
        amount=Money.from_minor_units(payment["amount"], payment["currency"]).minor_units,
        currency=payment["currency"],
        what=payment["what"],
        is_live=payment["is_live"],
        paid_at=msgspec.convert(payment["paid_at"], Payment.__annotations__["paid_at"]),
        status=ReceiptStatus(payment["status"]),
    )
    return Receipt(paid, resources=reach)


class _Proxy(httpx.AsyncBaseTransport):
    """An httpx transport through the server's proxy, for one account."""

    def __init__(self, requests: Requests, connection: str) -> None:
        self._requests = requests
        self._path = f"/api/accounts/{connection}/proxy"

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        client = self._requests.client
        params = {**self._requests.user_field, "url": str(request.url)}
        url = client.build_request("GET", self._path, params=params).url
        headers = [pair for pair in request.headers.multi_items() if pair[0] not in _NOT_PASSED_ON]
        passed_on = httpx.Request(
            request.method,
            url,
            headers=[*headers, *self._requests.credentials.items(), ("host", url.netloc.decode())],
            stream=request.stream,
            extensions=request.extensions,
        )
        reply = await client.send(passed_on, stream=True, follow_redirects=False)
        # A redirect that this client follows is sent through the proxy again, without credentials.
        reply_headers = [
            (_LOCATION.get(name.lower(), name), value) for name, value in reply.headers.raw
        ]
        return httpx.Response(
            reply.status_code, headers=reply_headers, stream=reply.stream, request=request
        )
