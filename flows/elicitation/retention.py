"""For how long an answer that nobody used is there, by its kind.

What could go wrong: one that is wiped while the call that asked still goes on, or that a later call
gets long after. So the call's own time and a later one's are told apart.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Final

# How long after the elicitation's own time an answer nobody used is kept for the same question.
# An account or a receipt stays in any case; this is how long the question itself leads to it.
KEPT: Final[Mapping[str, timedelta]] = {
    "url": timedelta(minutes=10),
    "oauth": timedelta(minutes=10),
    "payment": timedelta(days=30),
}
# The same, from the moment of the answer.
KEPT_FROM_ANSWER: Final[Mapping[str, timedelta]] = {
    "secret": timedelta(minutes=10),
    "form": timedelta(minutes=10),
    "confirm": timedelta(minutes=10),
    "gate": timedelta(minutes=2),
}
# For how long a later call of the same may have it; the call that asked has it till it is wiped.
JOINED_FROM_ANSWER: Final[Mapping[str, timedelta]] = {
    "form": timedelta(minutes=2),
    "confirm": timedelta(minutes=2),
    "gate": timedelta(minutes=2),
}
# A yes to these, though wiped, holds for every leg of its call that starts this soon after it.
HOLDS_FOR_ITS_CALL: Final[Mapping[str, timedelta]] = {"gate": timedelta(minutes=15)}
