"""The verbs: the functions with which a tool asks a person."""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

from flows.elicitation.ending import Ending, key_of, name_of, payload_of
from flows.elicitation.misuse import InvalidUse, place_of_call
from flows.elicitation.once_work import OnceWork
from flows.elicitation.states import Completion, Json
from flows.elicitation.tool_call import (
    CallingPerson,
    modes_of,
    must_be_capabilities,
    must_be_mode,
)
from flows.errors import InvalidQuestion
from flows.kinds.form import confirm, form
from flows.kinds.gate import gate, needed, needs
from flows.kinds.secret import secret
from flows.kinds.together import together
from flows.kinds.url import url
from flows.oauth.account import Account, account_of
from flows.oauth.provider import Provider
from flows.payments.money import Money
from flows.payments.receipt import Receipt
from flows.question import (
    DEFAULT_TIMEOUT,
    MESSAGE_AT_MOST,
    Question,
    ReturningRequest,
    current_asker,
    must_be_elicitation_id,
    must_be_listed,
    must_be_timeout,
    report_to_asker,
    verb,
)
from flows.requests import AccountRequest, ApiKeyRequest, PaymentRequest, receipt_of

__all__ = [
    "api_key",
    "caller",
    "can",
    "complete_elicitation",
    "confirm",
    "forget",
    "form",
    "gate",
    "needed",
    "needs",
    "notify",
    "oauth",
    "on_end",
    "once",
    "payment",
    "read_token",
    "secret",
    "together",
    "token",
    "url",
]

T = TypeVar("T")
PAYMENT_TIMEOUT = timedelta(minutes=30)


@verb
def oauth(
    provider: Provider | str,
    *,
    scopes: Sequence[str] = (),
    account: str | None = None,
    tenant: str | None = None,
    reason: str | None = None,
    again: bool = False,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Account]:
    """Ask the person to connect an account, unless one with these scopes is already connected.

    `provider` is a declaration (`flows.providers`) or the name of one in `elicit.toml`. `account`
    is the name or id of the wanted account. `tenant` is the host of the wanted tenant, if each
    customer of the provider has one; without it, the person types it. `reason` is shown on the
    page. Raises InvalidQuestion for an invalid scope (RFC 6749, 3.3). The await raises
    NotConfigured if the server has no client id for the provider.

    The person may grant fewer scopes. The tool then gets the account, and `account.missing` names
    the others. Later calls do not ask for them a second time, unless `again` is set.

    `key` and `timeout` are as for `url`.
    """
    must_be_listed("scopes", scopes)
    request = AccountRequest(
        provider=provider,
        scopes=tuple(scopes),
        account=account,
        tenant=tenant,
        reason=reason,
        again=again,
    )
    return Question(
        message=request.message,
        request=request,
        answer=lambda content: account_of(content, current_asker().resources),
        key=key,
        timeout=timeout,
    )


@verb
def api_key(
    provider: Provider | str,
    *,
    account: str | None = None,
    tenant: str | None = None,
    reason: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Account]:
    """Ask the person for an API key of a provider, unless they have connected an account already.

    The person types the key, or a user name and a password, on this server's page. One request to
    the provider tests it before it is stored. The tool gets an account like that of `oauth`, and
    the person sees it among their accounts.

    `provider` is a declaration with `key` (`flows.providers.ProviderKey`), or the name of one in
    `elicit.toml`. Raises InvalidQuestion for a provider without API keys. `account`, `tenant` and
    `reason` are as for `oauth`, `key` and `timeout` as for `url`.
    """
    request = ApiKeyRequest(provider=provider, account=account, tenant=tenant, reason=reason)
    return Question(
        message=request.message,
        request=request,
        answer=lambda content: account_of(content, current_asker().resources),
        key=key,
        timeout=timeout,
    )


@verb
def payment(
    price: Money,
    what: str,
    *,
    provider: str | None = None,
    once: bool = False,
    again: bool = False,
    processing: Literal["wait", "return"] = "wait",
    key: str | None = None,
    timeout: timedelta = PAYMENT_TIMEOUT,
) -> Question[Receipt]:
    """Ask the person to pay `price` for `what`, which the page and the provider show.

    With `once`, the purchase is permanent: the receipt answers the same question from then on.

    If the client repeats the call within two minutes of the result, it gets the same result again,
    because the first response may have been lost. With `again`, a repeated call is a new purchase.

    Some payment methods take days, such as a bank transfer. With `processing="return"`, the await
    raises Processing once such a payment is on its way. The question stays open, and repeating the
    same call returns the receipt when the money has arrived.

    The await raises NotConfigured if the server has no payment provider.

    `key` and `timeout` are as for `url`.
    """
    request = PaymentRequest(price=price, what=what, seller=provider, once=once)
    return Question(
        message=request.message,
        request=request,
        answer=lambda content: receipt_of(content, current_asker().resources),
        key=key,
        timeout=timeout,
        again=again,
        waits_for_money=processing == "wait",
    )


@verb
async def forget(name: str) -> bool:
    """Erase the person's secret that `secret(name=...)` stored. Return False if there was none."""
    return await current_asker().forget(name)


@overload
async def once(
    name: str,
    work: Callable[[str], Awaitable[T]] | Callable[[], Awaitable[T]] | Coroutine[Any, Any, T],
    *,
    key: str | int | None = None,
    again: bool = False,
    returns: type[T] | None = None,
) -> T: ...
@overload
async def once(
    name: str,
    work: Callable[[str], T] | Callable[[], T],
    *,
    key: str | int | None = None,
    again: bool = False,
    returns: type[T] | None = None,
) -> T: ...
@verb
async def once(
    name: str,
    work: object,
    *,
    key: str | int | None = None,
    again: bool = False,
    returns: type[Any] | None = None,
) -> Any:
    """Do `work` once in a call, however often the tool's body runs again.

    `work` is a function or a coroutine. A function with a parameter receives an idempotency key, to
    pass on to the service that it calls. If the process dies after the work and before its record
    is stored, `work` runs again with the same key. A plain function runs on the event loop. In a
    loop, each turn needs its own `key`, such as the item's id.

    The result is stored as JSON, and is returned as the type in the annotation of `work`: JSON, a
    date, a pydantic model, a dataclass. `returns` is the type where there is no annotation, such as
    in a lambda. Without a type, the result is plain JSON.

    If the client repeats the call within two minutes of the tool's result, it gets the same result
    again, because the first response may have been lost. With `again`, a repeated call does the
    work again.

    Raises:
        InvalidQuestion: The name and the key were already used in this run of the tool, or the
            annotated type cannot be stored. The work is not done.
        NotAllowed: The caller is refused, and the work is not done.
        ResultNotKept: The work is done, but its result is not JSON or is longer than a
            mebibyte. Repeating the same call raises this again and does nothing.
    """
    if not name:
        raise InvalidQuestion("once needs a name that is unique within the tool.")
    doing = OnceWork(name, work, returns)
    try:
        return doing.typed(await current_asker().once(name, doing, key=key, again=again))
    finally:
        doing.close()


@verb
async def on_end(
    callback: Callable[[Ending], object], payload: Json = None, *, key: str | int
) -> None:
    """Run `callback` once when this call has ended for good, with how the call ended.

    The callback also runs after a crash, and if the client never comes back. Any process that
    serves this server can run it. Use the callback to release a resource that the call reserved,
    such as a seat during a payment. The registration is stored when `on_end` returns. When the
    tool's body runs again, the same key registers the callback only once.

    If the callback raises, it runs again later, for up to 30 days. If the process dies while the
    callback runs, it runs again with the same idempotency key.

    Args:
        callback: A function at the top level of a module, async or not, that takes an `Ending`. A
            plain function runs in a worker thread. The callback cannot ask anybody.
        payload: JSON of up to 8 KiB for the callback, the same each time the body runs.
        key: Names the registration within the tool, such as the id of the seat.

    Returns:
        None, once the registration is stored.

    Raises:
        InvalidQuestion: The callback is a lambda, a closure, a method or a nested function, the
            payload is not JSON or too long, the key is registered with another callback or payload,
            or `on_end` is called in the work of `once`. In a tool, the error is InvalidUse and
            names the line.
        NotAllowed: The caller is refused, and nothing was registered.
        NotSupported: The program asks over the HTTP API, which cannot call the program back.
        CallOver: The call has already ended.
    """
    await current_asker().on_end(name_of(callback), payload_of(payload), key=key_of(key))


@verb
def caller() -> CallingPerson:
    """Return the person who calls this tool, without a name or an e-mail address.

    Use the `id` of the caller as a key in your own tables.

    Returns:
        The caller, with an `id` that is the same for this person in each call. `is_known` is False
        and `id` is None if the server does not know the person.

    Raises:
        NoAsker: No tool call and no `asking` block is active.
        NotSupported: The program asks over the HTTP API: it has its own id of the user.
    """
    return current_asker().caller()


@verb
async def notify(message: str) -> None:
    """Send a progress message to the client that waits for the result, without waiting.

    A tool's message is sent as a progress notification if the client requests them. A program that
    asks over HTTP receives the message in its `on_notice` function. If the tool's body runs again,
    the message is sent again. Raises InvalidQuestion for an empty or too long message.
    """
    if not message.strip() or len(message) > MESSAGE_AT_MOST:
        raise InvalidQuestion(f"notify needs a message of 1 to {MESSAGE_AT_MOST} characters.")
    await current_asker().notify(message)


@verb
def can(mode: str) -> bool:
    """Return True if the caller's client declared the elicitation mode `form` or `url`.

    Raises InvalidQuestion for any other mode.
    """
    must_be_mode(mode)
    return current_asker().can(mode)


@verb
def token(elicitation_id: str, *, timeout: timedelta = DEFAULT_TIMEOUT) -> str:
    """Return an encrypted token of an elicitation, to send through a service of your own.

    A callback that receives the token reads it with `read_token`. Only this server can create,
    read or change a token, and the token expires after `timeout`. The token identifies the
    elicitation, not the sender. To identify a person's browser, use the link's `return_token`.
    """
    must_be_elicitation_id(elicitation_id)
    must_be_timeout(timeout)
    return current_asker().token(elicitation_id, timeout=timeout)


@verb
def read_token(text: str) -> str:
    """Return the elicitation id in a `token`, for `complete_elicitation`.

    Raises InvalidToken for a text that is damaged, forged, expired, or another kind of token.
    """
    return current_asker().read_token(text)


@verb
async def complete_elicitation(
    elicitation: str | ReturningRequest,
    content: Mapping[str, Json] | None = None,
    *,
    owner: str | None = None,
    program: str | None = None,
    tool: str | None = None,
) -> Completion:
    """Complete an elicitation, so that the waiting tool continues.

    Trusted code in any process on the same store can pass the elicitation's id, to complete a
    question of the kind `url`. If you pass an `elicitation_id` of your own, a form can be completed
    too, and InvalidAnswer is raised if the content does not match the form's schema. Such an id
    belongs to the tool, block or API program that gave it. Without `program`, the id is looked up
    among the tools and blocks of your server. With `program`, it is looked up among the questions
    of the API program of this name. If several people have a question with this id, pass the
    person's `link.owner` as `owner`. If several tools have such a question, pass `tool` (for a
    block, "the application"). Otherwise nothing is completed and OwnerNeeded is raised.

    From a public route, pass the request itself: it must carry the link's return token (the query
    parameter `elicitation`) and come from the browser that pressed Continue.
    """
    if not isinstance(elicitation, str) and not hasattr(elicitation, "query_params"):
        raise InvalidQuestion(
            "complete_elicitation needs the id of an elicitation, or the request of your route, "
            f"not {type(elicitation).__name__}."
        )
    if isinstance(elicitation, str):
        if program is not None and tool is not None:
            raise InvalidQuestion("Pass either program= or tool=, not both.")
        return await current_asker().complete(
            elicitation, content or {}, owner=owner, program=program, tool=tool
        )
    return await current_asker().complete_return(elicitation, content or {})


@verb
def supports_elicitation(capabilities: object, mode: str | None = None) -> bool:
    """Return True if a client with these capabilities can be asked in this mode, or in any.

    `capabilities` is a mapping as in the protocol, a model of `mcp_types`, or None for a client
    that declares nothing. Raises InvalidQuestion for other objects, such as a tool's context, and
    for a mode that does not exist.
    """
    must_be_capabilities(capabilities)
    if mode is not None:
        must_be_mode(mode)
    modes = modes_of(capabilities)
    return bool(modes) if mode is None else mode in modes


if not TYPE_CHECKING:  # type checkers must not see these, so that they report a wrong name

    class _NoSuchVerb(InvalidUse, AttributeError):
        """A name that is not a verb. `hasattr` is False for it, as in any module."""

    def __getattr__(name: str) -> NoReturn:
        if name.startswith("_"):  # Python's own protocols probe for such names
            raise AttributeError(name)
        near = get_close_matches(name, __all__, n=1, cutoff=0.5)
        meant = f"Perhaps elicit.{near[0]} is meant" if near else f"elicit has {', '.join(__all__)}"
        error = _NoSuchVerb(f"There is no elicit.{name}. {meant}.", place=place_of_call())
        AttributeError.name.__set__(error, name)  # else Python writes it over the error's own name
        report_to_asker(error)
        raise error
