"""The verbs: what a tool writes to ask a person."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeVar, cast, overload

from flows.elicitation.capabilities import must_be_mode
from flows.elicitation.states import Completion, Json
from flows.errors import InvalidQuestion
from flows.kinds.form import confirm_question, form_question
from flows.kinds.gate import gate
from flows.kinds.needs import needs
from flows.kinds.secret import secret_question
from flows.kinds.together import together
from flows.kinds.url import Visit
from flows.oauth.account import Account, account_of
from flows.oauth.provider import Provider
from flows.origin import is_origin, origin_of
from flows.payments.money import Money
from flows.payments.receipt import Receipt
from flows.question import (
    DEFAULT_TIMEOUT,
    Link,
    Question,
    ReturningRequest,
    current_asker,
    must_be_elicitation_id,
    must_be_listed,
    must_be_timeout,
    telling,
)
from flows.requests import AccountRequest, PaymentRequest, receipt_of

__all__ = [
    "can",
    "complete_elicitation",
    "confirm",
    "forget",
    "form",
    "gate",
    "needs",
    "oauth",
    "once",
    "payment",
    "read_token",
    "secret",
    "together",
    "token",
    "url",
]

T = TypeVar("T")
J = TypeVar("J", bound="Json")
PAYMENT_TIMEOUT = timedelta(minutes=30)


def url(
    message: str,
    url: str | Callable[[Link], str],
    *,
    origins: Sequence[str] = (),
    wait_for_completion: bool = True,
    elicitation_id: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Mapping[str, Json]]:
    """Ask the person to visit an address, and wait until its service says that it is done.

    `url` is text, or a function of the link; a function needs `origins`, the places it may lead
    to, as literals. It is called when the question stands, which may be completed from then on;
    after a crash it is called again. The answer is the object that the completion carried. With
    `wait_for_completion=False` the answer is there as soon as the person agrees to go.
    With `key` it is the same question in every call of the tool, whatever its arguments; `timeout`
    is how long it stays open.
    Raises InvalidQuestion for an address that is not https (http on loopback).
    """
    with telling():
        return _visit(
            message,
            url,
            origins=origins,
            waits=wait_for_completion,
            elicitation_id=elicitation_id,
            key=key,
            timeout=timeout,
        )


def oauth(
    provider: Provider | str,
    *,
    scopes: Sequence[str] = (),
    account: str | None = None,
    reason: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Account]:
    """Ask the person to connect an account, unless one with these scopes is connected already.

    `provider` is a declaration (`flows.providers`) or the name of one in `elicit.toml`; `account`
    is the name or id of the one that is wanted; `reason` is shown on the page. Raises
    InvalidQuestion for what can be no scope (RFC 6749, 3.3); the await raises NotConfigured where
    the server has no client id for the provider.
    `key` and `timeout` are as for `url`.
    """
    with telling():
        must_be_listed("scopes", scopes)
        request = AccountRequest(
            provider=provider, scopes=tuple(scopes), account=account, reason=reason
        )
        return Question(
            message=request.message,
            request=request,
            answer=lambda content: account_of(content, current_asker().resources),
            key=key,
            timeout=timeout,
        )


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

    With `once` it is bought for good: the same question is answered by the receipt from then on.
    The same call made again within two minutes of the result gets that result again, as it may
    have been lost on its way; with `again` it is another purchase at once.

    Some ways to pay take days, such as a bank transfer. With `processing="return"` the await raises
    Processing once such a payment is on its way; the question stays open, and the same call made
    again gets the receipt when the money is there.

    The await raises NotConfigured where the server has no payment provider.
    `key` and `timeout` are as for `url`.
    """
    with telling():
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


@overload
def secret(
    message: str,
    schema: type[T],
    *,
    name: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[T]: ...
@overload
def secret(
    message: str,
    schema: Mapping[str, Json],
    *,
    name: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Mapping[str, Json]]: ...
@overload
def secret(
    message: str,
    *,
    name: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[str]: ...
def secret(
    message: str,
    schema: Any = str,
    *,
    name: str | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Any]:
    """Ask for something secret on our page; the client and the model never see it.

    `schema` is `str` for one field, else a pydantic model, a dataclass, a TypedDict or a JSON
    Schema. With `name` it is kept for this person on this server, until `forget(name)`; else it is
    wiped when the result has gone out, 10 minutes after the answer at most. Raises InvalidQuestion.
    `key` and `timeout` are as for `url`.
    """
    with telling():
        # Which of its overloads it is, only the caller knows.
        return secret_question(  # pyright: ignore[reportUnknownVariableType]
            message, schema, name=name, key=key, timeout=timeout
        )


@overload
def form(
    message: str,
    schema: type[T],
    *,
    key: str | None = None,
    elicitation_id: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[T]: ...
@overload
def form(
    message: str,
    schema: Mapping[str, Json],
    *,
    key: str | None = None,
    elicitation_id: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Mapping[str, Json]]: ...
@overload
def form(
    message: str,
    *,
    key: str | None = None,
    elicitation_id: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[str]: ...
def form(
    message: str,
    schema: Any = str,
    *,
    key: str | None = None,
    elicitation_id: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Any]:
    """Ask for something that the client and the model may see: in the client's form, or our page.

    `schema` is `str` for one text, else a pydantic model, a dataclass, a TypedDict or a JSON
    Schema: one flat object of texts, numbers, yes or no, and choices. The await raises
    InvalidAnswer if the client answers something else. Raises InvalidQuestion for another schema,
    and for what looks like a secret: a field, or the message where the schema is `str`.
    `elicitation_id` is an id of your own, by which trusted code may answer it.
    `key` and `timeout` are as for `url`.
    """
    with telling():
        # Which of its overloads it is, only the caller knows.
        return form_question(  # pyright: ignore[reportUnknownVariableType]
            message, schema, key=key, elicitation_id=elicitation_id, timeout=timeout
        )


def confirm(
    question: str,
    *,
    arguments: Mapping[str, object] | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[bool]:
    """Ask for a yes. Awaiting it gives False for every no; `outcome()` tells them apart.

    It is a no, too, where this caller or this client cannot be asked. Raises TooManyPending, and
    NoAsker outside a tool.

    `arguments` are shown to the person: what a yes would do. Raises InvalidQuestion if they are
    no JSON.
    `key` and `timeout` are as for `url`.
    """
    with telling():
        return confirm_question(question, arguments=arguments, key=key, timeout=timeout)


async def forget(name: str) -> bool:
    """Wipe what `secret(name=...)` has kept for this person; False if there was nothing."""
    with telling():
        return await current_asker().forget(name)


async def once(
    name: str,
    work: Callable[[str], Awaitable[J]],
    *,
    key: str | int | None = None,
    again: bool = False,
) -> J:
    """Do `work` once in a call, however often the tool's body runs again.

    `work` is given an idempotency key to pass on to whom it calls: if the process dies between
    the work and its record, it runs again with the same key. What comes back has been through
    JSON, the first time too. In a loop each turn needs a `key` of its own, such as the item.

    The same call made again within two minutes of the tool's result gets that result again, as it
    may have been lost on its way; with `again` it does the work again at once.

    Raises InvalidQuestion if the name and the key were used before in this run of the tool, and
    NotAllowed for a caller who is refused: the work is not done then. Raises ResultNotKept if its
    result is no JSON or longer than a mebibyte: the work is done, and the same call made again
    raises that again and does nothing.
    """
    with telling():
        if not name:
            raise InvalidQuestion("once needs a name that is unique within the tool.")
        if not isinstance(key, str | int | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidQuestion(f"once({name!r}): its key is a text or a whole number.")
    done = await current_asker().once(name, work, key=key, again=again)
    return cast("J", done)


def can(mode: str) -> bool:
    """Whether the caller's client declared the elicitation mode `form` or `url`.

    Raises InvalidQuestion for any other word.
    """
    with telling():
        must_be_mode(mode)
    return current_asker().can(mode)


def token(elicitation_id: str, *, timeout: timedelta = DEFAULT_TIMEOUT) -> str:
    """A sealed text that stands for an elicitation, to send through a service of your own.

    A callback that gets it back reads it with `read_token`: nobody else can make one, read the id
    in it or change it, and it is over after `timeout`. It says which elicitation is meant, not who
    brings it; a person's browser comes back with the link's `return_token`.
    """
    with telling():
        must_be_elicitation_id(elicitation_id)
        must_be_timeout(timeout)
    return current_asker().token(elicitation_id, timeout=timeout)


def read_token(text: str) -> str:
    """The elicitation id in a `token`, for `complete_elicitation`.

    Raises InvalidToken for a text that is damaged, forged, too old, or another kind of token.
    """
    return current_asker().read_token(text)


async def complete_elicitation(
    elicitation: str | ReturningRequest,
    content: Mapping[str, Json] | None = None,
    *,
    owner: str | None = None,
) -> Completion:
    """Unblock the tool that waits: the one door to it.

    By id it is for trusted code, in any process on the same store, and finishes the kind `url`;
    by an `elicitation_id` of your own a form, too, and raises InvalidAnswer where the content does
    not fit its schema. Where several people were asked under that id, it needs the `link.owner` of
    the one who is meant, else it completes none and raises OwnerNeeded. From a public route pass
    the request itself: it must carry the link's return token (the query parameter `elicitation`)
    and come from the browser that pressed Continue.
    """
    with telling():
        if isinstance(elicitation, str):
            return await current_asker().complete(elicitation, content or {}, owner=owner)
        return await current_asker().complete_return(elicitation, content or {})


def _visit(
    message: str,
    url: str | Callable[[Link], str],
    *,
    origins: Sequence[str],
    waits: bool,
    elicitation_id: str | None,
    key: str | None,
    timeout: timedelta,
) -> Question[Mapping[str, Json]]:
    must_be_listed("origins", origins)
    if isinstance(url, str):
        literal = (origin_of(url), *origins)
    elif not origins:
        raise InvalidQuestion("A function as url needs origins=, the places it may lead to.")
    else:
        literal = tuple(origins)
    for origin in literal:
        if not is_origin(origin):
            raise InvalidQuestion(f"{origin!r} is no origin; write scheme://host, without a path.")
    return Question(
        message=message,
        request=Visit(
            message=message,
            url=url,
            origins=tuple(dict.fromkeys(literal)),
            waits=waits,
        ),
        answer=_mapping,
        key=key,
        elicitation_id=elicitation_id,
        timeout=timeout,
    )


def _mapping(content: Json) -> Mapping[str, Json]:
    return cast("Mapping[str, Json]", content if isinstance(content, Mapping) else {})
