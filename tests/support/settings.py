"""The problems that the settings find in an environment."""

from collections.abc import Mapping
from datetime import timedelta

import pytest

from webapp.settings.quotas import PolicySettings
from webapp.settings.settings import DEFAULT_HOST, BadSettings, read_settings

SECRET = "a secret of at least thirty-two bytes"
# Accept immediate answers as a person's, because clients in tests answer immediately.
AT_ONCE = PolicySettings(min_answer=timedelta())
PUBLIC = {"ELICIT_URL": "https://elicit.example", "ELICIT_SECRET": SECRET}


def problems_in(environment: Mapping[str, str], *, host: str = DEFAULT_HOST) -> list[str]:
    """Return all problems. Fail if their text contains the secret of these tests."""
    with pytest.raises(BadSettings) as refused:
        read_settings(environment, host=host)
    assert "hunter2" not in str(refused.value)
    return refused.value.problems


def variables_in(problems: list[str]) -> list[str]:
    """Return the variable that each problem names."""
    return [problem.partition(":")[0] for problem in problems]
