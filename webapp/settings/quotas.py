"""Quotas and policies: how much may be asked at once, where and for how long."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from flows.elicitation.capabilities import MODES
from flows.question import TIMEOUT_AT_MOST
from webapp.settings.parsers import count, duration, each, folders, module_and_object, switch
from webapp.settings.table import setting

# One record has all open questions of one owner.
PER_OWNER_AT_MOST = 200

KEPT_AT_MOST: Final = timedelta(days=3653)
_FROM_A_DAY: Final = "1 day at least, and 10 years"
_FROM_A_WEEK: Final = "7 days at least, and 10 years"
_ANSWERS: Final = "answers:"
_DRAWN: Final = {"nothing": (), "forms": ("form",), "links": ("url",), "forms+links": MODES}
_AT_ONCE: Final = ("form", "confirm", "gate")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedClient:
    """The operator's entry for a client: what it shows to people, and what it may answer itself.

    `name` is the client's own name, optionally with `/` and its version. `answers` are kinds.
    """

    name: str
    draws: frozenset[str] = frozenset(MODES)
    answers: frozenset[str] = frozenset()


def _names(text: str) -> frozenset[str]:
    return frozenset(_parts(text))


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _clients(text: str) -> tuple[ListedClient, ...]:
    found, problems = dict[str, ListedClient](), list[str]()
    for part in _parts(text):
        try:
            client = _client(part, others=found)
        except ValueError as error:
            problems += error.args
        else:
            found[client.name] = client
    if problems:
        raise ValueError(*problems)
    return tuple(found.values())


def _client(part: str, *, others: Collection[str]) -> ListedClient:
    """Parse one entry. Raises ValueError with a sentence."""
    name, _, what = (word.strip() for word in part.rpartition("="))
    if not name:
        raise ValueError(f"{part!r} does not say what a client is: write my-editor=nothing.")
    if name in others:
        raise ValueError(f"{name} stands there twice: leave one of them out.")
    if what.startswith(_ANSWERS):
        kinds = frozenset(what.removeprefix(_ANSWERS).split("+"))
        if kinds <= frozenset(_AT_ONCE):
            return ListedClient(name=name, answers=kinds)
    drawn = _DRAWN.get("forms+links" if what == "links+forms" else what)
    if drawn is None:
        raise ValueError(
            f"{part!r}: after = stands nothing, forms, links or forms+links; or answers: with some "
            "of form, confirm and gate, as answers:form+confirm."
        )
    return ListedClient(name=name, draws=frozenset(drawn))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The operator's policies.

    With `forms_on_pages`, a form is shown on our page if the client has no forms; otherwise it is
    not asked. The clients named in `patient_clients` wait for a call without a limit.
    """

    forms_on_pages: bool = setting(
        "ELICIT_FORMS_ON_PAGES",
        parse=switch,
        default="1",
        says="`0`: `form` and `confirm` are asked in a client's own form or not at all; `1`: where "
        "the client has none, on a page of ours",
    )
    tasks: bool = setting(
        "ELICIT_TASKS",
        parse=switch,
        default="1",
        says="`1`: a client that declares MCP tasks looks in for a call that waits, instead of "
        "being held; `0`: none does. In a task a tool cannot ask by itself (`ctx.elicit`)",
    )
    tasks_from: timedelta = setting(
        "ELICIT_TASKS_FROM",
        parse=duration(TIMEOUT_AT_MOST, "7 days"),
        default="1h",
        says="how long a question lives at least for which a call becomes a task on 2026-07-28, "
        "where the server decides: a call is held, or made again, for one that is over sooner",
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
    min_answer: timedelta = setting(
        "ELICIT_MIN_ANSWER",
        parse=duration(timedelta(minutes=1), "1m", at_least=timedelta()),
        default="1",
        says="the shortest time in which a person can have answered in a client, in seconds: a "
        "sooner no, and a sooner yes to a confirmation or an approval, is nobody's, and the "
        "question stays open on our page. `0` believes every answer",
    )
    clients: tuple[ListedClient, ...] = setting(
        "ELICIT_CLIENTS",
        parse=_clients,
        otherwise="what each was seen to do in the last day",
        says="what clients are, as `NAME=WHAT` with commas, by the name that each declares, or "
        "`NAME/VERSION`. `WHAT` is what it shows to people: `nothing`, `forms`, `links` or "
        "`forms+links`. For a program that answers by its person's own standing rules it is what "
        "it may answer at once, of `form`, `confirm` and `gate`: `my-bot=answers:form+confirm`",
    )
    # For tools that run when the process has to stop.
    grace: timedelta = setting(
        "ELICIT_GRACE",
        parse=duration(timedelta(hours=1), "1 hour"),
        default="10",
        says="how long tools at work may go on when the process is told to end; calls that wait "
        "for a person are told at once to come again, and `/health` is 503 meanwhile: seconds, or "
        "`12h`, `30m` and the like, 1 hour at most",
    )
    # For tools whose client has disconnected.
    orphaned_at_most: timedelta = setting(
        "ELICIT_ORPHANED_AT_MOST",
        parse=duration(timedelta(days=1), "1 day"),
        default="10m",
        says="how long a tool may go on whose client has gone: seconds, or `12h`, `30m` and the "
        "like, 1 day at most",
    )
    # The time for which records are stored, instead of their default.
    keep_records: timedelta = setting(
        "ELICIT_KEEP_RECORDS",
        parse=duration(KEPT_AT_MOST, _FROM_A_DAY, at_least=timedelta(days=1)),
        default="30d",
        says="how long it is kept after its end what was asked, called and approved: `7d` and the "
        "like, from a day on. A question for a payment is kept for 30 days at least, as it may be "
        "paid late. It holds for what is written from then on",
    )
    keep_webhooks: timedelta = setting(
        "ELICIT_KEEP_WEBHOOKS",
        parse=duration(KEPT_AT_MOST, _FROM_A_WEEK, at_least=timedelta(days=7)),
        default="30d",
        says="how long webhooks are kept that came: `90d` and the like, from 7 days on, as "
        "providers send them again for some days",
    )
    plugins: tuple[str, ...] = setting(
        "ELICIT_PLUGINS",
        parse=each(module_and_object),
        says="objects of yours whose hooks run as questions are asked and answered "
        "([hooks](../how-to/webhooks.md#hooks)), as `module:object` with commas; the first is "
        "asked first",
    )
    keep_events: timedelta = setting(
        "ELICIT_KEEP_EVENTS",
        parse=duration(KEPT_AT_MOST, _FROM_A_WEEK, at_least=timedelta(days=7)),
        default="30d",
        says="how long an event is kept that an address of `ELICIT_EVENTS_{NAME}_URL` was told of, "
        "as `90d` and the like, from 7 days on, as one is tried for three",
    )
    events_waiting: int = setting(
        "ELICIT_EVENTS_WAITING",
        parse=count(100_000),
        default="10000",
        says="how many events may wait for one address that does not take them. What happens "
        "beyond that is not kept for it, and the log, the metrics and `elicit doctor` say so",
    )
    store_marks: Path | None = setting(
        "ELICIT_STORE_MARKS",
        parse=lambda text: Path(text) if text else None,
        otherwise="`marks` beside the key file, where one is used",
        says="a folder of this machine in which each server notes how far the store had come. A "
        "server that starts later sees by that whether the store has lost something since "
        "([failover](../how-to/stores.md#failover))",
    )
    audit: bool = setting(
        "ELICIT_AUDIT",
        parse=switch,
        default="0",
        says="`1`: each change of a question, a payment, an account or an approval is told of in "
        "its owner's chain, in the same write ([audit](../how-to/monitoring.md#audit)); `0`: none "
        "is",
    )
    audit_heads: tuple[Path, ...] = setting(
        "ELICIT_AUDIT_HEADS",
        parse=folders,
        default="",
        says="a folder that the head of each day is written to, where `ELICIT_AUDIT` is on: one "
        "that those who can write to the store cannot change "
        "([audit](../how-to/monitoring.md#audit))",
    )
    keep_audit: timedelta = setting(
        "ELICIT_KEEP_AUDIT",
        parse=duration(KEPT_AT_MOST, _FROM_A_WEEK, at_least=timedelta(days=7)),
        default="365d",
        says="how long the audit is kept, as `90d` and the like, from 7 days on. It holds for what "
        "is written from then on",
    )
