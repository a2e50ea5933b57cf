"""The verbs: the functions with which a tool asks a person."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

from flows.elicitation.ending import Ending, key_of, name_of, payload_of
from flows.elicitation.misuse import must_be_listed, raise_unknown
from flows.elicitation.once_work import OnceWork
from flows.elicitation.states import Json
from flows.elicitation.tool_call import (
    CallingPerson,
    modes_of,
    must_be_capabilities,
    must_be_mode,
)
from flows.errors import InvalidQuestion
from flows.kinds.completing import complete_elicitation, read_token, token
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
    current_asker,
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

    The person may grant fewer scopes. The tool then gets the account, and `account.missing` names
    the scopes that were not granted. Later calls do not ask for these scopes, unless `again` is
    set.

    Args:
        provider: A declaration (`flows.providers`), or the name of one in `elicit.toml`.
        scopes: The OAuth scopes that the tool needs, as a list of texts.
        account: The name or the id of the wanted account. If None, any account is accepted.
        tenant: The host of the wanted tenant, if each customer of the provider has one. If None,
            the person types the host.
        reason: A sentence of up to 500 characters that the page shows.
        again: Also ask for scopes that the person did not grant before.
        key: As for `url`.
        timeout: As for `url`.

    Returns:
        The question. Awaiting it returns the account.

    Raises:
        InvalidQuestion: A scope (RFC 6749, 3.3), a name or the reason is not valid, or the provider
            uses API keys instead of OAuth. In a tool, the error is InvalidUse and names the line.
        NotConfigured: The await raises it if the server has no client id for the provider.
        NotAccepted: The await raises one of its subclasses, such as Declined, if no account was
            connected.
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
    the provider tests it before it is stored. The person sees the account among their accounts.

    Args:
        provider: A declaration with `key` (`flows.providers.ProviderKey`), or the name of one in
            `elicit.toml`.
        account: As for `oauth`.
        tenant: As for `oauth`.
        reason: As for `oauth`.
        key: As for `url`.
        timeout: As for `url`.

    Returns:
        The question. Awaiting it returns an account like that of `oauth`.

    Raises:
        InvalidQuestion: The provider has no API keys, or an argument is not valid. In a tool, the
            error is InvalidUse and names the line.
        NotConfigured: The await raises it if no setting declares the provider.
        NotAccepted: The await raises one of its subclasses, such as Declined, if no key was typed.
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
    """Ask the person to pay.

    Args:
        price: The amount with its currency: `Money("9.00", "EUR")`.
        what: What the person pays for, in up to 250 characters. The page and the provider show it.
        provider: The name of the payment provider, if the server has several.
        once: True for a permanent purchase: its receipt answers the same question from then on.
        again: If True, repeating the call is a new purchase. If False, a call that the client
            repeats within two minutes of the result gets the same result, because the first
            response may have been lost.
        processing: With "return", the await raises Processing once a slow payment, such as a bank
            transfer, is on its way. The question stays open, and repeating the same call returns
            the receipt when the money has arrived. With "wait", the call waits for the money.
        key: As for `url`.
        timeout: As for `url`, and 30 minutes by default.

    Returns:
        The question. Awaiting it returns the receipt.

    Raises:
        InvalidQuestion: The price is not above zero, or `what` or `provider` is not valid. In a
            tool, the error is InvalidUse and names the line.
        NotConfigured: The await raises it if the server has no such payment provider.
        Processing: The await raises it if `processing` is "return" and a payment is on its way.
        NotAccepted: The await raises one of its subclasses, such as Declined, if nothing was paid.
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
        is_for_good=once,
    )


@verb
async def forget(name: str) -> bool:
    """Erase the person's secret that `secret(name=...)` stored.

    Args:
        name: The name under which the secret is stored.

    Returns:
        True if a secret was stored under this name.

    Raises:
        NoAsker: No tool call and no `asking` block is active.
    """
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

    If the process dies after the work and before its record is stored, `work` runs again with the
    same idempotency key. A plain function runs on the event loop.

    Args:
        name: A name that is unique within the tool.
        work: A function or a coroutine. A function with a parameter receives an idempotency key, to
            pass on to the service that it calls.
        key: A value that is different in each turn of a loop, such as the item's id.
        again: If True, repeating the call does the work again. If False, a call that the client
            repeats within two minutes of the tool's result gets the same result, because the first
            response may have been lost.
        returns: The type of the result, for a `work` without annotation, such as a lambda.

    Returns:
        The result, which is stored as JSON, in the annotated type: JSON, a date, a pydantic model,
        a dataclass. Without a type, the result is plain JSON.

    Raises:
        InvalidQuestion: The name and the key were already used in this run of the tool, or the
            annotated type cannot be stored. The work is not done. In a tool, the error is
            InvalidUse and names the line.
        NotAllowed: The caller is refused, and the work is not done.
        ResultNotStored: The work is done, but its result is not JSON, is longer than a mebibyte or
            has another type than the annotation. Repeating the same call does not do the work
            again. A result of another type is stored, and is returned once the type is corrected.
    """
    if not name:
        raise InvalidQuestion("once needs a name that is unique within the tool.")
    doing = OnceWork(name, work, returns, key=key, again=again)
    try:
        return doing.typed(await current_asker().once(doing))
    finally:
        doing.close()


@verb
async def on_end(
    callback: Callable[[Ending], object], payload: Json = None, *, key: str | int
) -> None:
    """Run `callback` once after this call has ended for good.

    The argument of the callback says how the call ended.

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
        NotSupported: The program asks over the HTTP API, and has its own id of the user.
    """
    return current_asker().caller()


@verb
async def notify(message: str) -> None:
    """Send a progress message to the client, without waiting for an answer.

    A tool's message is sent as a progress notification if the client requests them. A program that
    asks over HTTP receives the message in its `on_notice` function. If the tool's body runs again,
    the message is sent again.

    Args:
        message: 1 to 2000 characters.

    Raises:
        InvalidQuestion: The message is empty or too long.
        NoAsker: No tool call and no `asking` block is active.
    """
    if not message.strip() or len(message) > MESSAGE_AT_MOST:
        raise InvalidQuestion(f"notify needs a message of 1 to {MESSAGE_AT_MOST} characters.")
    await current_asker().notify(message)


@verb
def can(mode: str) -> bool:
    """Return whether the caller's client declared an elicitation mode.

    Args:
        mode: `form` or `url`.

    Returns:
        True if the client declared the mode.

    Raises:
        InvalidQuestion: There is no such mode.
        NoAsker: No tool call and no `asking` block is active.
    """
    must_be_mode(mode)
    return current_asker().can(mode)


@verb
def supports_elicitation(capabilities: object, mode: str | None = None) -> bool:
    """Return whether a client with these capabilities can be asked.

    Args:
        capabilities: A mapping as in the protocol, a model of `mcp_types`, or None for a client
            that declares nothing.
        mode: `form` or `url`. If None, any mode counts.

    Returns:
        True if the client can be asked in this mode, or in any.

    Raises:
        InvalidQuestion: The object is not a client's capabilities, for example because it is a
            tool's context, or there is no such mode.
    """
    must_be_capabilities(capabilities)
    if mode is not None:
        must_be_mode(mode)
    modes = modes_of(capabilities)
    return bool(modes) if mode is None else mode in modes


if not TYPE_CHECKING:  # hidden from type checkers, so that they report a wrong name

    def __getattr__(name: str) -> NoReturn:
        if name.startswith("_"):  # Python's own protocols probe for such names
            raise AttributeError(name)
        raise_unknown("elicit.", name, __all__)
