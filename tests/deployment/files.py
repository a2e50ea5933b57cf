"""The contents of deploy/: ports, times, settings and commands in each file."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.deployment.tools import DEPLOY
from tests.support.cli import PROJECT, procfile_words

UNIT = (DEPLOY / "systemd" / "elicit.service").read_text("utf-8")
NGINX = (DEPLOY / "nginx" / "elicit.conf").read_text("utf-8")
CADDY = (DEPLOY / "caddy" / "Caddyfile").read_text("utf-8")
DOCKERFILE = (DEPLOY / "container" / "Dockerfile").read_text("utf-8")
COMPOSE = str(DEPLOY / "container" / "compose.yaml")
MANIFESTS = DEPLOY / "kubernetes" / "elicit.yaml"
# Values that compose.yaml and the other files leave to the operator.
CHOSEN = {
    "HOST": "tools.example.com",
    "ELICIT_SECRET": "s" * 44,
    "ELICIT_STORE": "postgresql://elicit:letters@postgres.example.com/elicit",
    "POSTGRES_PASSWORD": "letters",
    "ELICIT_ISSUER": "https://login.example.com",
    "ELICIT_ISSUER_CLIENT_ID": "pages",
    "ELICIT_ISSUER_CLIENT_SECRET": "of-the-pages",
}


def everything() -> str:
    """Return the text of all files of deploy/ and the Procfile."""
    files = [path for path in sorted(DEPLOY.rglob("*")) if path.is_file()]
    return "\n".join(path.read_text("utf-8") for path in (*files, PROJECT / "Procfile"))


def of_unit(name: str) -> str:
    return str(re.findall(rf"(?m)^{name}=(.*)$", UNIT)[-1])


def of_nginx(name: str, text: str = NGINX) -> list[str]:
    return re.findall(rf"(?m)^\s*{name} (.*);", text)


def variables(text: str) -> dict[str, str]:
    """Return the variables of a file of NAME=value lines. Empty values come from `CHOSEN`."""
    lines = [line.partition("=") for line in text.splitlines() if re.match(r"[A-Z_]+=", line)]
    return {name: value or CHOSEN[name] for name, _, value in lines}


def of_dockerfile(name: str) -> list[str]:
    """Return the arguments of each instruction `name`. Continued lines are joined."""
    return re.findall(rf"(?m)^\s*{name} (.*)$", DOCKERFILE.replace("\\\n", " "))


def health_check() -> list[str]:
    return list(json.loads(of_dockerfile("HEALTHCHECK")[0].partition("CMD")[2]))


def commands() -> Mapping[str, list[str]]:
    """Return the command with which each file starts the server."""
    started = {
        "systemd": shlex.split(of_unit("ExecStart")),
        "Dockerfile": list(json.loads(of_dockerfile("CMD")[-1])),
        "Procfile": procfile_words({"PORT": "$PORT"}),
    }
    return {where: command[command.index("serve") :] for where, command in started.items()}


@cache
def manifests() -> tuple[Mapping[str, Any], ...]:
    return tuple(yaml.safe_load_all(MANIFESTS.read_text("utf-8")))


def manifest(kind: str, name: str = "elicit") -> Any:
    (found,) = [
        each for each in manifests() if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


def pods() -> Iterator[tuple[str, Any]]:
    """Yield each pod template by the name of its controller."""
    for each in manifests():
        if "template" in each.get("spec", {}):
            yield each["metadata"]["name"], each["spec"]["template"]


def seconds(text: object) -> timedelta:
    """Return a duration as the files write it: 30, `30s`, `1m`, `1m0s`."""
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s?)?", str(text))
    assert found is not None, text
    return timedelta(minutes=int(found[1] or 0), seconds=int(found[2] or 0))
