"""Fixtures: an application, and a program that asks its users."""

from collections.abc import AsyncIterator

import pytest

from tests.support.api_program import Program, program_at
from tests.support.asking_env import AskingEnv, asking_env
from tests.support.living import living


@pytest.fixture
async def here() -> AsyncIterator[AskingEnv]:
    async with living(asking_env()) as here:
        yield here


@pytest.fixture
async def shop(here: AskingEnv) -> AsyncIterator[Program]:
    async with program_at(here) as program:
        yield program
