"""Durations as settings have them: `7d`, `12h` or `30m`."""

import re
from datetime import timedelta

_DURATION = re.compile(r"([0-9]{1,4})([dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


def read_duration(text: str) -> timedelta | None:
    """More than nothing; None for what is no duration."""
    match = _DURATION.fullmatch(text)
    if match is None or not int(match[1]):
        return None
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
