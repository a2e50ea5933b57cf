"""Quotas and policies: how many questions can be open, where they are shown and for how long."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from flows.elicitation.tool_call import MODES
from flows.question import TIMEOUT_AT_MOST
from webapp.settings.parsers import count, duration, each, folders, module_and_object, switch
from webapp.settings.table import setting

# One record has all open questions of one owner.
PER_OWNER_AT_MOST = 200

RETENTION_AT_MOST: Final = timedelta(days=3653)
_FROM_A_DAY: Final = "1 day at least, and 10 years"
_a_week_or_more = duration(
    RETENTION_AT_MOST, "7 days at least, and 10 years", at_least=timedelta(days=7)
)
_ANSWERS: Final = "answers:"
_DRAWN: Final = {"nothing": (), "forms": ("form",), "links": ("url",), "forms+links": MODES}
_AT_ONCE: Final = ("form", "confirm", "gate")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedClient:
    """The operator's entry for a client: what it shows to people, and what it may answer itself.

    `name` is the client's own name, optionally with `/` and its version. `answers` has the
    kinds of questions that the client answers itself.
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
        raise ValueError(
            f"{part!r} has no value for a client: write for example my-editor=nothing."
        )
    if name in others:
        raise ValueError(f"{name} occurs twice: remove one of them.")
    if what.startswith(_ANSWERS):
        kinds = frozenset(what.removeprefix(_ANSWERS).split("+"))
        if kinds <= frozenset(_AT_ONCE):
            return ListedClient(name=name, answers=kinds)
    drawn = _DRAWN.get("forms+links" if what == "links+forms" else what)
    if drawn is None:
        raise ValueError(
            f"{part!r}: the value must be nothing, forms, links or forms+links; or answers: with "
            "some of form, confirm and gate, such as answers:form+confirm."
        )
    return ListedClient(name=name, draws=frozenset(drawn))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """The operator's policies.

    If a client has no forms, `forms_on_pages` shows a form on the server's page; without it, the
    form is not asked. Requests of clients in `patient_clients` stay open without a limit.
    """

    forms_on_pages: bool = setting(
        "ELICIT_FORMS_ON_PAGES",
        parse=switch,
        default="1",
        says="`1`: if a client has no form mode, `form` and `confirm` are shown on the server's "
        "page; `0`: they are shown only in a client's own form",
    )
    tasks: bool = setting(
        "ELICIT_TASKS",
        parse=switch,
        default="1",
        says="`1`: a client that declares MCP tasks polls for the result of a waiting call, "
        "instead of keeping the request open; `0`: no tasks are used. In a task, a tool "
        "cannot use `ctx.elicit`",
    )
    tasks_from: timedelta = setting(
        "ELICIT_TASKS_FROM",
        parse=duration(TIMEOUT_AT_MOST, "7 days"),
        default="1h",
        says="in MCP 2026-07-28, the server decides which calls become tasks: a call becomes a "
        "task only if it waits for a question that stays open at least this long. For shorter "
        "questions, the request stays open or the client repeats it",
    )
    one_per_session: bool = setting(
        "ELICIT_ONE_PER_SESSION",
        parse=switch,
        default="0",
        says="`1`: a person has one open question in each client, and a new question of another "
        "call supersedes it; `0`: several questions can be open",
    )
    pending_per_owner: int = setting(
        "ELICIT_PENDING_PER_OWNER",
        parse=count(PER_OWNER_AT_MOST),
        default="50",
        says="the maximum number of open questions per person, 1 to 200",
    )
    pending_at_most: int = setting(
        "ELICIT_PENDING_AT_MOST",
        parse=count(10_000_000),
        default="100000",
        says="the maximum number of open questions in all",
    )
    timeout_at_most: timedelta = setting(
        "ELICIT_TIMEOUT_AT_MOST",
        parse=duration(TIMEOUT_AT_MOST, "7 days"),
        default="7d",
        says="the longest time that a question stays open, even if its tool asks for more: "
        "seconds, or a duration such as `7d`, `12h` or `30m`",
    )
    patient_clients: frozenset[str] = setting(
        "ELICIT_PATIENT_CLIENTS",
        parse=_names,
        otherwise="clients that were seen to wait for more than 60 seconds",
        says="the clients whose requests can stay open for more than 50 seconds, by the names that "
        "they declare, separated by commas",
    )
    min_answer: timedelta = setting(
        "ELICIT_MIN_ANSWER",
        parse=duration(timedelta(minutes=1), "1m", at_least=timedelta()),
        default="1",
        says="the shortest time in which a person can answer in a client, in seconds. A faster "
        "decline, and a faster accept of a confirmation or an approval, is treated as "
        "automatic and ignored, and the question stays open on the server's page. `0` accepts "
        "every answer",
    )
    clients: tuple[ListedClient, ...] = setting(
        "ELICIT_CLIENTS",
        parse=_clients,
        otherwise="what the server observed of each client in the last day",
        says="what clients can show, as `NAME=WHAT`, separated by commas; `NAME` is the name that "
        "the client declares, or `NAME/VERSION`. `WHAT` is what the client shows to people: "
        "`nothing`, `forms`, `links` or `forms+links`. If a program answers for its "
        "person by rules, `WHAT` is `answers:` and the kinds that it can answer immediately "
        "(`form`, `confirm`, `gate`): `my-bot=answers:form+confirm`",
    )
    # The time for which running tools can continue when the process has to stop.
    grace: timedelta = setting(
        "ELICIT_GRACE",
        parse=duration(timedelta(hours=1), "1 hour"),
        default="10",
        says="how long running tools can continue during a graceful shutdown: seconds, or a "
        "duration such as `30m`, 1 hour at most. Calls that wait for a person end at once with a "
        "request to repeat them, and `/health` answers 503 in the meantime",
    )
    # The time for which a tool can continue after its client disconnected.
    orphaned_at_most: timedelta = setting(
        "ELICIT_ORPHANED_AT_MOST",
        parse=duration(timedelta(days=1), "1 day"),
        default="10m",
        says="how long a tool can continue after its client has disconnected: seconds, or a "
        "duration such as `12h` or `30m`, 1 day at most",
    )
    # The retention of records.
    keep_records: timedelta = setting(
        "ELICIT_KEEP_RECORDS",
        parse=duration(RETENTION_AT_MOST, _FROM_A_DAY, at_least=timedelta(days=1)),
        default="30d",
        says="how long ended questions, calls and approvals are stored: a duration such as `7d`, "
        "at least a day. A question for a payment is stored for at least 30 days, because it "
        "can be paid late. A change applies to records written from then on",
    )
    keep_webhooks: timedelta = setting(
        "ELICIT_KEEP_WEBHOOKS",
        parse=_a_week_or_more,
        default="30d",
        says="how long incoming webhooks are stored: a duration such as `90d`, at least 7 days, "
        "because providers send them again for some days",
    )
    plugins: tuple[str, ...] = setting(
        "ELICIT_PLUGINS",
        parse=each(module_and_object),
        says="your objects whose hooks run when questions are asked and answered "
        "([hooks](../how-to/webhooks.md#hooks)), as `module:object`, separated by commas; "
        "they run in this order",
    )
    keep_events: timedelta = setting(
        "ELICIT_KEEP_EVENTS",
        parse=_a_week_or_more,
        default="30d",
        says="how long an event for an address of `ELICIT_EVENTS_{NAME}_URL` is stored: a duration "
        "such as `90d`, at least 7 days, because the server retries an event for three days",
    )
    events_waiting: int = setting(
        "ELICIT_EVENTS_WAITING",
        parse=count(100_000),
        default="10000",
        says="the maximum number of events that wait for one address that does not accept them. "
        "Further events are not stored for that address, and the log, the metrics and `elicit "
        "doctor` report them",
    )
    store_marks: Path | None = setting(
        "ELICIT_STORE_MARKS",
        parse=lambda text: Path(text) if text else None,
        otherwise="`marks` next to the key file, if one is used",
        says="a folder on this machine in which each server records how current the store was. A "
        "server that starts later uses it to detect whether the store has lost data since "
        "([failover](../how-to/stores.md#failover))",
    )
    audit: bool = setting(
        "ELICIT_AUDIT",
        parse=switch,
        default="0",
        says="`1`: each change of a question, a payment, an account or an approval is recorded in "
        "its owner's audit chain, in the same write ([audit](../how-to/monitoring.md#audit)); "
        "`0`: no audit",
    )
    audit_heads: tuple[Path, ...] = setting(
        "ELICIT_AUDIT_HEADS",
        parse=folders,
        default="",
        says="the folder for each day's audit head, if `ELICIT_AUDIT` is on. People who can write "
        "to the store should not be able to change this folder "
        "([audit](../how-to/monitoring.md#audit))",
    )
    keep_audit: timedelta = setting(
        "ELICIT_KEEP_AUDIT",
        parse=_a_week_or_more,
        default="365d",
        says="how long the audit is stored: a duration such as `90d`, at least 7 days. A change "
        "applies to entries written from then on",
    )
