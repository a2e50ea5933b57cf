"""A key that approves answers a form with a check: the response has the errors of the fields."""

from collections.abc import Mapping

from pydantic import BaseModel

from flows import elicit
from flows.elicitation.states import Elicitation
from tests.support.api_program import program_at
from tests.support.asking_env import AskingEnv
from webapp.identity.api_keys import KeyScope


class Visit(BaseModel):
    city: str
    nights: int = 1


async def known_city(visit: Visit) -> Mapping[str, str] | None:
    return None if visit.city == "Ulm" else {"city": "There is no such city."}


async def ask_for_city() -> str:
    return (await elicit.form("Which city?", Visit, check=known_city)).city


async def test_answer_of_approver_key_is_checked(here: AskingEnv) -> None:
    block = here.begin(ask_for_city)
    await block.link()
    (asked,) = await here.service.elicitations.all(Elicitation)
    question = asked.id
    desk = program_at(here, program="desk", scope=KeyScope.APPROVE, owners=("ann",))
    async with desk as approving:
        wrong = {"accepts": True, "content": {"city": "Nowhere", "nights": 99}}
        refused = await approving.post(question, "answer", wrong)
        assert refused.status_code == 422
        problem = refused.json()
        assert problem["code"] == "INVALID_INPUT"
        assert problem["errors"] == [{"path": "city", "message": "There is no such city."}]
        right = {"accepts": True, "content": {"city": "Ulm"}}
        assert (await approving.post(question, "answer", right)).status_code == 200
    assert await block == "Ulm"
