"""The dashboard and alerts of deploy/: valid for Prometheus, and about exported metrics only.

`promtool`, which comes with Prometheus, checks the files and runs their tests.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import PROJECT
from webapp.telemetry.families import FAMILIES

ALERTS = PROJECT / "deploy" / "prometheus" / "alerts.yml"
DASHBOARD = PROJECT / "deploy" / "grafana" / "elicit-url.json"
COURSES = Path(__file__).with_name("alerts_test.yml")
EXPORTED = {name for family in FAMILIES for name in family.exported_names}
LABELS = {label for family in FAMILIES for label in family.labels}
# Labels that Prometheus itself adds, or that a query creates.
OTHER_LABELS = {"instance", "le", "alertname"}


def promtool(*arguments: str) -> str:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool on this machine")
    done = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def queries() -> Iterator[str]:
    """Yield the dashboard's queries, with their variables filled in as Grafana does."""
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            yield target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")


def test_prometheus_accepts_alert_rules() -> None:
    assert "SUCCESS" in promtool("check", "rules", str(ALERTS))


def test_each_alert_is_silent_normally_and_fires_on_its_problem() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(COURSES))
    text = COURSES.read_text("utf-8")
    assert [name for name in alerts() if f'alertname="{name}"' not in text] == []


def test_prometheus_accepts_every_dashboard_query(tmp_path: Path) -> None:
    rules = [{"record": f"panel:query:{n}", "expr": query} for n, query in enumerate(queries())]
    assert len(rules) > 15
    written = tmp_path / "queries.yml"  # JSON is YAML
    written.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}), "utf-8")
    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", str(written))


@pytest.mark.parametrize("path", [ALERTS, DASHBOARD], ids=["alerts", "dashboard"])
def test_every_named_metric_and_label_is_exported(path: Path) -> None:
    text = path.read_text("utf-8")
    named = set(re.findall(r"\belicit_\w+", text))
    assert named
    assert named - EXPORTED == set()
    labels = set(re.findall(r"(\w+)(?:=~|!=|=)\\?\"", text))
    labels |= {
        label for by in re.findall(r"by \(([^)]*)\)", text) for label in re.findall(r"\w+", by)
    }
    assert labels - LABELS - OTHER_LABELS == set()


def test_dashboard_shows_every_metric_family() -> None:
    named = set(re.findall(r"\belicit_\w+", DASHBOARD.read_text("utf-8")))
    assert [f.name for f in FAMILIES if not named & set(f.exported_names)] == []


def test_dashboard_panels_do_not_overlap() -> None:
    places = [
        (x, y)
        for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(places) == len(set(places))
    assert max(x for x, _ in places) < 24


def test_every_alert_is_documented() -> None:
    page = (PROJECT / "docs" / "how-to" / "monitoring.md").read_text("utf-8")
    assert [name for name in alerts() if f"| `{name}` |" not in page] == []


def test_every_reason_for_refused_webhook_is_covered_by_alert() -> None:
    sources = [path.read_text("utf-8") for path in PROJECT.glob("[fw]*/**/*.py")]
    reasons = {each for text in sources for each in re.findall(r'Unverified\("(\w+)"\)', text)}
    (refused,) = re.findall(r'elicit_webhooks_total\{result=~"(bad_[^"]+)"\}', ALERTS.read_text())
    assert "bad_signature" in reasons
    assert [reason for reason in reasons if not re.fullmatch(refused, reason)] == []


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", ALERTS.read_text("utf-8"))


@pytest.mark.parametrize(
    "name", ["systemd/elicit.env", "container/Dockerfile", "kubernetes/elicit.yaml"]
)
def test_shipped_files_log_each_step_of_a_question(name: str) -> None:
    # finding: XV5
    text = (PROJECT / "deploy" / name).read_text("utf-8")
    assert re.search(r"^\s*ELICIT_LOG_LEVEL\s*[=:]\s*info\b", text, re.MULTILINE)
