"""Fixtures that the rotation tests share."""

from pathlib import Path

import pytest

from webapp.settings.key_file import KeyFile


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    file = KeyFile(tmp_path / "key")
    file.ring()
    return file
