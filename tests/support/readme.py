"""The person of README, at the sandbox checkout."""

import re
import sys
from pathlib import Path

from tests.support.cli import HOUSE
from tests.support.processes import ended, start

README = (HOUSE / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PROGRAM = next(block for block in BLOCKS if "# finish.py" in block)


async def finish_at_the_checkout(folder: Path, order: str, environment: dict[str, str]) -> str:
    program = folder / "finish.py"
    program.write_text(PROGRAM)
    process = await start(
        *(sys.executable, str(program), order),
        name="finish.py",
        env={"HOME": str(folder), "PYTHONPATH": str(HOUSE), **environment},
    )
    return (await ended(process)).out.strip()
