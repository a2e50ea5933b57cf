"""Whose a connection is, where the system tells it."""

import os
from pathlib import Path

import pytest

ME = os.getuid()
ON_LINUX = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc")
