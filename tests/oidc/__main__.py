"""`python -m tests.oidc`: try each setting of oidc-provider, and write the table of the results.

The table is in docs/how-to/sign-in.md. The exit status is 1 if a setting did not work.
"""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Final

from tests.oidc.env import OpenIdProvider, install
from tests.oidc.settings import CLIENTS, KEYS, Setting, check_account, check_sign_in

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "sign-in.md"
BEGIN: Final = "<!-- made by python -m tests.oidc -->\n"
END: Final = "<!-- to here -->\n"


async def result_of(provider: OpenIdProvider, setting: Setting) -> str:
    try:
        await check_account(provider, setting)
        await check_sign_in(provider, setting)
    except Exception as error:  # noqa: BLE001 - a cell of the table
        return f"fails: {type(error).__name__}"
    return "works"


async def tried() -> dict[str, list[str]]:
    rows: dict[str, list[str]] = {}
    with OpenIdProvider(install()) as provider:
        for name, client in CLIENTS.items():
            rows[name] = [
                await result_of(provider, client.with_keys(keys)) for keys in KEYS.values()
            ]
            print(name, *rows[name], flush=True)  # noqa: T201 - its output is its report
    return rows


def main() -> int:
    logging.disable()  # hide the log of the libraries in this process
    rows = asyncio.run(tried())
    lines = [f"| client | {' | '.join(KEYS)} |", f"|---|{'---|' * len(KEYS)}"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    before, begin, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin
    assert end
    table = "\n".join(["", *lines, "", ""])
    PAGE.write_text(f"{before}{begin}{table}{end}{after}", "utf-8")
    return 0 if all(cell == "works" for cells in rows.values() for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
