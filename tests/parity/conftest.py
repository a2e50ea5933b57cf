"""The protocol revision that a test runs with."""

import pytest

from tests.support.mcp_server import LEGACY, MODERN


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "revision" in metafunc.fixturenames:
        metafunc.parametrize("revision", (LEGACY, MODERN))
