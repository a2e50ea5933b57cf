"""The errors of the library, as a class tree.

ElicitError
├── InvalidQuestion      the verb's arguments are wrong (raised by the verb, not by the await)
│   ├── InvalidSchema    the schema contains something that a form cannot show: a bug in the tool
│   └── ResultNotStored  `once` ran, but its result is not JSON, is too long or has another type
├── NoAsker              no tool call and no `asking` block is active
├── CallOver             the call that this verb belongs to has ended
├── AlreadyDone          the action of this owner and key was done a moment ago
├── NotAsked             a question was created in the call and never awaited
│   └── NotAwaited       a question was used as if it were its answer
├── QuestionChanged      a retried tool asked a different question than before
├── NotSupported         the client cannot show this kind of question
├── NotConfigured        the server lacks a setting that the question needs
├── NotAllowed           nobody could safely answer this caller's question
├── InvalidArguments     a gated tool was called with arguments that are invalid or cannot be shown
├── NotAccepted          the outcome is not an accepted answer
│   ├── Declined         the person declined, in the client or on our page
│   ├── Denied           the person declined at the provider
│   ├── Cancelled        the wait ended; the question itself may still be open
│   ├── NobodyAsked      the client answered automatically, faster than a person could
│   ├── Processing       the payment is on its way and the question does not wait for it
│   ├── Expired          the question expired before it was answered
│   ├── Failed           the provider or this server could not finish the operation
│   ├── InvalidAnswer    the client's answer does not match the schema
│   └── Superseded       a newer question replaced this question
├── OwnerNeeded          several people or tools have a question with this elicitation_id
├── NotPossible          the status of the question or payment does not allow this change
├── TooManyAttempts      too many presses of Continue on a link, or wrong codes
├── TooManyPending       the limit of open questions is reached
├── StoreUnavailable     the store cannot save anything at the moment: try again
├── InvalidToken         a token is damaged, forged, expired or made for something else
├── Unverified           a webhook's sender or time could not be verified
├── WeakSecret           a secret is too short
└── Unreadable           no configured key opens an encrypted record

Each class has a `name` (stable, for programs and the model), a `code` (the same text, as results
and problems of the HTTP API show it), a `jsonrpc_code` and an `http_status`. The message can be
shown to its recipient. In a tool, InvalidQuestion becomes InvalidUse (flows.elicitation.misuse).
"""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, Final


class ElicitError(Exception):
    """Base class of all errors that elicit-url raises on purpose."""

    name: ClassVar[str] = "ELICITATION_ERROR"
    code: ClassVar[str] = name
    jsonrpc_code: ClassVar[int] = -32603
    http_status: ClassVar[int] = 500
    place: str | None = None  # the line of the author's code that the message names

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.code = cls.name


class InvalidQuestion(ElicitError, ValueError):
    """The arguments of a verb are wrong. Calling the verb raises this error, before the `await`.

    A wrong question at the top level of a module therefore fails when the module is imported.
    """

    name = "INVALID_INPUT"
    jsonrpc_code = -32602
    http_status = 400
    values: tuple[object, ...] = ()  # the wrong values, if a model may have chosen them


class InvalidSchema(InvalidQuestion):
    """The schema contains something that a form cannot show. This is a bug in the tool's code."""

    name = "ELICITATION_INVALID_SCHEMA"
    jsonrpc_code = -32603
    http_status = 500
    path: str = "$"  # the JSON path of the fault
    why: str = ""


class ResultNotStored(InvalidQuestion):
    """`once` ran, but its result is not JSON, is too long or has another type than declared."""

    name = "ELICITATION_RESULT_NOT_KEPT"
    jsonrpc_code = -32603


class NoAsker(ElicitError):
    """A verb was awaited where no question can be asked. If `why` is given, it is the message."""

    name = "ELICITATION_NO_ASKER"

    def __init__(self, why: str | None = None) -> None:
        usual = (
            "Nobody can be asked here: no tool call and no `asking` block is active. In a tool: "
            "serve it with `elicit serve`, `create_app`, or `add_pages` and the server's own "
            "run(). In any other coroutine: await the question within `async with asking(owner, "
            "show=...)` (from webapp import asking). To complete a question: use `with "
            "completing()`. In a test: use `async with elicit_person(server)`."
        )
        super().__init__(why or usual)


class CallOver(ElicitError):
    """A verb was awaited after its tool call had ended."""

    name = "ELICITATION_CALL_OVER"

    def __init__(self) -> None:
        super().__init__("This call has ended, so it cannot ask another question.")


class AlreadyDone(ElicitError):
    """This was already done: an `asking` block with this owner and key has just succeeded."""

    name = "ELICITATION_ALREADY_DONE"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(
            "This action has just succeeded, so nothing was asked, bought or done again. Show its "
            "result. To run the action again, wait two minutes or pass again=True."
        )


class NotAsked(ElicitError):
    """Questions were created in a call and never asked. `places` are the lines that create them."""

    name = "ELICITATION_NOT_ASKED"

    def __init__(self, *places: str, in_def: bool = False, verb: str | None = None) -> None:
        self.places: tuple[str, ...] = places
        self.in_def: bool = in_def
        instead = (
            " A plain `def` function cannot await. Mark the tool with @elicit.needs(question), "
            "and read the answer with elicit.needed(question)."
        )
        super().__init__(
            f"The tool {'created a question' if verb is None else f'called {verb}'} at "
            f"{', '.join(places)} and never {'asked' if verb is None else 'awaited'} it, so its "
            "result is withheld. This is a bug in the tool, and calling it again does not help. "
            "The tool's author has to write `await` before "
            f"{verb or 'the question, or call discard() on a question that should not be asked'}."
            f"{instead if in_def else ''} The work that the tool did before is not undone."
        )


class NotAwaited(NotAsked, TypeError):
    """A question was used as if it were the answer. `place` is the line that created it."""

    name = "ELICITATION_NOT_AWAITED"

    def __init__(self, place: str) -> None:
        self.places: tuple[str, ...] = (place,)
        ElicitError.__init__(
            self,
            f"The tool used the question that it created at {place} as if it were the answer. This "
            "is a bug in the tool, and calling it again does not help. The tool's author has to "
            "write `await` before the question.",
        )


class QuestionChanged(ElicitError):
    """The tool was restarted and asked a different question at the same place."""

    name = "ELICITATION_QUESTION_CHANGED"

    def __init__(self, *, expected: str, asked: str, differs: str | None = None) -> None:
        self.expected = expected
        self.asked = asked
        same = f"again, but {differs or 'its details'} differed from the first time"
        before = same if expected == asked else f"where it had asked {expected!r} before"
        super().__init__(
            f"The tool asked {asked!r} {before}. This is a bug in the tool: a question must be the "
            "same each time the tool restarts during a call. The tool's author has to compute a "
            "value that changes, such as the time, in elicit.once."
        )


class NotSupported(ElicitError):
    """The client did not declare the elicitation mode that the question needs.

    `why` replaces the message if the asker cannot ask the question at all.
    """

    name = "ELICITATION_NOT_SUPPORTED"
    jsonrpc_code = -32007
    http_status = 400

    def __init__(self, mode: str, *, why: str | None = None) -> None:
        self.mode = mode
        super().__init__(why or f"This client does not support {mode} elicitation.")


class NotConfigured(ElicitError):
    """The server lacks settings; `missing` names them."""

    name = "ELICITATION_NOT_CONFIGURED"
    is_unknown_name: bool = False  # the tool names something that no setting declares

    def __init__(self, *missing: str, has_none: bool = False, how: str | None = None) -> None:
        """`has_none`: no provider of the kind is configured. `how`: how the operator fixes it."""
        self.missing = missing
        are_not = "is not set" if len(missing) == 1 else "are not set"
        says = (
            f"This server is not set up for this question yet: {' and '.join(missing)} {are_not}."
        )
        tries = " Or try it with --sandbox, which simulates the providers." if has_none else ""
        super().__init__(f"{says} {how or 'Ask the operator of this server to set it.'}{tries}")


class NotAllowed(ElicitError):
    """The question is refused: the server cannot tell who may open this caller's link.

    The message says how such a question can be allowed.
    """

    name = "ELICITATION_NOT_ALLOWED"
    jsonrpc_code = -32600
    http_status = 403


class InvalidArguments(ElicitError):
    """A tool was called with invalid arguments, or with arguments too long to show in full."""

    name = "ELICITATION_INVALID_ARGUMENTS"
    jsonrpc_code = -32602
    http_status = 422


class NotAccepted(ElicitError):
    """The outcome of the question is not an accepted answer."""

    http_status = 409

    elicitation_id: str | None

    def __init__(self, message: str, *, elicitation_id: str | None = None) -> None:
        self.elicitation_id = elicitation_id
        super().__init__(message)


class Declined(NotAccepted):
    """The person declined, in the client or on our page."""

    name = "ELICITATION_DECLINED"
    http_status = 403


class Denied(NotAccepted):
    """The person declined at the provider."""

    name = "ELICITATION_DENIED"
    http_status = 403


class Cancelled(NotAccepted):
    """The wait was cancelled. Repeating the same call joins the question if it is still open."""

    name = "ELICITATION_CANCELLED"


class NobodyAsked(NotAccepted):
    """The client answered faster than a person can read; the question stays open on our page.

    Only the model sees this error, because the tool has already ended. Repeating the same call
    resumes the question.
    """

    name = "ELICITATION_NOBODY_ASKED"

    def __init__(self, *, elicitation_id: str) -> None:
        super().__init__(
            "Nobody was asked: the client answered faster than a person can read, so its answer "
            "was treated as automatic and ignored. The person has not decided anything.",
            elicitation_id=elicitation_id,
        )


class Processing(NotAccepted):
    """The payment is on its way, for example by bank transfer, and the call does not wait for it.

    Repeating the same call returns the payment once it has arrived.
    """

    name = "ELICITATION_PROCESSING"


class Expired(NotAccepted):
    """The question expired before it was answered. `ttl` is how long the question was open."""

    name = "ELICITATION_TIMEOUT"
    http_status = 408

    def __init__(
        self, message: str, *, elicitation_id: str | None = None, ttl: timedelta | None = None
    ) -> None:
        self.ttl = ttl
        super().__init__(message, elicitation_id=elicitation_id)


class Failed(NotAccepted):
    """The provider or this server could not finish the operation.

    `is_refusal`: the provider understood the request and refused it. `is_permanent`: repeating the
    request cannot succeed, because the request itself is wrong.
    """

    name = "ELICITATION_FAILED"
    http_status = 502

    def __init__(
        self,
        message: str,
        *,
        elicitation_id: str | None = None,
        is_refusal: bool = False,
        is_permanent: bool = False,
    ) -> None:
        self.is_refusal = is_refusal
        self.is_permanent = is_permanent
        super().__init__(message, elicitation_id=elicitation_id)


class InvalidAnswer(NotAccepted):
    """The client's answer does not match the schema. `details` say where and why."""

    name = "INVALID_INPUT"
    jsonrpc_code = -32602
    http_status = 422

    def __init__(
        self, details: Sequence[tuple[str, str]], *, elicitation_id: str | None = None
    ) -> None:
        """`details` are pairs of a field name ("" for the whole answer) and a sentence."""
        self.details: tuple[dict[str, str], ...] = tuple(
            {"path": path, "message": message} for path, message in details
        )
        super().__init__(
            f"The answer does not match the question's schema. Details: {json.dumps(self.details)}",
            elicitation_id=elicitation_id,
        )


class Superseded(NotAccepted):
    """A newer question replaced this question."""

    name = "ELICITATION_SUPERSEDED"


class OwnerNeeded(ElicitError):
    """Several people, or several tools, have a question with this `elicitation_id`."""

    name = "ELICITATION_OWNER_NEEDED"
    http_status = 409

    def __init__(self, elicitation_id: str, *, tools: Sequence[str] = ()) -> None:
        self.elicitation_id: str = elicitation_id
        self.tools: tuple[str, ...] = tuple(tools)
        who, what = ("tools", f"tool={' or '.join(tools)}") if tools else ("people", "owner=")
        super().__init__(
            f"Several {who} have a question with the elicitation_id {elicitation_id!r}, so nothing "
            f"was completed. Pass {what}, or complete the question by its link.id."
        )


# The sentence for each status of a question or a payment.
_HAPPENED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("pending", "opened"), "The question is not answered yet"),
    "exchanging": "The question is still being processed by its provider",
    "accepted": "The question was accepted already",
    "declined": "The question was declined",
    "denied": "The question was declined at its provider",
    "cancelled": "The question was cancelled",
    "expired": "The question has expired",
    "failed": "The question has failed",
    "superseded": "The question was replaced by a newer one",
    "open": "The payment is not used yet",
    "taken": "A run uses the payment",
    "spent": "The payment was used already",
    "perhaps delivered": "The payment may have been used already",
    "refunding": "The payment is being refunded",
    "refunded": "The payment was refunded already",
    "disputed": "The payment is disputed at the payer's bank",
}
# Replacements for values of `wanted` that do not fit into "it cannot be ... now".
_CHANGES: Final[Mapping[str, str]] = {"exchanging": "finished"}


class NotPossible(ElicitError):
    """The current `status` of the question or payment does not allow this change."""

    name = "ELICITATION_ALREADY_SETTLED"
    http_status = 409

    def __init__(self, *, status: str, wanted: str, message: str | None = None) -> None:
        self.status = status
        self.wanted = wanted
        happened = _HAPPENED.get(status, f"It is {status}")
        wanted = _CHANGES.get(wanted, wanted)
        super().__init__(message or f"{happened}, so it cannot be {wanted} now.")


class TooManyAttempts(ElicitError):
    """Continue was pressed `limit` times without success, or `limit` wrong codes were typed."""

    name = "ELICITATION_TOO_MANY_ATTEMPTS"
    http_status = 429

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"This link was used {limit} times already. Ask your assistant for a new link."
        )


class TooManyPending(ElicitError):
    """The limit of open questions is reached, for this person or for the server (`is_in_all`)."""

    name = "ELICITATION_TOO_MANY_PENDING"
    jsonrpc_code = -32000
    http_status = 429

    def __init__(self, *, limit: int, is_in_all: bool = False) -> None:
        self.limit = limit
        self.is_in_all = is_in_all
        whose = "on this server" if is_in_all else "for this person"
        super().__init__(
            f"Nothing was asked: the limit of open questions {whose} is reached ({limit}). Call "
            "this tool again when some of them have been answered, have been declined or have "
            "expired."
        )


class StoreUnavailable(ElicitError):
    """The store cannot answer: closed, full, read-only, damaged, deleted or locked for too long.

    After a write, the error means "not acknowledged", not "not written". `why` is for the operator:
    it may contain a file name, so it appears in logs and tracebacks, never in text for a model or a
    page.
    """

    name = "STORE_UNAVAILABLE"
    jsonrpc_code = -32000
    http_status = 503

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            "This server cannot save anything at the moment, so it could not finish the request. "
            "Try again in a minute with the same arguments: the call resumes where it stopped. If "
            "this error persists, ask the server's operator to check the server's log."
        )
        self.add_note(why)


class InvalidToken(ElicitError):
    """The token is invalid. `reason` is for logs and tests and is never shown to the sender."""

    name = "ELICITATION_INVALID_TOKEN"
    http_status = 404

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__("This link is incomplete, has expired, or belongs to another server.")


class Unverified(ElicitError):
    """The webhook could not be verified. `reason` is for logs and tests, not for the sender."""

    name = "WEBHOOK_UNVERIFIED"
    http_status = 400

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__("The server could not verify this webhook.")


class WeakSecret(ElicitError, ValueError):
    """A secret of fewer than 32 bytes."""

    name = "ELICITATION_WEAK_SECRET"


class Unreadable(ElicitError):
    """An encrypted record that no configured secret opens, or that belongs to another row."""

    name = "ELICITATION_UNREADABLE"

    def __init__(self) -> None:
        super().__init__(
            "An encrypted record cannot be decrypted: its key is no longer in ELICIT_SECRET, "
            "or the record was changed or moved. Add the previous secret to ELICIT_SECRET "
            "again, or restore a backup."
        )
