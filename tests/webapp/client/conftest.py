"""Fixtures: an application, and programs that ask its users with the client."""

from collections.abc import AsyncIterator

import pytest

from tests.support.asking_env import AskingEnv, asking_env
from tests.support.living import living
from tests.support.runs_env import Programs, programs_at


@pytest.fixture
async def here() -> AsyncIterator[AskingEnv]:
    async with living(asking_env()) as here:
        yield here


@pytest.fixture
async def shop(here: AskingEnv) -> AsyncIterator[Programs]:
    async with programs_at(here) as programs:
        yield programs
