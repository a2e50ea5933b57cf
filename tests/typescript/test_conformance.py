"""The official conformance suite, against a plain server and the same server with `elicit serve`.

A required check that the plain server passes must pass with `elicit serve` too. A check that the
plain server fails may fail with both.
"""

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio

from tests.hosts.table import HOSTS
from tests.support import cli as running
from tests.support.serving import free_port, serving
from tests.typescript.conformance import Checks, checked
from tests.typescript.env import NEWER, OLDER
from tests.typescript.everything import everything

EVERYTHING = "tests.typescript.everything"
# Scenarios that the suite must contain to cover our features.
EXPECTED = {
    OLDER: {
        "elicitation-sep1034-defaults",
        "elicitation-sep1330-enums",
        "tools-call-elicitation",
        "tools-call-with-progress",
        "tools-list",
    },
    NEWER: {
        "input-required-result-basic-elicitation",
        "input-required-result-multi-round",
        "input-required-result-request-state",
        "input-required-result-tampered-state",
        "input-required-result-validate-input",
        "tools-call-with-progress",
        "tools-list",
    },
}

# Checks that pass only if the Origin that the suite sends is in ELICIT_ORIGINS.
OF_A_PAGE = {"dns-rebinding-protection: localhost-host-valid-accepted"}


@pytest.fixture(scope="module", name="revision", params=[OLDER, NEWER])
def _revision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="without")
async def _without(
    newer_node: str, revision: str, tmp_path_factory: pytest.TempPathFactory
) -> Checks:
    """Return the suite's results for the plain server."""
    folder = tmp_path_factory.mktemp("plain")
    async with serving(everything(with_verbs=False).streamable_http_app()) as url:
        return await checked(newer_node, f"{url}/mcp", revision, folder)


@pytest.mark.asyncio(loop_scope="module")
async def test_conformance_is_not_worse_with_elicit_serve(
    newer_node: str, revision: str, without: Checks, tmp_path: Path
) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    port = free_port()
    named = {"ELICIT_ORIGINS": f"http://127.0.0.1:{port}"}
    async with (
        running.serving(f"{EVERYTHING}:by_the_protocol", home=tmp_path / "a") as other,
        running.serving(
            f"{EVERYTHING}:with_our_verbs", home=tmp_path / "b", port=port, extra=named
        ) as through,
    ):
        with_us, with_verbs = await asyncio.gather(
            *(
                checked(newer_node, f"{url}/mcp", revision, tmp_path / str(number))
                for number, url in enumerate((other.url, through.url))
            )
        )
    passed = {name for name, checks in without.items() if not any(checks.values())}
    assert passed >= EXPECTED[revision]
    assert worse(with_verbs, than=without) == []
    # The suite sends an Origin, which only the other server has in ELICIT_ORIGINS.
    assert set(worse(with_us, than=without)) <= OF_A_PAGE


@pytest.mark.asyncio(loop_scope="module")
async def test_conformance_is_not_worse_in_other_hosts(
    newer_node: str,
    revision: str,
    without: Checks,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    # A few hosts for each revision, and not the same ones. `--whole` runs all hosts on both.
    few = HOSTS[3::8] if revision == OLDER else HOSTS[8::6]
    hosts = HOSTS if request.config.getoption("--whole") else few
    named = {"SERVED": "conformance", "ELICIT_ORIGINS": "{origin}"}
    for number, host in enumerate(hosts):
        home, found = tmp_path / f"home{number}", tmp_path / f"found{number}"
        home.mkdir()
        async with host.served(home, extra=named) as at, at.browser() as browser:
            # Wait here until the host serves, because the suite does not wait.
            assert (await browser.get(f"{at.url}/ready")).is_success
            checks = await checked(newer_node, f"{at.url}/mcp", revision, found)
        assert worse(checks, than=without) == [], host.name


def test_comparison_includes_checks_of_both_servers() -> None:
    without = {"a": {"1": 0, "2": 2, "3": 1, "4": 2}, "gone": {"1": 0}}
    assert worse(without, than=without) == []
    with_us = {"a": {"1": 1, "2": 1, "3": 1, "5": 2, "6": 0}, "new": {"1": 1, "2": 0}}
    assert worse(with_us, than=without) == ["a: 1", "a: 5", "gone: 1", "new: 1"]


def worse(checks: Checks, *, than: Checks) -> list[str]:
    """Return the checks that ended worse, that are missing, or that are new and failed."""
    return [
        f"{scenario}: {id}"
        for scenario in sorted({*than, *checks})
        for id in sorted({*than.get(scenario, {}), *checks.get(scenario, {})})
        if checks.get(scenario, {}).get(id, 2) > than.get(scenario, {}).get(id, 0)
    ]
