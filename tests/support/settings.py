"""What is wrong with an environment, as the settings tell it."""

from collections.abc import Mapping
from datetime import timedelta

import pytest

from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import DEFAULT_HOST, BadSettings, read_settings

SECRET = "a secret of at least thirty-two bytes"
# Clients of the tests answer at once, for a person.
AT_ONCE = PolicySettings(min_answer=timedelta())
PUBLIC = {"ELICIT_URL": "https://elicit.example", "ELICIT_SECRET": SECRET}


def problems_in(environment: Mapping[str, str], *, host: str = DEFAULT_HOST) -> list[str]:
    """All of them, told without what a secret of these tests is."""
    with pytest.raises(BadSettings) as refused:
        read_settings(environment, host=host)
    assert "hunter2" not in str(refused.value)
    return refused.value.problems


def variables_in(problems: list[str]) -> list[str]:
    """Which variable each of them names."""
    return [problem.partition(":")[0] for problem in problems]
