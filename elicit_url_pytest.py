"""The fixture of elicit-url for pytest, under a name of our own (elicit_url.py tells why).

pytest imports this at each start, in every project in whose environment it is installed, so it
imports nothing else: the kit is there when a test asks for it.
"""

from typing import TYPE_CHECKING

import pytest

import elicit_url

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from webapp.testing import AskedPerson


@pytest.fixture
def elicit_person() -> "Callable[..., AbstractAsyncContextManager[AskedPerson]]":
    """A person whom the tools of a server ask: `async with` what this gives for the server.

    It is the function of that name in `webapp.testing`.
    """
    if wrong := elicit_url.what_is_wrong():
        pytest.fail(wrong, pytrace=False)
    from webapp.testing import elicit_person  # noqa: PLC0415 - now that a test asks for it

    return elicit_person
