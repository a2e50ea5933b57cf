"""Tests that the benchmarks run, with tiny sizes and without time limits."""

from pathlib import Path

import pytest

from benchmarks import counts, scale, valkey
from benchmarks.audited import audited
from benchmarks.bare import BareWriter, SealingWriter
from benchmarks.calling import REVISIONS, tool_calls
from benchmarks.figure import Figure, summary, table
from benchmarks.hooking import webhooks
from benchmarks.open import measure as measured_full
from benchmarks.settling import lifecycles, settle_to_resumed
from benchmarks.waiting import bytes_each, register_and_wake
from benchmarks.walks import walks

PROJECT = Path(__file__).parent.parent


def is_measured(figure: Figure) -> bool:
    return figure.ratio > 0 and bool(figure.baseline) and bool(figure.our_side)


def test_memory_of_pending_waiter_is_measured():
    figure = bytes_each(many=200)
    assert is_measured(figure)
    assert figure.our_side.endswith(" B")


def test_registering_and_waking_is_measured_with_few_and_many_waiters():
    assert is_measured(register_and_wake(seconds=0, few=10, many=200, times=100))


async def test_settling_is_measured_against_a_bare_commit(tmp_path):
    assert is_measured(await settle_to_resumed(tmp_path, seconds=0, times=2, log_bytes=1))


@pytest.mark.parametrize("writes", [None, SealingWriter, BareWriter])
async def test_lifecycles_are_measured_against_four_writes(tmp_path, writes):
    assert is_measured(await lifecycles(tmp_path, writes=writes, seconds=0, times=20, log_bytes=1))


async def test_the_audit_is_measured_against_a_service_without_it(tmp_path):
    figures = await audited(tmp_path, seconds=0, times=2)
    assert len(figures) == 2
    assert all(map(is_measured, figures))


async def test_valkey_is_measured_against_a_bare_client_and_across_two_processes():
    figures = await valkey.measure(seconds=0, times=4)
    assert len(figures) == 3
    assert all(map(is_measured, figures))


async def test_full_store_is_measured_against_small_store():
    reported = [
        figure
        async for figure in measured_full(
            ["SQLite"], few=50, many=150, seconds=0, times=2, starts=1
        )
    ]
    assert len({figure.what for figure in reported}) == len(reported) == 13
    assert all(map(is_measured, reported))


async def test_commits_of_call_callback_and_webhook_are_counted():
    for what in (
        counts.of_calls("with_elicit", REVISIONS["2026-07-28"], times=1),
        counts.of_webhooks("ours", times=1),
        counts.of_callbacks(times=1),
    ):
        assert (await what)["commits"] >= 1


def test_settling_needs_a_single_commit(tmp_path):
    assert counts.of_settles(times=3)["commits"] == 1


async def test_webhooks_are_measured_and_each_wakes_its_waiter():
    assert is_measured(await webhooks(seconds=0, times=10))


async def test_each_walk_in_architecture_page_is_counted(tmp_path):
    page = (PROJECT / "docs" / "explanation" / "architecture.md").read_text("utf-8")
    overview = page.partition("## On one screen")[2].partition("## The packages of")[0]
    for walk in await walks(tmp_path):
        assert f"| {walk.name} |" in overview
        assert walk.changes_of_package < walk.changes_of_file < len(walk.steps)


async def test_tool_calls_are_measured_on_both_revisions():
    figures = await tool_calls(seconds=0, times=1)
    assert len(figures) == len(REVISIONS)
    assert all(map(is_measured, figures))


def test_ratio_is_the_median_of_the_rounds():
    slow_and_fast = [(10.0, 20.0), (1.0, 2.0), (1.0, 30.0)]
    figure = summary("a thing", slow_and_fast, show=str, at_most=1.5)
    assert figure.ratio == 2.0
    assert not figure.is_met


def test_table_shows_missed_targets():
    met = summary("quick", [(2.0, 2.0)], show=str, at_most=1.5)
    missed = summary("slow", [(2.0, 4.0)], show=str, at_most=1.5)
    header, rule, *lines = table([met, missed]).splitlines()
    assert [cell.strip() for cell in header.strip("|").split("|")][:5] == [
        "what",
        "baseline",
        "elicit",
        "ratio",
        "target",
    ]
    assert set(rule) == {"|", "-"}
    assert ["MISSED" in line for line in lines] == [False, True]


async def test_predicted_limit_of_one_process_is_above_measured_rate():
    for measured in await scale.measured_stores(times=200):
        # The predicted limit is based on processor time, which is at most the elapsed time.
        assert measured.predicted.calls >= measured.counted > 0
    assert (await scale.measured_call(measured.store, times=10)).processor > 0


def test_more_machines_increase_rate_until_store_is_the_limit():
    call = scale.CallCosts(processor=0.002, writes=5, reads=4)
    for store in scale.STORES[1:]:
        ends = [
            scale.limits(call, store, scale.Site(machines=n, connections=10**6, pending=10**9))[0]
            for n in scale.MACHINES
        ]
        assert ends[0].name == "our processors"
        assert ends[-1].name == "the store's processors"
        assert ends[0].calls < ends[2].calls
    sqlite = scale.limits(call, scale.STORES[0], scale.Site(machines=2))
    assert [(end.name, end.calls) for end in sqlite] == [("one machine", 0)]


def test_table_has_a_line_for_each_store_and_number_of_machines():
    call = scale.CallCosts(processor=0.005, writes=5, reads=4)
    reported = scale.table(call, scale.STORES, scale.Site(machines=1)).splitlines()
    assert len(reported) == 2 + 1 + 2 * len(scale.MACHINES)
    assert len({line.count("|") for line in reported}) == 1
