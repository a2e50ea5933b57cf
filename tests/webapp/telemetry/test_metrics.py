"""The metrics page: what it counts, who can read it, and that it contains no personal data."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import MCPServer
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from flows.elicitation.states import Status
from flows.errors import StoreUnavailable
from tests.support.clock import Clock
from tests.support.service_env import asked, plain_settings
from tests.support.watched import (
    ACTS,
    METRICS_TOKEN,
    TYPED,
    WATCHED,
    done,
    page_of,
    parsed,
    samples_of,
    value,
    watched_tools,
)
from webapp.service import ServiceOptions, open_service
from webapp.settings.settings import BadSettings, read_settings
from webapp.stores import Conflict, Record
from webapp.stores.observed import ObservedStore, observed
from webapp.stores.sqlite import MemoryStore
from webapp.telemetry.families import FAMILIES, UNOBSERVED
from webapp.telemetry.metrics import SHARED, Metrics, counted_together
from webapp.telemetry.work import Telemetry
from webapp.testing import elicit_person
from webapp.testing._application import URL

LABEL = re.compile(r"[a-z0-9][a-z0-9_ .]{0,30}|\+Inf|[0-9.]+")


async def test_questions_are_counted_when_asked_and_when_ended() -> None:
    async with elicit_person(watched_tools(), settings=WATCHED) as person:
        await done(person, *ACTS)
        person.declines()
        await person.call("ask_url")
        samples = await samples_of(person)
    for kind in ACTS:
        times = 2 if kind == "url" else 1
        assert value(samples, "elicit_questions_total", kind=kind) == times
        assert value(samples, "elicit_outcomes_total", kind=kind, status="accepted") == 1
    assert value(samples, "elicit_outcomes_total", kind="url", status="declined") == 1


async def test_late_payment_is_counted_as_late() -> None:
    async with elicit_person(watched_tools(), settings=WATCHED) as person:
        person.pays_late()
        await person.call("ask_payment")
        samples = await samples_of(person)
    assert value(samples, "elicit_outcomes_total", kind="payment", status="expired") == 1
    assert value(samples, "elicit_outcomes_total", kind="payment", status="late") == 1
    assert value(samples, "elicit_receipts_unspent") == 1


async def test_held_call_is_counted_and_wake_is_measured() -> None:
    held: list[float | None] = []
    async with elicit_person(
        watched_tools(), settings=WATCHED, revision="2025-11-25", declares=("form", "url")
    ) as person:

        async def look(link: str, browser: Any) -> None:
            held.append(value(await samples_of(person), "elicit_calls_held"))
            page = await browser.get(link)
            csrf = re.search(r'name="csrf" value="([^"]+)"', page.text)
            assert csrf is not None
            await browser.post(f"{link}/decline", data={"csrf": csrf[1]})

        person.does(look)
        result = await person.call("ask_url")
        assert result.code == "ELICITATION_DECLINED"
        samples = await samples_of(person)
    assert held == [1]
    assert value(samples, "elicit_calls_held") == 0
    assert value(samples, "elicit_wake_seconds_count", kind="url") == 1


async def test_provider_requests_and_webhooks_are_counted_by_provider() -> None:
    async with elicit_person(watched_tools(), settings=WATCHED) as person:
        await done(person, "oauth", "payment")
        assert await person.webhooks.send_forged() == 400
        samples = await samples_of(person)
    exchange = {"provider": "github", "operation": "finish"}
    assert value(samples, "elicit_provider_request_seconds_count", **exchange) == 2
    assert value(samples, "elicit_provider_requests_total", **exchange, result="ok") == 2
    assert value(samples, "elicit_webhooks_total", provider="stripe", result="accepted") == 1
    wrong = {"provider": "stripe", "result": "bad_signature"}
    assert value(samples, "elicit_webhooks_total", **wrong) == 1


async def test_sweeper_reports_last_round_and_lag() -> None:
    async with elicit_person(watched_tools(), settings=WATCHED) as person:
        person.never_comes()
        await person.call("ask_url")
        await person.let_pass(hours=1)
        samples = await samples_of(person)
        now = person.clock().timestamp()
    assert value(samples, "elicit_sweeper_last_round_timestamp_seconds") == now
    assert (value(samples, "elicit_sweeper_lag_seconds") or 0) > 60


async def test_every_metric_family_except_disk_space_is_exported(tmp_path: Path) -> None:
    settings = {**WATCHED, "ELICIT_STORE": f"sqlite:///{tmp_path}/elicit.db"}
    async with elicit_person(watched_tools(), settings=settings) as person:
        await done(person, *ACTS)
        page = await page_of(person)
    exported = set(re.findall(r"^# TYPE (\S+)", page.text, re.MULTILINE))
    tables = {family.name for family in FAMILIES}
    assert exported == tables - {"elicit_store_disk_free_bytes"}  # the tests' store is not a file
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_labels_contain_no_person_and_no_typed_text() -> None:
    async with elicit_person(watched_tools(), settings=WATCHED) as person:
        await done(person, *ACTS)
        page = await page_of(person)
        ids = list(person._app.asked_of)
    names = {label for _, labels in parsed(page.text) for label in labels}
    for name, label in names:
        assert LABEL.fullmatch(label), f"{name}={label}"
    for word in (*ids, TYPED, "octocat", "127.0.0.1", METRICS_TOKEN):
        assert word not in page.text


@pytest.mark.parametrize(
    "header",
    ["", f"Bearer {METRICS_TOKEN[:-1]}", f"Basic {METRICS_TOKEN}", METRICS_TOKEN, "Bearer "],
)
async def test_metrics_without_token_are_refused(header: str) -> None:
    async with elicit_person(watched_tools(), settings=WATCHED) as person:
        headers = {"authorization": header} if header else {}
        page = await person._browser.get(f"{URL}/metrics", headers=headers)
    assert page.status_code == 401
    assert page.headers["www-authenticate"] == "Bearer"
    assert "elicit_" not in page.text


async def test_metrics_page_allows_only_get_and_head() -> None:
    async with elicit_person(watched_tools(), settings=WATCHED) as person:
        headers = {"authorization": f"Bearer {METRICS_TOKEN}"}
        posted = await person._browser.post(f"{URL}/metrics", headers=headers)
        head = await person._browser.head(f"{URL}/metrics", headers=headers)
    assert posted.status_code == 405
    assert (head.status_code, head.content) == (200, b"")


async def test_metrics_path_belongs_to_author_without_setting() -> None:
    server = MCPServer("an author's")

    @server.custom_route("/metrics", methods=["GET"])
    async def own(_: Request) -> PlainTextResponse:
        return PlainTextResponse("my own")

    async with elicit_person(watched_tools()) as person:
        assert (await page_of(person)).status_code == 404
        assert person._app.service.elicitations.telemetry.observer is UNOBSERVED
    async with elicit_person(server) as person:
        assert (await page_of(person)).text == "my own"


@pytest.mark.parametrize("token", ["short", "with spaces in it, and long enough for all that"])
def test_guessable_metrics_token_is_refused(tmp_path: Path, token: str) -> None:
    home = {"ELICIT_DATA_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    with pytest.raises(BadSettings, match="ELICIT_METRICS: a token has at least 32 characters"):
        read_settings({**home, "ELICIT_METRICS": token})


def test_repr_of_settings_does_not_show_metrics_token(tmp_path: Path) -> None:
    settings = read_settings({"XDG_DATA_HOME": str(tmp_path), "ELICIT_METRICS": METRICS_TOKEN})
    assert METRICS_TOKEN not in repr(settings)


class Failing(MemoryStore):
    """A store whose `write` raises `error`."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def write(self, *records: Record) -> tuple[Record, ...]:
        raise self._error


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (Conflict(None), "conflict"),
        (StoreUnavailable("full"), "unavailable"),
        (RuntimeError(), "failed"),
    ],
)
async def test_store_errors_are_counted_by_result(error: Exception, result: str) -> None:
    metrics = Metrics()
    store = observed(Failing(error), metrics)
    with pytest.raises(type(error)):
        await store.write()
    samples = parsed(metrics.page({}).decode())
    reported = {"operation": "write", "result": result}
    assert value(samples, "elicit_store_operations_total", **reported) == 1


def test_store_without_observer_is_not_wrapped() -> None:
    store = MemoryStore()
    assert observed(store, UNOBSERVED) is store
    assert isinstance(observed(store, Metrics()), ObservedStore)


ONE_OF_SEVERAL = """
from datetime import UTC, datetime
from webapp.telemetry.metrics import metrics_here
metrics = metrics_here()
metrics.asked("url")
metrics.swept(at=datetime(2026, 1, 1, tzinfo=UTC), lag_seconds=1)
metrics.held(1)
metrics.woken("url", seconds=0.2)
print(metrics.page({}).decode())
import sys
sys.stdout.flush()
sys.stdin.read()
"""


def _worker() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", ONE_OF_SEVERAL],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def _first_page(lines: Iterable[str]) -> str:
    reported: list[str] = []
    for line in lines:
        reported.append(line)
        if line == "\n":  # the end of the page
            break
    return "".join(reported)


def test_several_processes_are_counted_together_and_ended_process_holds_no_calls() -> None:
    with counted_together():
        first = _worker()
        assert first.stdout is not None
        alone = parsed(_first_page(first.stdout))
        first.communicate()
        second = _worker()
        assert second.stdout is not None
        together = parsed(_first_page(second.stdout))
        second.communicate()
        folder = Path(os.environ[SHARED])
        assert folder.stat().st_mode & 0o077 == 0
    assert value(alone, "elicit_questions_total", kind="url") == 1
    assert value(together, "elicit_questions_total", kind="url") == 2
    assert value(together, "elicit_wake_seconds_count", kind="url") == 2
    assert value(together, "elicit_calls_held") == 1
    assert not folder.exists()
    assert SHARED not in os.environ


def test_shared_metrics_folder_set_by_others_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SHARED, str(tmp_path))
    with counted_together():
        assert os.environ[SHARED] == str(tmp_path)
    assert tmp_path.exists()


async def test_outcome_claimed_after_expired_lease_is_counted_as_takeover() -> None:
    metrics, clock = Metrics(), Clock()
    async with open_service(
        plain_settings(),
        ServiceOptions(clock=clock, telemetry=Telemetry(metrics=metrics)),
        store=MemoryStore(),
    ) as service:
        one, elicitations = await asked(service), service.elicitations
        await elicitations.settle(one.id, Status.DECLINED)
        await elicitations.claim(one.id, run="run", request_id="gone")
        # The same request claims the outcome again: that is not a takeover.
        await elicitations.claim(one.id, run="run", request_id="gone")
        samples = parsed(metrics.page({}).decode())
        assert value(samples, "elicit_leases_taken_over_total") == 0
        clock.tick(minutes=1)
        await elicitations.claim(one.id, run="run", request_id="next")
    samples = parsed(metrics.page({}).decode())
    assert value(samples, "elicit_leases_taken_over_total") == 1


def test_metrics_files_of_ended_workers_are_merged() -> None:
    with counted_together():
        folder = Path(os.environ[SHARED])
        files = set[int]()
        for number in range(1, 4):
            _worker().communicate()
            page = parsed(Metrics(folder=str(folder)).page({}).decode())
            assert value(page, "elicit_questions_total", kind="url") == number
            assert value(page, "elicit_wake_seconds_count", kind="url") == number
            assert value(page, "elicit_wake_seconds_bucket", kind="url", le="+Inf") == number
            assert value(page, "elicit_calls_held") is None
            assert value(page, "elicit_sweeper_last_round_timestamp_seconds") == 1_767_225_600
            files.add(len([*folder.glob("*.db")]))
        assert len(files) == 1
