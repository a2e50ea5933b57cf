"""How much may be asked at once, where and for how long, as the operator sets it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from flows.question import TIMEOUT_AT_MOST
from webapp.settings.durations import read_duration
from webapp.settings.environment import switch

# What one owner has open stands in one record.
PER_OWNER_AT_MOST = 200
PER_OWNER = 50
IN_ALL = 100_000
GRACE = timedelta(seconds=10)
_GRACE_AT_MOST = timedelta(hours=1)
ORPHANED_AT_MOST = timedelta(minutes=10)
_ORPHANED_AT_MOST = timedelta(days=1)
_IN_ALL_AT_MOST = 10_000_000
_SECONDS_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """`forms_on_pages`: a form whose client has none is a page of ours, else it is not asked.

    `patient_clients`, by the names that they declare, wait for a call as long as it takes.
    """

    forms_on_pages: bool = True
    one_per_session: bool = False
    pending_per_owner: int = PER_OWNER
    pending_at_most: int = IN_ALL
    timeout_at_most: timedelta = TIMEOUT_AT_MOST
    patient_clients: frozenset[str] = frozenset()
    grace: timedelta = GRACE  # for tools that are at work when the process is told to end
    orphaned_at_most: timedelta = ORPHANED_AT_MOST  # for tools whose client has gone


def read_policies(environment: Mapping[str, str], problems: list[str]) -> PolicySettings:
    """From variables; each problem names its variable."""
    return PolicySettings(
        forms_on_pages=switch(environment, "ELICIT_FORMS_ON_PAGES", problems, default=True),
        one_per_session=switch(environment, "ELICIT_ONE_PER_SESSION", problems, default=False),
        pending_per_owner=_count(
            environment,
            "ELICIT_PENDING_PER_OWNER",
            problems,
            default=PER_OWNER,
            at_most=PER_OWNER_AT_MOST,
        ),
        pending_at_most=_count(
            environment,
            "ELICIT_PENDING_AT_MOST",
            problems,
            default=IN_ALL,
            at_most=_IN_ALL_AT_MOST,
        ),
        timeout_at_most=_duration(
            environment,
            "ELICIT_TIMEOUT_AT_MOST",
            problems,
            default=TIMEOUT_AT_MOST,
            at_most=(TIMEOUT_AT_MOST, "7 days"),
        ),
        grace=_duration(
            environment,
            "ELICIT_GRACE",
            problems,
            default=GRACE,
            at_most=(_GRACE_AT_MOST, "1 hour"),
        ),
        orphaned_at_most=_duration(
            environment,
            "ELICIT_ORPHANED_AT_MOST",
            problems,
            default=ORPHANED_AT_MOST,
            at_most=(_ORPHANED_AT_MOST, "1 day"),
        ),
        patient_clients=_names(environment, "ELICIT_PATIENT_CLIENTS"),
    )


def _names(environment: Mapping[str, str], name: str) -> frozenset[str]:
    names = (each.strip() for each in environment.get(name, "").split(","))
    return frozenset(each for each in names if each)


def _count(
    environment: Mapping[str, str], name: str, problems: list[str], *, default: int, at_most: int
) -> int:
    text = environment.get(name, "").strip()
    if not text:
        return default
    count = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(at_most)) else 0
    if not 1 <= count <= at_most:
        problems.append(f"{name}: it is a whole number from 1 to {at_most:,}.")
        return default
    return count


def _duration(
    environment: Mapping[str, str],
    name: str,
    problems: list[str],
    *,
    default: timedelta,
    at_most: tuple[timedelta, str],
) -> timedelta:
    longest, words = at_most
    text = environment.get(name, "").strip()
    if not text:
        return default
    found = read_duration(text)
    if text.isascii() and text.isdigit() and len(text) <= _SECONDS_DIGITS:
        found = timedelta(seconds=int(text))
    if found is None or not timedelta(seconds=1) <= found <= longest:
        problems.append(
            f"{name}: it is a number of seconds, or 7d, 12h, 30m and the like; {words} at most."
        )
        return default
    return found
