"""A tool awaits a person: the public names."""

from flows import elicit
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
    InvalidQuestion,
    NoAsker,
    NotAccepted,
    NotAllowed,
    NotConfigured,
    NotSupported,
    QuestionChanged,
    Superseded,
)
from flows.question import DEFAULT_TIMEOUT, Link, Outcome, Question

__all__ = [
    "DEFAULT_TIMEOUT",
    "CallOver",
    "Cancelled",
    "Completion",
    "Declined",
    "Denied",
    "ElicitError",
    "Expired",
    "Failed",
    "InvalidQuestion",
    "Link",
    "NoAsker",
    "NotAccepted",
    "NotAllowed",
    "NotConfigured",
    "NotSupported",
    "Outcome",
    "Question",
    "QuestionChanged",
    "Status",
    "Superseded",
    "complete_elicitation",
    "elicit",
]
