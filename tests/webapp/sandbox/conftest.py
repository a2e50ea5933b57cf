"""Fixtures: a sandbox on a manual clock, and a person who uses the sandbox in a browser."""

from collections.abc import AsyncIterator

import pytest

from tests.support.clock import Clock
from tests.support.sandbox import MAIN, URL, Person, person_at
from tests.support.sandbox_checkout import ServerEnv, checkout_env
from tests.support.sandbox_payments import Paying, paying_at
from webapp.sandbox import Sandbox, new_sandbox


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sandbox() -> Sandbox:
    return new_sandbox(url=URL, serves=MAIN)


@pytest.fixture
async def person(sandbox: Sandbox, clock: Clock) -> AsyncIterator[Person]:
    async with person_at(sandbox, clock=clock) as person:
        yield person


@pytest.fixture
async def env() -> AsyncIterator[ServerEnv]:
    async with checkout_env() as env:
        yield env


@pytest.fixture
async def paying(request: pytest.FixtureRequest) -> AsyncIterator[Paying]:
    """Open a payer at the test's parametrized provider, or else at the module's `PROVIDER`."""
    name = getattr(request, "param", None) or request.module.PROVIDER
    async with paying_at(name) as paying:
        yield paying
