"""Send requests that a server's OpenAPI document allows or forbids, and report the responses.

This is a separate process, because schemathesis is installed separately: `python -m
tests.fuzzed.sender URL EXAMPLES KEYS`. KEYS is a JSON object that maps the label of
each operation to an API key. Each operation has its own key, so that no key reaches its rate
limit. The output is one JSON object: for each operation the number of responses by status, and
under `broken` the responses that must never occur.
"""

import json
import sys
from collections import Counter
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings


def send(url: str, *, examples: int, keys: dict[str, str]) -> dict[str, Any]:
    document = httpx.get(f"{url}/api/reference/openapi.json", timeout=300).json()
    broken = list[str]()
    reported: dict[str, Any] = {"broken": broken}
    found = schemathesis.openapi.from_dict(document).get_all_operations()
    for operation in (each.ok() for each in found):
        if operation.label in keys:
            key = keys[operation.label]
            reported[operation.label] = _sent(
                operation, url, key=key, examples=examples, broken=broken
            )
    return reported


def _sent(
    operation: Any, url: str, *, key: str, examples: int, broken: list[str]
) -> dict[int, int]:
    statuses = Counter[int]()

    @given(case=operation.as_strategy())
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    def one(case: Any) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        answer = case.call(base_url=url, headers=headers, timeout=300)
        statuses[answer.status_code] += 1
        if answer.status_code >= 500:
            broken.append(f"{operation.label}: {answer.text[:300]}")

    one()
    return dict(statuses)


if __name__ == "__main__":
    print(json.dumps(send(sys.argv[1], examples=int(sys.argv[2]), keys=json.loads(sys.argv[3]))))  # noqa: T201
