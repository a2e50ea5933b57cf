"""Every error of the library, in one tree.

ElicitError
├── InvalidQuestion      the verb's own arguments are wrong (raised by the verb, not at the await)
│   ├── InvalidSchema    what a form cannot show, which is a fault of the tool's code
│   └── ResultNotKept    what `once` did is done, and its result is no JSON or too long
├── NoAsker              nobody asks here: no tool call, and no `asking` block
├── CallOver             the call that this verb belongs to has ended
├── AlreadyDone          what this owner's key stands for was done a moment ago
├── NotAsked             a question was made in the call and never awaited
│   └── NotAwaited       and was used as if it were its answer
├── QuestionChanged      a retried tool asked something else than before
├── NotSupported         the client cannot show this kind of question
├── NotConfigured        the server lacks a setting that the question needs
├── NotAllowed           nobody could safely answer this caller's question
├── InvalidArguments     a gated tool was called with what cannot be shown as it would run
├── NotAccepted          the person or the time said no
│   ├── Declined         in the client or on our page
│   ├── Denied           at the provider
│   ├── Cancelled        the wait ended; the question itself may live on
│   ├── NobodyAsked      the client answered by itself, sooner than any person could
│   ├── Processing       the payment is on its way and was not to be waited for
│   ├── Expired          its time was up
│   ├── Failed           the provider or this server could not finish it
│   ├── InvalidAnswer    the client answered something else than was asked
│   └── Superseded       a newer question took its place
├── OwnerNeeded          several people or tools have one elicitation_id
├── NotPossible          this change does not follow from the elicitation's status
├── TooManyAttempts      a link was started more often than allowed
├── TooManyPending       more questions are open than allowed
├── StoreUnavailable     nothing can be kept at the moment: try again
├── InvalidToken         a token is damaged, forged, expired or meant for something else
├── Unverified           a webhook is not proven to come from who it says, or not from now
├── WeakSecret           a key is too short to be one
└── Unreadable           sealed bytes do not open under any key of the ring

Each class carries `name` (stable, for programs and the model), `code` (the same text, as results
and problems of the HTTP API have it), `jsonrpc_code` and `http_status`; the message is a sentence
fit for whoever it reaches.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import ClassVar, Final


class ElicitError(Exception):
    """Anything that elicit-url raises on purpose."""

    name: ClassVar[str] = "ELICITATION_ERROR"
    code: ClassVar[str] = name
    jsonrpc_code: ClassVar[int] = -32603
    http_status: ClassVar[int] = 500

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.code = cls.name


class InvalidQuestion(ElicitError, ValueError):
    """A verb's arguments are wrong. The verb raises it, so a bad constant fails at import."""

    name = "INVALID_INPUT"
    jsonrpc_code = -32602
    http_status = 400


class InvalidSchema(InvalidQuestion):
    """The schema asks for what a form cannot show: a fault in the tool's code."""

    name = "ELICITATION_INVALID_SCHEMA"
    jsonrpc_code = -32603
    http_status = 500


class ResultNotKept(InvalidQuestion):
    """`once` did its work, but cannot keep the result; the same call gets this error again."""

    name = "ELICITATION_RESULT_NOT_KEPT"


class NoAsker(ElicitError):
    """A verb was awaited where nobody asks; `why` says so in other words than the usual ones."""

    name = "ELICITATION_NO_ASKER"

    def __init__(self, why: str | None = None) -> None:
        super().__init__(
            why
            or "Nobody can be asked here. In a tool, await it inside the tool of a server that "
            "`elicit serve`, `create_app` or, after `add_pages`, its own run() serves; in any "
            "other coroutine, within `async with asking(owner, show=...)` (from webapp import "
            "asking), or to complete a question `with completing()`; in a test, inside `async with "
            "elicit_person(server)`."
        )


class CallOver(ElicitError):
    """A verb was awaited after its tool call had ended."""

    name = "ELICITATION_CALL_OVER"

    def __init__(self) -> None:
        super().__init__("This call is over, so nothing can be asked for it any more.")


class AlreadyDone(ElicitError):
    """A block `asking` with this owner and key has just used a payment or `once`, and ended well.

    So this one is its repetition: nobody was asked, and nothing is bought or done again.
    """

    name = "ELICITATION_ALREADY_DONE"
    http_status = 409

    def __init__(self) -> None:
        super().__init__(
            "What this stands for was done a moment ago, so nothing was asked, bought or done "
            "again. Show what came of it; two minutes later the same is a new wish, and one with "
            "again=True is one at once."
        )


class NotAsked(ElicitError):
    """Questions were made in a call and not asked; `places` are the lines where they were made.

    `in_def`: one of them was made in a function that cannot await.
    """

    name = "ELICITATION_NOT_ASKED"

    def __init__(self, *places: str, in_def: bool = False) -> None:
        self.places = places
        self.in_def = in_def
        instead = (
            " A function that is a plain `def` cannot await: mark its tool with "
            "@elicit.needs(question), and read the answer with elicit.needed(question)."
        )
        super().__init__(
            f"The tool made a question at {', '.join(places)} and never asked it, so what it "
            "returned is withheld. This is a fault of the tool, and calling it again changes "
            "nothing: its author has to write `await` before the question, or to call discard() "
            f"on one that is not to be asked.{instead if in_def else ''} What the tool did before "
            "is not undone."
        )


class NotAwaited(NotAsked, TypeError):
    """A question was used as if it were its answer: `place` is the line where it was made."""

    name = "ELICITATION_NOT_AWAITED"

    def __init__(self, place: str) -> None:
        self.places = (place,)
        ElicitError.__init__(
            self,
            f"The tool used the question that it made at {place} as if it were the answer. This is "
            "a fault of the tool, and calling it again changes nothing: its author has to write "
            "`await` before the question.",
        )


class QuestionChanged(ElicitError):
    """The tool started again, and asked something else than at the same place before."""

    name = "ELICITATION_QUESTION_CHANGED"

    def __init__(self, *, expected: str, asked: str) -> None:
        self.expected = expected
        self.asked = asked
        super().__init__(
            f"The tool asked {asked!r} where it had asked {expected!r} before: what a question "
            "says must be the same each time the tool starts again in a call."
        )


class NotSupported(ElicitError):
    """The client did not declare the elicitation mode that this needs.

    Or whoever asks cannot ask it at all: `why` says so, and what can be done instead.
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

    def __init__(self, *missing: str, has_none: bool = False, how: str | None = None) -> None:
        """`has_none`: no provider of the kind is set up. `how`: what its operator has to write."""
        self.missing = missing
        are_not = "is not set" if len(missing) == 1 else "are not set"
        says = f"This server is not set up for that yet: {' and '.join(missing)} {are_not}."
        tries = " Or try it with --sandbox, which plays the providers." if has_none else ""
        super().__init__(f"{says} {how or 'Ask the operator of this server to set it.'}{tries}")


class NotAllowed(ElicitError):
    """Nobody could safely open this caller's link; the message says what would change that."""

    name = "ELICITATION_NOT_ALLOWED"
    jsonrpc_code = -32600
    http_status = 403


class InvalidArguments(ElicitError):
    """A tool was called with arguments that do not fit, or that nobody could be shown whole."""

    name = "ELICITATION_INVALID_ARGUMENTS"
    jsonrpc_code = -32602
    http_status = 422


class NotAccepted(ElicitError):
    """The question was not answered with a yes."""

    http_status = 409

    elicitation_id: str | None

    def __init__(self, message: str, *, elicitation_id: str | None = None) -> None:
        self.elicitation_id = elicitation_id
        super().__init__(message)


class Declined(NotAccepted):
    """The person said no, in the client or on our page."""

    name = "ELICITATION_DECLINED"
    http_status = 403


class Denied(NotAccepted):
    """The person said no at the provider."""

    name = "ELICITATION_DENIED"
    http_status = 403


class Cancelled(NotAccepted):
    """The wait was given up; the same call made again joins a question that is still open."""

    name = "ELICITATION_CANCELLED"


class NobodyAsked(NotAccepted):
    """The client answered sooner than a person can read: the question stays open on our page.

    Told to the model alone: the tool has ended by then, and the same call goes on.
    """

    name = "ELICITATION_NOBODY_ASKED"

    def __init__(self, *, elicitation_id: str) -> None:
        super().__init__(
            "Nobody was asked: the client answered this sooner than a person can read it, so its "
            "answer does not count. This is no decision of the person's.",
            elicitation_id=elicitation_id,
        )


class Processing(NotAccepted):
    """The payment is on its way, as by a bank transfer, and was not to be waited for.

    The same call made again gets it once it is there.
    """

    name = "ELICITATION_PROCESSING"


class Expired(NotAccepted):
    """Nobody answered within `ttl`."""

    name = "ELICITATION_TIMEOUT"
    http_status = 408

    def __init__(
        self, message: str, *, elicitation_id: str | None = None, ttl: timedelta | None = None
    ) -> None:
        self.ttl = ttl
        super().__init__(message, elicitation_id=elicitation_id)


class Failed(NotAccepted):
    """The provider, or this server, could not finish what the person began.

    `is_refusal`: the provider understood what it was asked for, and would not. `is_permanent`: it
    would not the next time either, for what is wrong is what was asked.
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
    """What the client answered does not fit the schema; `details` say where and why."""

    name = "INVALID_INPUT"
    jsonrpc_code = -32602
    http_status = 400

    def __init__(
        self, details: Sequence[tuple[str, str]], *, elicitation_id: str | None = None
    ) -> None:
        """`details` are pairs of a field's name, or nothing for the whole, and a sentence."""
        self.details = tuple({"path": path, "message": message} for path, message in details)
        super().__init__(
            f"The answer does not fit what was asked. Details: {json.dumps(self.details)}",
            elicitation_id=elicitation_id,
        )


class Superseded(NotAccepted):
    """A newer question took this one's place."""

    name = "ELICITATION_SUPERSEDED"


class OwnerNeeded(ElicitError):
    """Several people, or several tools, have a question with this `elicitation_id`."""

    name = "ELICITATION_OWNER_NEEDED"
    http_status = 409

    def __init__(self, elicitation_id: str, *, tools: Sequence[str] = ()) -> None:
        self.elicitation_id, self.tools = elicitation_id, tuple(tools)
        who, what = ("tools", f"tool={' or '.join(tools)}") if tools else ("people", "owner=")
        super().__init__(
            f"Several {who} have a question with the elicitation_id {elicitation_id!r}, so nothing "
            f"was completed: pass {what}, or complete it by its link.id."
        )


# What happened to a question, or to a payment, by its status.
_HAPPENED: Final[Mapping[str, str]] = {
    "pending": "The question is not answered yet",
    "opened": "The question is not answered yet",
    "exchanging": "The question is being finished at its provider",
    "accepted": "The question was accepted already",
    "declined": "The question was declined",
    "denied": "The question was refused at its provider",
    "cancelled": "The question was cancelled",
    "expired": "The question has expired",
    "failed": "The question has failed",
    "superseded": "The question was replaced by a newer one",
    "open": "The payment is not used yet",
    "taken": "A run uses the payment",
    "spent": "The payment was used already",
    "perhaps delivered": "The payment may be used already",
    "refunding": "The payment is being refunded",
    "refunded": "The payment was refunded already",
    "disputed": "The payment is disputed at the payer's bank",
}
# Changes whose status is no word for them.
_CHANGES: Final[Mapping[str, str]] = {"exchanging": "finished", "let go": "released"}


class NotPossible(ElicitError):
    """The status of the elicitation does not allow this change; `status` says what it is."""

    name = "ELICITATION_ALREADY_SETTLED"
    http_status = 409

    def __init__(self, *, status: str, wanted: str, message: str | None = None) -> None:
        self.status = status
        self.wanted = wanted
        happened = _HAPPENED.get(status, f"It is {status}")
        change = _CHANGES.get(wanted, wanted)
        super().__init__(message or f"{happened}, so it cannot be {change} now.")


class TooManyAttempts(ElicitError):
    """The link was started `limit` times without an end."""

    name = "ELICITATION_TOO_MANY_ATTEMPTS"
    http_status = 429

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        super().__init__(
            f"This was started {limit} times already. Ask your assistant to begin again."
        )


class TooManyPending(ElicitError):
    """As many questions are open as the server allows: `limit`, for this person or in all."""

    name = "ELICITATION_TOO_MANY_PENDING"
    jsonrpc_code = -32000
    http_status = 429

    def __init__(self, *, limit: int, is_in_all: bool = False) -> None:
        self.limit = limit
        self.is_in_all = is_in_all
        whose = "on this server" if is_in_all else "for this person"
        super().__init__(
            f"Nothing was asked: as many questions are open {whose} as may be ({limit}). Call this "
            "tool again when some of them are answered, declined or out of time."
        )


class StoreUnavailable(ElicitError):
    """The store cannot answer: closed, full, read-only, damaged, gone or locked for too long.

    After a write it means "not acknowledged", not "not written". `why` is the operator's: it may
    name a file, so it is in the log and in tracebacks, and never in what a model or a page says.
    """

    name = "STORE_UNAVAILABLE"
    jsonrpc_code = -32000
    http_status = 503

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(
            "This server can keep nothing at the moment, so this could not be brought to its end. "
            "Try again in a minute, with the same arguments: it goes on from where it was. If it "
            "stays so, whoever runs the server finds the reason in its log."
        )
        self.add_note(why)


class InvalidToken(ElicitError):
    """A token that must not be acted upon; `reason` is for logs and tests, never for the sender."""

    name = "ELICITATION_INVALID_TOKEN"
    http_status = 404

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__("This link is damaged, too old, or not from here.")


class Unverified(ElicitError):
    """A webhook that must not be acted upon; `reason` is for logs and tests, not for the sender."""

    name = "WEBHOOK_UNVERIFIED"
    http_status = 400

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__("This delivery could not be verified.")


class WeakSecret(ElicitError, ValueError):
    """A secret of fewer than 32 bytes."""

    name = "ELICITATION_WEAK_SECRET"


class Unreadable(ElicitError):
    """An encrypted record that no secret opens, or that belongs to another row."""

    name = "ELICITATION_UNREADABLE"

    def __init__(self) -> None:
        super().__init__(
            "A sealed record does not open: the key it was sealed with is gone from ELICIT_SECRET, "
            "or the record was changed or moved."
        )
