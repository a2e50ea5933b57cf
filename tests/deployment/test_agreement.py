"""Tests that the files of deploy/ agree with each other and with the code."""

import json
import re
from datetime import timedelta

import pytest
import yaml  # type: ignore[import-untyped]

from tests.deployment.files import (
    CADDY,
    CHOSEN,
    COMPOSE,
    DOCKERFILE,
    NGINX,
    commands,
    everything,
    health_check,
    manifest,
    of_dockerfile,
    of_nginx,
    of_unit,
    pods,
    seconds,
    variables,
)
from tests.deployment.tools import DEPLOY, run_packaged
from tests.support.cli import PROJECT
from webapp.cli.main import parser_for
from webapp.identity.accepting import LINGER_SECONDS
from webapp.limits import CallLimits
from webapp.routes.links import PING_EVERY
from webapp.serving.http_server import GRACE_SECONDS
from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import DEFAULT_PORT, TABLE, read_settings

PORT = str(DEFAULT_PORT)
# The longest time from the stop signal until the process has ended.
ENDING = PolicySettings().grace + timedelta(seconds=LINGER_SECONDS + GRACE_SECONDS)
SPARE = timedelta(seconds=5)
CHOSEN_HERE = {"ELICIT_STORE": "memory:", "ELICIT_SECRET": "a" * 32}


def test_every_variable_in_deploy_files_is_a_setting() -> None:
    named = set(re.findall(r"\b(?:ELICIT|MCP)_[A-Z_]+\b", everything()))
    assert len(named) >= 10
    assert {name for name in named if not any(row.match(name) for row in TABLE)} == set()


@pytest.mark.parametrize("where", commands())
def test_each_start_command_is_accepted_by_command_line(where: str) -> None:
    options = parser_for(words := [each.replace("$PORT", PORT) for each in commands()[where]])
    read = options.parse_args(words)
    server = None if where == "Procfile" else "my_tools:mcp"  # ELICIT_SERVER names the server
    assert (read.server, read.port) == (server, DEFAULT_PORT)


def test_systemd_environment_is_valid() -> None:
    settings = read_settings(variables((DEPLOY / "systemd" / "elicit.env").read_text("utf-8")))
    folder = of_unit("StateDirectory")
    assert settings.store == f"sqlite:////var/lib/{folder}/elicit.db"
    assert not settings.is_local
    assert settings.proxies


async def test_compose_environment_is_valid() -> None:
    command = ("docker-compose", "--file", COMPOSE, "config", "--format", "json")
    composed = json.loads((await run_packaged(*command, **CHOSEN)).out)
    service = composed["services"]["elicit"]
    settings = read_settings(service["environment"], host="0.0.0.0")
    assert settings.store.startswith("postgresql://elicit:letters@postgres/")
    (subnet,) = [each["subnet"] for each in composed["networks"]["front"]["ipam"]["config"]]
    assert [str(network) for network in settings.proxies] == [subnet]
    assert seconds(service["stop_grace_period"]) >= ENDING + SPARE
    assert composed["services"]["caddy"]["environment"]["UPSTREAM"] == f"elicit:{PORT}"


def test_pod_environment_is_valid() -> None:
    (container,) = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"]
    named = {each["name"]: "elicit-0" for each in container["env"]}
    secret = {name: CHOSEN[name] for name in CHOSEN if name.startswith("ELICIT_")}
    configured = manifest("ConfigMap")["data"]
    settings = read_settings({**named, **secret, **configured}, host="0.0.0.0")
    assert settings.policies.grace == PolicySettings().grace
    assert [each.popitem()[0] for each in container["envFrom"]] == ["configMapRef", "secretRef"]


def test_all_files_use_same_port() -> None:
    assert of_nginx("server") == [f"127.0.0.1:{PORT}"]
    assert f"{{$UPSTREAM:127.0.0.1:{PORT}}}" in CADDY
    assert of_dockerfile("EXPOSE") == [PORT]
    assert f":{PORT}" in health_check()[2]
    ports = [
        container["ports"][0]["containerPort"]
        for name, template in pods()
        for container in template["spec"]["containers"]
        if name == "elicit"
    ]
    ports += [port["port"] for port in manifest("Service", "elicit")["spec"]["ports"]]
    ports += [port["port"] for port in manifest("Service", "elicit-pods")["spec"]["ports"]]
    assert set(ports) == {DEFAULT_PORT}
    site = manifest("ConfigMap", "elicit-front")["data"]["elicit.conf"]
    assert {each.rpartition(":")[2] for each in of_nginx("proxy_pass", site)} == {PORT}


def test_stop_timeouts_leave_enough_time_to_shut_down() -> None:
    assert seconds(of_unit("TimeoutStopSec")) >= ENDING + SPARE
    spec = manifest("StatefulSet")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (program, waits) = container["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    all_of_it = seconds(waits) + ENDING + SPARE
    assert seconds(spec["terminationGracePeriodSeconds"]) >= all_of_it
    # The readiness probe runs at least once during the preStop sleep.
    ready = container["readinessProbe"]
    assert seconds(waits) >= seconds(ready["periodSeconds"])


def test_proxies_do_not_cut_off_held_calls_or_streams() -> None:
    annotations = manifest("Ingress")["metadata"]["annotations"]
    passes = manifest("ConfigMap", "elicit-front")["data"]["elicit.pass"]
    prefix = "nginx.ingress.kubernetes.io/proxy-"
    silences = [
        *of_nginx("proxy_read_timeout"),
        *of_nginx("proxy_read_timeout", passes),
        annotations[f"{prefix}read-timeout"],
    ]
    assert all(seconds(each) >= CallLimits().call + SPARE for each in silences)
    assert all(seconds(each) >= 4 * PING_EVERY for each in silences)
    for text in (NGINX, passes):
        assert of_nginx("proxy_buffering", text) == ["off"]
    assert annotations[f"{prefix}buffering"] == "off"
    assert re.search(r"\bflush_interval -1\n", CADDY)


def test_proxies_close_idle_connections_before_server_does() -> None:
    # finding: XV7
    stored = read_settings({**CHOSEN_HERE, "ELICIT_PROXIES": "127.0.0.1"}).arrivals.idle
    assert seconds(of_nginx("keepalive_timeout")[0].partition(";")[0]) + SPARE < stored
    (caddy,) = re.findall(r"\bkeepalive (\w+)\n", CADDY)
    assert seconds(caddy) + SPARE < stored


# finding: XV7
@pytest.mark.parametrize(
    "page",
    ["docs/how-to/deployment.md", "docs/reference/benchmarks.md", "deploy/nginx/elicit.conf"],
)
def test_nginx_limits_are_documented_next_to_connection_limit(page: str) -> None:
    text = (PROJECT / page).read_text("utf-8")
    assert "ELICIT_CONNECTIONS" in text
    assert "worker_connections" in text
    assert "worker_rlimit_nofile" in text


def test_nightly_backup_uses_existing_command_and_settings() -> None:
    # finding: XV8
    unit = (DEPLOY / "systemd" / "elicit-backup.service").read_text("utf-8")
    (command,) = re.findall(r"(?m)^ExecStart=/bin/sh -c 'exec \S*/elicit (.*)'$", unit)
    words = re.sub(r"\$\$\(.*\)", "now", command).split()
    assert str(parser_for(words).parse_args(words).file) == "/var/lib/elicit-backup/now"
    assert of_unit("EnvironmentFile") in unit
    timer = (DEPLOY / "systemd" / "elicit-backup.timer").read_text("utf-8")
    assert "OnCalendar=*-*-* 03:17:00\n" in timer
    claim, job = yaml.safe_load_all((DEPLOY / "kubernetes" / "backup.yaml").read_text("utf-8"))
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    served = manifest("StatefulSet")["spec"]["template"]["spec"]
    assert container["image"] == served["containers"][0]["image"]
    names = [{"configMapRef": {"name": "elicit"}}, {"secretRef": {"name": "elicit"}}]
    assert container["envFrom"] == names
    assert pod["securityContext"].items() >= served["securityContext"].items()
    assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert 'elicit backup "/backup/' in container["command"][-1]


def test_proxies_allow_same_body_size_as_server() -> None:
    site = manifest("ConfigMap", "elicit-front")["data"]["elicit.conf"]
    annotations = manifest("Ingress")["metadata"]["annotations"]
    assert of_nginx("client_max_body_size") == of_nginx("client_max_body_size", site) == ["4m"]
    assert annotations["nginx.ingress.kubernetes.io/proxy-body-size"] == "4m"
    assert "max_size 4MiB" in CADDY


def test_image_and_pods_use_same_user() -> None:
    (user,) = of_dockerfile("USER")
    context = manifest("StatefulSet")["spec"]["template"]["spec"]["securityContext"]
    assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert f"--uid {context['runAsUser']} " in DOCKERFILE


def test_deployment_page_names_only_existing_files() -> None:
    page = (PROJECT / "docs" / "how-to" / "deployment.md").read_text("utf-8")
    named = set(re.findall(r"`((?:systemd|nginx|caddy|container|kubernetes)/[\w./]+)`", page))
    named |= set(re.findall(r"\bdeploy/([\w./]+\.\w+)", page))
    assert len(named) >= 7
    assert {each for each in named if not (DEPLOY / each).is_file()} == set()
