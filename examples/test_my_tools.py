"""Tests of the tools in my_tools.py: a person follows the link and fills in the menu.

pip install "elicit-url[testing]" pytest-asyncio
pytest --asyncio-mode=auto test_my_tools.py
"""

import pytest
from mcp.server.mcpserver import MCPServer
from my_tools import mcp

from webapp.testing import ElicitPerson


@pytest.fixture
def my_server() -> MCPServer:
    return mcp


async def test_lunch_is_what_the_person_chose(
    elicit_person: ElicitPerson, my_server: MCPServer
) -> None:
    async with elicit_person(my_server) as person:
        person.visits(dish="soup")
        result = await person.call("order_lunch")
    assert result.text == "The person would like soup."
    assert [question.message for question in person.asked] == ["What would you like for lunch?"]


async def test_nobody_is_fed_who_does_not_want_to_eat(
    elicit_person: ElicitPerson, my_server: MCPServer
) -> None:
    async with elicit_person(my_server) as person:
        person.declines()
        result = await person.call("order_lunch")
    assert result.code == "ELICITATION_DECLINED"
