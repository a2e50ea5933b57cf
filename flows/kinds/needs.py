"""The mark `needs`: questions that are asked before a tool's body starts."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from flows.elicitation.states import Json
from flows.errors import InvalidQuestion
from flows.kinds.gate import layers_of, must_mark_a_tool, set_mark
from flows.kinds.secret import Secret
from flows.question import Question, current_asker, verb
from flows.requests import AccountRequest, PaymentRequest

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
SkipIf: TypeAlias = Callable[[Mapping[str, Json]], Awaitable[bool] | bool]
OnComplete: TypeAlias = Callable[..., Awaitable[object] | object]
_MARK: Final = "__elicit_needs__"
NOT_NEEDED: Final = (
    "needed(...) reads the answer to a question that was asked before the tool began, and this "
    "question was not asked then. Mark the tool with @elicit.needs(...) and the same question, "
    "and check its skip_if."
)


@runtime_checkable
class NeedsHolder(Protocol):
    """An asker that has the answers to the questions of a tool's `needs` marks."""

    def needed(self, question: Question[T]) -> T:
        """Return the answer. Raises InvalidQuestion if the question was not asked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A `needs` mark: its questions and options."""

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
    """Mark a tool: the questions are asked in order at each call, before the tool's body starts.

    The body gets an answer by awaiting the same question, which is not asked again, or by
    `needed(question)`, which also works in a `def` tool. A body need not read the answers: it
    starts only when all questions are answered. A declined question ends the call. Several marks
    are asked from the top down, and a question that two marks share is asked once. Marks can be
    above or below the tool's own decorator. Pass a question's options to the question itself:
    `timeout=`, `key=`, and for `url` a function of the link.

    - `skip_if` receives the arguments as the client sent them, unchecked. If it returns true,
      nothing is asked, but questions that this call has already asked are not skipped later.
    - `on_complete` receives the answers in order, once for each call, and only if a person was
      asked, not if the account, purchase or named secret already existed. For an anonymous caller
      nothing is stored, so `on_complete` runs each time that the body runs.
    - `skip_if` and `on_complete` may be async, use verbs, and raise NotAccepted to decline.
    - `decline_message` is what the model reads if the person declined or did not answer.
    - `hide`: tools/list omits the tool for a caller until the caller has everything: the account is
      connected with these scopes, the purchase was made with `once=True`, the secret is stored by
      `name`. Clients are notified of changes. If another tool or the page of connections adds the
      account or secret, the tool is listed, and asks once whether it may use the account. A
      purchase can only be made by calling the hidden tool. Mention that tool's name in the server's
      instructions or in another tool's result. A hidden tool that is called asks as usual. `hide`
      is no protection: the questions are.

    Raises InvalidQuestion if an argument is invalid, or if `hide` is set for a question that is
    asked at each call.
    """
    must_mark_a_tool("needs(...)")
    if not questions:
        raise InvalidQuestion(
            "needs(...) needs at least one question, as in needs(elicit.oauth(github))."
        )
    for question in questions:
        if not isinstance(question, Question):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidQuestion(
                f"needs(...) accepts only questions, not a {type(question).__name__}. Write, "
                "for example, needs(elicit.oauth(github))."
            )
        if hide and not _is_stored(question):
            raise InvalidQuestion(
                f"{question.message!r} is asked at every call, so hide=True would hide the tool "
                "forever. Use hide=True only with oauth, payment(once=True) and "
                "secret(name=...)."
            )
    if decline_message is not None and not decline_message.strip():
        raise InvalidQuestion("decline_message is empty. Leave it out, or write a message.")
    for question in questions:
        question.discard()  # each call asks the question, not the decorator
    need = Need(
        questions=questions,
        hides=hide,
        skip_if=skip_if,
        on_complete=on_complete,
        decline_message=decline_message,
    )

    def mark(tool: F) -> F:
        if not set_mark(tool, _MARK, lambda layer: (need, *needs_of(layer))):
            name = type(tool).__name__
            raise InvalidQuestion(
                f"needs(...) is a decorator for a tool's function, not for a {name}."
            )
        return tool

    return mark


@verb
def needed(question: Question[T]) -> T:
    """Return the answer to a question of `needs`, for a `def` tool, which cannot await.

    The library runs such a tool in a worker thread, where it may block. The body may call `needed`
    repeatedly, and awaiting the same question returns the same answer.

    Raises InvalidQuestion if the tool has no such `needs` mark, or its `skip_if` skipped the
    question.
    """
    question.discard()
    asker = current_asker()
    if not isinstance(asker, NeedsHolder):
        raise InvalidQuestion(NOT_NEEDED)
    return asker.needed(question)


def needs_of(tool: object) -> tuple[Need, ...]:
    """Return the marks on a function in the order in which they are asked."""
    for layer in layers_of(tool):
        marks: object = getattr(layer, _MARK, None)
        if isinstance(marks, tuple):
            return cast("tuple[Need, ...]", marks)
    return ()


def _is_stored(question: Question[Any]) -> bool:
    match question.request:
        case AccountRequest():
            return True
        case PaymentRequest(once=once):
            return once
        case Secret(name=name):
            return name is not None
        case _:
            return False
