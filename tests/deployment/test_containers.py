"""Containers: the image, the composition with PostgreSQL, the Kubernetes manifests."""

import json
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.deployment.files import (
    CHOSEN,
    COMPOSE,
    MANIFESTS,
    health_check,
    manifest,
    manifests,
    pods,
)
from tests.deployment.tools import DEPLOY, packages, run, run_packaged
from tests.support.cli import serving
from tests.support.serving import free_port

CONTAINER = DEPLOY / "container"


async def test_dockerfile_passes_hadolint() -> None:
    linted = await run_packaged("hadolint", "--no-color", str(CONTAINER / "Dockerfile"))
    assert (linted.status, linted.out) == (0, "")


def test_dockerignore_excludes_all_files_except_listed() -> None:
    lines = (CONTAINER / ".dockerignore").read_text("utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        *("*", "!my_tools.py", "!requirements.txt")
    ]


async def test_image_health_check_uses_public_name(tmp_path: Path) -> None:
    command, name = health_check(), "https://tools.example.com/tools/"
    assert command[:2] == ["python", "-c"]
    settings = {
        "ELICIT_URL": name,
        "ELICIT_SECRET": "s" * 44,
        "ELICIT_STORE": f"sqlite:///{tmp_path}/store.db",
    }
    port = free_port()
    program = command[2].replace("8765", str(port))
    async with serving(home=tmp_path, port=port, extra=settings):
        well = await run(sys.executable, "-c", program, ELICIT_URL=name)
        assert (well.status, well.err) == (0, "")
    gone = await run(sys.executable, "-c", program, ELICIT_URL=name)
    assert gone.status == 1


async def test_compose_file_is_complete_and_names_missing_settings() -> None:
    whole = await run_packaged(
        "docker-compose", "--file", COMPOSE, "config", "--format", "json", **CHOSEN
    )
    assert whole.status == 0, whole.err
    services = json.loads(whole.out)["services"]
    assert set(services) == {"caddy", "elicit", "postgres"}
    assert "ports" not in services["elicit"]
    assert "ports" not in services["postgres"]
    bare = await run_packaged("docker-compose", "--file", COMPOSE, "config", "--quiet")
    assert bare.status != 0
    assert "ELICIT_SECRET is missing a value: a secret from elicit keys new" in bare.err


@pytest.mark.parametrize("version", ["1.29", "1.37"])
async def test_manifests_are_valid_for_kubernetes(version: str) -> None:
    checked = await run(
        *(sys.executable, str(packages() / "bin" / "kubernetes-validate")),
        *(
            "--strict",
            "--quiet",
            "--kubernetes-version",
            version,
            str(MANIFESTS),
            str(MANIFESTS.with_name("backup.yaml")),
        ),
        PYTHONPATH=os.pathsep.join([str(packages()), *sys.path]),
    )
    assert (checked.status, checked.out, checked.err) == (0, "", "")


def test_every_selector_matches_some_pods() -> None:
    labels = [template["metadata"]["labels"] for _, template in pods()]
    selectors = [
        selector.get("matchLabels", selector)
        for each in manifests()
        for selector in (each.get("spec", {}).get(key) for key in ("selector", "podSelector"))
        if selector
    ]
    assert len(selectors) >= 9
    assert all(any(set(s.items()) <= set(of.items()) for of in labels) for s in selectors)


def test_pods_have_minimal_rights_and_no_volumes() -> None:
    for name, template in pods():
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"], name
        assert not spec["automountServiceAccountToken"], name
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert container["resources"]["limits"]["memory"], name
        assert not any("persistentVolumeClaim" in volume for volume in spec["volumes"]), name


def test_disruption_budget_leaves_at_least_one_pod() -> None:
    for name, _ in pods():
        (replicas,) = [
            each["spec"]["replicas"]
            for each in manifests()
            if each["metadata"]["name"] == name and "template" in each.get("spec", {})
        ]
        assert manifest("PodDisruptionBudget", name)["spec"]["maxUnavailable"] < replicas


def test_probes_use_public_host_name() -> None:
    host = urlsplit(manifest("ConfigMap")["data"]["ELICIT_URL"]).netloc
    (container,) = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"]
    asked = {probe: container[probe]["httpGet"] for probe in container if probe.endswith("Probe")}
    assert {probe: get["path"] for probe, get in asked.items()} == {
        "startupProbe": "/live",
        "livenessProbe": "/live",
        "readinessProbe": "/ready",
    }
    for get in asked.values():
        assert get["httpHeaders"] == [{"name": "Host", "value": host}]
    rules = manifest("Ingress")["spec"]["rules"]
    assert [rule["host"] for rule in rules] == [host]
