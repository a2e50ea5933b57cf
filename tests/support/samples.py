"""The samples of README and docs/, as files that a reader would copy.

A sample whose first line is `# name.py` starts that file. The next samples of the page continue it.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from tests.support.cli import PROJECT
from tests.support.processes import ended, start

PAGES = {
    path.relative_to(PROJECT).as_posix(): path.read_text("utf-8")
    for path in (PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md")))
    if path.name != "index.md"  # index.md includes README.md, which is already in the list
}
_SAMPLE = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_NAMED = re.compile(r"# (\w+\.py)\n")


def samples(page: str, language: str) -> list[str]:
    return [text for found, text in _SAMPLE.findall(PAGES[page]) if found == language]


def _files() -> Mapping[str, str]:
    files = defaultdict[str, str](str)
    for page in PAGES:
        name = ""
        for text in samples(page, "python"):
            if named := _NAMED.match(text):
                name = named[1]
                assert name not in files, f"{page}: another page already has a file {name}"
            if name:
                files[name] += text + "\n\n"
    return files


FILES = _files()


def one_server() -> str:
    """Return the code of all sample servers, with all tools on the first server."""
    text = "\n\n".join(text for text in FILES.values() if "\nmcp = MCPServer(" in text)
    head, first, rest = re.split(r"(?m)(^mcp = MCPServer\(.*\)$)", text, maxsplit=1)
    return head + first + re.sub(r"(?m)^mcp = MCPServer\(.*\)$", "", rest)


async def finish_at_the_checkout(folder: Path, order: str, environment: dict[str, str]) -> str:
    program = folder / "finish.py"
    program.write_text(FILES["finish.py"])
    process = await start(
        *(sys.executable, str(program), order),
        name="finish.py",
        env={"HOME": str(folder), "PYTHONPATH": str(PROJECT), **environment},
    )
    return (await ended(process)).out.strip()
