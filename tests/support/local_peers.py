"""This user's uid, and a mark for tests of local connections that need Linux."""

import os
from pathlib import Path

import pytest

ME = os.getuid()
ON_LINUX = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs Linux's /proc")
