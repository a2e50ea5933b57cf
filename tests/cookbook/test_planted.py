"""The test kit's replay mode finds the mistake of each planted server, in each cell."""

import pytest

from tests.cookbook.servers import DECLARES, PLANTED, load


@pytest.mark.parametrize("name", PLANTED)
async def test_mistake_of_planted_server_is_found(elicit_person, name, cell):
    # finding: XA9
    tool, questions, words = PLANTED[name]
    library, revision, declares = cell
    example = load(f"tests/cookbook/planted/{name}.py", library)
    modes = DECLARES[declares]
    async with elicit_person(example.mcp, revision=revision, declares=modes, replay=True) as person:
        for _ in range(questions):
            person.accepts()
        await person.call(tool)
        (call,) = person.replayed
        assert any(words in effect for effect in call.repeated), call
        assert f"{name}.py:" in call.repeated[0]
