"""The pytest fixture of elicit-url, in a module with a name of our own (elicit_url.py says why).

pytest imports this module at each start of every project that has elicit-url installed. The module
therefore imports the test kit only when a test uses the fixture.
"""

from typing import TYPE_CHECKING

import pytest

import elicit_url

if TYPE_CHECKING:
    from webapp.testing import ElicitPerson


@pytest.fixture
def elicit_person() -> "ElicitPerson":
    """Simulate a person who answers the questions of a server's tools.

    Returns:
        The function of the same name in `webapp.testing`: an async context manager.
    """
    if wrong := elicit_url.what_is_wrong():
        pytest.fail(wrong, pytrace=False)
    from webapp.testing import elicit_person  # noqa: PLC0415 - now that a test asks for it

    return elicit_person
