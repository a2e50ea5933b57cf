"""The public names of the library, with which a tool asks a person and awaits the answer."""
# This package belongs to elicit-url. elicit_url.py looks for this line.

from typing import TYPE_CHECKING
from warnings import warn

from flows import elicit
from flows.elicit import complete_elicitation, supports_elicitation
from flows.elicitation.ending import Ending, HowEnded
from flows.elicitation.misuse import InvalidUse
from flows.elicitation.states import Completion, Status
from flows.elicitation.tool_call import CallingPerson
from flows.errors import (
    AlreadyDone,
    CallOver,
    Cancelled,
    Declined,
    Denied,
    ElicitError,
    Expired,
    Failed,
    InvalidAnswer,
    InvalidArguments,
    InvalidQuestion,
    InvalidSchema,
    InvalidToken,
    NoAsker,
    NotAccepted,
    NotAllowed,
    NotAsked,
    NotConfigured,
    NotPossible,
    NotSupported,
    OwnerNeeded,
    Processing,
    QuestionChanged,
    ResultNotStored,
    Superseded,
    TooManyPending,
)
from flows.oauth.account import Account
from flows.oauth.provider import Provider
from flows.payments.money import Money
from flows.payments.receipt import Receipt, Refund
from flows.question import DEFAULT_TIMEOUT, Link, Outcome, Question

__all__ = [
    "DEFAULT_TIMEOUT",
    "Account",
    "AlreadyDone",
    "CallOver",
    "CallingPerson",
    "Cancelled",
    "Completion",
    "Declined",
    "Denied",
    "ElicitError",
    "Ending",
    "Expired",
    "Failed",
    "HowEnded",
    "InvalidAnswer",
    "InvalidArguments",
    "InvalidQuestion",
    "InvalidSchema",
    "InvalidToken",
    "InvalidUse",
    "Link",
    "Money",
    "NoAsker",
    "NotAccepted",
    "NotAllowed",
    "NotAsked",
    "NotConfigured",
    "NotPossible",
    "NotSupported",
    "Outcome",
    "OwnerNeeded",
    "Processing",
    "Provider",
    "Question",
    "QuestionChanged",
    "Receipt",
    "Refund",
    "ResultNotStored",
    "Status",
    "Superseded",
    "TooManyPending",
    "complete_elicitation",
    "elicit",
    "supports_elicitation",
]

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> object:
        if name != "ResultNotKept":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        warn("ResultNotKept is now ResultNotStored.", DeprecationWarning, stacklevel=2)
        return ResultNotStored
