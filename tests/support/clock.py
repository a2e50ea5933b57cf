"""The manual clock of the testing kit, re-exported."""

from webapp.deadline import NOON
from webapp.deadline import HandClock as Clock

__all__ = ["NOON", "Clock"]
