"""A tool awaits a person: the public names."""
# Of elicit-url, as elicit_url.py reads here.

from flows import elicit
from flows.account import Account
from flows.capabilities import supports_elicitation
from flows.elicit import complete_elicitation
from flows.elicitation import Completion, Status
from flows.errors import (
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
    ResultNotKept,
    Superseded,
    TooManyPending,
)
from flows.money import Money
from flows.provider import Provider
from flows.question import DEFAULT_TIMEOUT, Link, Outcome, Question
from flows.receipt import Receipt, Refund

__all__ = [
    "DEFAULT_TIMEOUT",
    "Account",
    "CallOver",
    "Cancelled",
    "Completion",
    "Declined",
    "Denied",
    "ElicitError",
    "Expired",
    "Failed",
    "InvalidAnswer",
    "InvalidArguments",
    "InvalidQuestion",
    "InvalidSchema",
    "InvalidToken",
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
    "ResultNotKept",
    "Status",
    "Superseded",
    "TooManyPending",
    "complete_elicitation",
    "elicit",
    "supports_elicitation",
]
