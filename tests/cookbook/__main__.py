"""`python -m tests.cookbook`: run the examples, and write the table of docs/how-to/cookbook.md."""

import asyncio
import logging

from tests.cookbook.servers import PLAYS
from tests.cookbook.table import DOCUMENT, document, measured, rows


async def all_rows() -> list[str]:
    return [
        rows(name, await measured(name, replay=False), await measured(name, replay=True))
        for name in PLAYS
    ]


if __name__ == "__main__":
    logging.disable()  # hide the libraries' log
    DOCUMENT.write_text(document(iter(asyncio.run(all_rows()))), "utf-8")
