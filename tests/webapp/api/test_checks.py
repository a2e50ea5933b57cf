"""Questions with a check in an `asking` block: answers by an approver key, and on the page."""

from collections.abc import Mapping

from pydantic import BaseModel, SecretStr

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


class Login(BaseModel):
    user: str
    token: SecretStr


def is_known(login: Login) -> Mapping[str, str] | None:
    return None if login.user == "ada" else {"user": "No such user."}


async def ask_for_login() -> str:
    login = await elicit.secret("Your login?", Login, check=is_known)
    return f"{login.user}, {login.token.get_secret_value()}"


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


async def test_secret_of_block_is_checked_on_its_page(here: AskingEnv) -> None:
    block, person = here.begin(ask_for_login), await here.browser()
    link = (await block.link()).url
    page = await person.visit(link)
    typed = {"csrf": page.csrf, "answer.user": "bob", "answer.token": "sesame-1234"}
    refused = await person.browser.post(link, data=typed)
    assert refused.status_code == 422
    assert "No such user." in refused.text.partition('name="answer.user"')[0]
    assert "sesame-1234" not in refused.text
    done = await person.browser.post(link, data={**typed, "answer.user": "ada"})
    assert done.status_code == 303
    assert await block == "ada, sesame-1234"


async def test_key_cannot_answer_secret_with_check(here: AskingEnv) -> None:
    block = here.begin(ask_for_login)
    await block.link()
    (asked,) = await here.service.elicitations.all(Elicitation)
    desk = program_at(here, program="desk", scope=KeyScope.APPROVE, owners=("ann",))
    async with desk as approving:
        for user in ("bob", "ada"):
            content = {"user": user, "token": "sesame-1234"}
            refused = await approving.post(
                asked.id, "answer", {"accepts": True, "content": content}
            )
            assert (refused.status_code, refused.json()["code"]) == (404, "NO_SUCH_QUESTION")
            assert "sesame-1234" not in refused.text
    await block.cancel()
