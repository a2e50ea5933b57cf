"""Many guessed API keys from one address: valid keys from the same address still work."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from tests.outside.asked_programs import programs_on
from webapp.identity.api_keys import new_text

FINDING = "XS5"
GUESSES = 60  # more than the limit of 30 for an address


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with tempfile.TemporaryDirectory() as folder:
        async with programs_on("sqlite", Path(folder)) as served:
            shop = await served.key("shop")
            for number in range(times):
                statuses = set[int]()
                for _ in range(GUESSES):
                    about = {"authorization": f"Bearer {new_text()}"}
                    guess = await served.http.get("/api/questions?user=ann", headers=about)
                    statuses.add(guess.status_code)
                yield "guesses are slowed down", 429 in statuses
                answer = await served.http.get("/api/questions?user=ann", headers=shop)
                yield "a key that works is answered", answer.status_code == 200
                # Create the key in a separate process, as an operator does. In this process, the
                # command would end before the server reads its list of keys again.
                fresh = await served.key(f"made in the flood {number}", in_own_process=True)
                answer = await served.http.get("/api/questions?user=ann", headers=fresh)
                yield "a key that was just made is answered", answer.status_code == 200
                asked = await served.ask(shop, kind="confirm", message="Sell the house?")
                page = await served.http.get(asked.get("url", "/e/none"))
                yield "a link opens", page.status_code == 200
