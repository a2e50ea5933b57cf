"""The pytest fixture of elicit-url, in a module with a name of our own (elicit_url.py says why).

pytest imports this module at each start of every project that has elicit-url installed. The module
therefore imports the test kit only when a test uses the fixture.
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
    """Return a context manager of a person who answers the questions of a server's tools.

    See the function of the same name in `webapp.testing`.
    """
    if wrong := elicit_url.what_is_wrong():
        pytest.fail(wrong, pytrace=False)
    from webapp.testing import elicit_person  # noqa: PLC0415 - now that a test asks for it

    return elicit_person
