"""The hand clock of the kit, by the name that the tests know it by."""

from webapp.deadline import NOON
from webapp.deadline import HandClock as Clock

__all__ = ["NOON", "Clock"]
