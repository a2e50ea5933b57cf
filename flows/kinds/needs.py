"""The mark `needs`: what a tool asks before its body starts."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.kinds.secret import Secret
from flows.kinds.tool_marks import keep_mark, layers_of, must_mark_a_tool
from flows.question import Question, current_asker, telling
from flows.requests import AccountRequest, PaymentRequest

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
SkipIf: TypeAlias = Callable[[Mapping[str, Json]], Awaitable[bool] | bool]
OnComplete: TypeAlias = Callable[..., Awaitable[object] | object]
_MARK: Final = "__elicit_needs__"
NOT_NEEDED: Final = (
    "needed(...) reads the answer to what the tool needs, and this was not asked before the tool "
    "began: mark the tool with @elicit.needs(...) of the same question, and look at its skip_if."
)


@runtime_checkable
class NeedsHolder(Protocol):
    """An asker that has the answers to what a tool needs before its body starts."""

    def needed(self, question: Question[T]) -> T:
        """Raises InvalidQuestion where it was not asked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One mark: its questions, and what is said and done about them."""

    questions: tuple[Question[Any], ...]
    hides: bool = False
    skip_if: SkipIf | None = None
    on_complete: OnComplete | None = None
    decline_message: str | None = None


def needs(
    *questions: Question[Any],
    hide: bool = False,
    skip_if: SkipIf | None = None,
    on_complete: OnComplete | None = None,
    decline_message: str | None = None,
) -> Callable[[F], F]:
    """Mark a tool: these are asked at each call, one after the other, before its body starts.

    The body gets an answer by awaiting the same question, which is then not asked again, or by
    `needed(question)`, which a `def` tool can call; one that does neither is only kept from
    starting. A no ends the call. Several marks are asked from the
    top down, a question that two of them share once; it does not matter whether they stand above
    or below the tool's own decorator. The other options of a question are its own: `timeout=`,
    `key=`, and for `url` a function of the link.

    `skip_if` is given the arguments as the client sent them, which nobody has checked yet; if it
    is true, nothing is asked, but what this call has asked already is not skipped later.
    `on_complete` is given the answers in the order of the questions, once a call, and only if a
    person was asked: not where the account, the purchase or the named secret was there. (Of a
    caller without a name nothing is kept: there it runs each time that the body does.) Both may be
    async, may use verbs, and may raise NotAccepted as a no of their own. `decline_message` is what
    the model reads when the person said no or did not answer.

    With `hide` the tool is not in tools/list for a caller until all of it is there: an account is
    connected with these scopes, it is bought with `once=True`, a secret is kept by `name`. Clients
    are told when that changes. Accounts and secrets come by another tool that asks for the same,
    or by the page of connections; then the tool is shown, and asks once whether it may use the
    account. A purchase belongs to the tool that asks for it, so such a tool is reached by its name
    (the server's instructions or another tool's result may say it): a hidden tool that is called
    asks as any other does. What hides is no protection: what is asked is.

    Raises InvalidQuestion.
    """
    must_mark_a_tool("needs(...)")
    if not questions:
        raise InvalidQuestion("needs(...) is given what is asked: needs(elicit.oauth(github)).")
    for question in questions:
        if not isinstance(question, Question):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidQuestion(
                f"needs(...) is given questions, not a {type(question).__name__}: "
                "needs(elicit.oauth(github))."
            )
        if hide and not _is_kept(question):
            raise InvalidQuestion(
                f"{question.message!r} is asked each time, so hide=True would hide the tool for "
                "ever: it is for oauth, payment(once=True) and secret(name=...)."
            )
    if decline_message is not None and not decline_message.strip():
        raise InvalidQuestion("decline_message is empty: leave it out or say something.")
    for question in questions:
        question.discard()  # each call asks it; the one that marks a tool does not
    need = Need(
        questions=questions,
        hides=hide,
        skip_if=skip_if,
        on_complete=on_complete,
        decline_message=decline_message,
    )

    def mark(tool: F) -> F:
        if not keep_mark(tool, _MARK, lambda layer: (need, *needs_of(layer))):
            name = type(tool).__name__
            raise InvalidQuestion(f"needs(...) marks a tool's function, not a {name}.")
        return tool

    return mark


def needed(question: Question[T]) -> T:
    """The answer to a question that `needs` has asked, for a tool that cannot await: a `def`.

    The library runs such a tool in a worker thread, where it may block. It may be called as often
    as the body likes; whoever awaits the same question too gets the same answer.

    Raises InvalidQuestion where the tool does not need it, or its `skip_if` has left it out.
    """
    with telling():
        question.discard()
        asker = current_asker()
        if not isinstance(asker, NeedsHolder):
            raise InvalidQuestion(NOT_NEEDED)
        return asker.needed(question)


def needs_of(tool: object) -> tuple[Need, ...]:
    """The marks on a function, in the order in which they are asked."""
    for layer in layers_of(tool):
        marks: object = getattr(layer, _MARK, None)
        if isinstance(marks, tuple):
            return cast("tuple[Need, ...]", marks)
    return ()


def _is_kept(question: Question[Any]) -> bool:
    match question.request:
        case AccountRequest():
            return True
        case PaymentRequest(once=once):
            return once
        case Secret(name=name):
            return name is not None
        case _:
            return False
