"""How much may be asked at once, where and for how long, as the operator sets it."""

from dataclasses import dataclass
from datetime import timedelta

from flows.question import TIMEOUT_AT_MOST
from webapp.settings.parsers import count, duration, switch
from webapp.settings.table import setting

# What one owner has open stands in one record.
PER_OWNER_AT_MOST = 200


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """`forms_on_pages`: a form whose client has none is a page of ours, else it is not asked.

    `patient_clients`, by the names that they declare, wait for a call as long as it takes.
    """

    forms_on_pages: bool = setting(
        "ELICIT_FORMS_ON_PAGES",
        parse=switch,
        default="1",
        says="`0`: `form` and `confirm` are asked in a client's own form or not at all; `1`: where "
        "the client has none, on a page of ours",
    )
    one_per_session: bool = setting(
        "ELICIT_ONE_PER_SESSION",
        parse=switch,
        default="0",
        says="`1`: one open question a session (a person with one client): a new one of another "
        "call supersedes it; `0`: several",
    )
    pending_per_owner: int = setting(
        "ELICIT_PENDING_PER_OWNER",
        parse=count(PER_OWNER_AT_MOST),
        default="50",
        says="how many questions one person may have open, 1 to 200",
    )
    pending_at_most: int = setting(
        "ELICIT_PENDING_AT_MOST",
        parse=count(10_000_000),
        default="100000",
        says="how many may be open in all",
    )
    timeout_at_most: timedelta = setting(
        "ELICIT_TIMEOUT_AT_MOST",
        parse=duration(TIMEOUT_AT_MOST, "7 days"),
        default="7d",
        says="the longest that a question lives, whatever its tool says: seconds, or `7d`, `12h`, "
        "`30m` and the like",
    )
    patient_clients: frozenset[str] = setting(
        "ELICIT_PATIENT_CLIENTS",
        parse=_names,
        otherwise="those that were seen to wait for more than 60",
        says="clients, by the names that they declare, with commas, whose calls may be held for "
        "longer than 50 seconds",
    )
    # For tools that are at work when the process is told to end.
    grace: timedelta = setting(
        "ELICIT_GRACE",
        parse=duration(timedelta(hours=1), "1 hour"),
        default="10",
        says="how long tools at work may go on when the process is told to end; calls that wait "
        "for a person are told at once to come again, and `/health` is 503 meanwhile: seconds, or "
        "`12h`, `30m` and the like, 1 hour at most",
    )
    # For tools whose client has gone.
    orphaned_at_most: timedelta = setting(
        "ELICIT_ORPHANED_AT_MOST",
        parse=duration(timedelta(days=1), "1 day"),
        default="10m",
        says="how long a tool may go on whose client has gone: seconds, or `12h`, `30m` and the "
        "like, 1 day at most",
    )
