"""Questions: only `await` asks one, and an invalid question raises when it is created."""

import asyncio
import copy
from datetime import timedelta
from typing import Any, ClassVar, cast

import pytest

from flows import elicit
from flows.elicitation.ending import refusal
from flows.elicitation.states import Completion, Json, Status
from flows.errors import InvalidQuestion, NoAsker, NotAccepted, NotAwaited
from flows.kinds.url import Visit
from flows.question import TIMEOUT_AT_MOST, Link, Outcome, Question, asking
from tests.support.askers import URL, FixedAsker, question

LINK = Link(
    id="e",
    public_url="https://elicit.example",
    return_token=lambda: "return",
    callback_token=lambda: "callback",
)


def visit(of: Question[Any]) -> Visit:
    assert isinstance(of.request, Visit)
    return of.request


def test_question_without_await_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match="await"):
        bool(question())


def test_question_without_await_cannot_be_used_as_answer() -> None:
    asked: Any = question()
    for use in (lambda: asked.id, lambda: asked["id"], lambda: list(asked), lambda: len(asked)):
        with pytest.raises(NotAwaited, match="write `await` before"):
            use()
    assert not hasattr(asked, "__fspath__")
    assert copy.copy(asked) == asked


async def test_await_without_asker_raises_no_asker() -> None:
    for awaited in (question(), question().outcome(), question().or_none()):
        with pytest.raises(NoAsker):
            await awaited
    with pytest.raises(NoAsker):
        await elicit.complete_elicitation("e", {})
    with pytest.raises(NoAsker):
        elicit.can("url")


async def test_each_await_asks_the_question_once() -> None:
    reported = FixedAsker(Outcome(status=Status.ACCEPTED, content={"n": 1}))
    asked = question()
    with asking(reported):
        assert reported.asked == []
        assert await asked == {"n": 1}
        assert await asked.or_none() == {"n": 1}
    assert reported.asked == [asked, asked]


@pytest.mark.parametrize("status", [s for s in Status if s.is_final and s is not Status.ACCEPTED])
async def test_each_refusal_raises_its_own_error_and_or_none_returns_none(status: Status) -> None:
    error = refusal(
        status, message="Please?", elicitation_id="e-1", timeout=timedelta(minutes=5), why="reason"
    )
    assert isinstance(error, NotAccepted)
    assert "Please?" in str(error)
    assert error.elicitation_id == "e-1"
    with asking(FixedAsker(Outcome(status=status, error=error))):
        with pytest.raises(type(error)) as raised:
            await question()
        assert raised.value is error
        assert await question().or_none() is None
        outcome = await question().outcome()
    assert not outcome
    assert outcome.action in {"decline", "cancel"}


def test_every_refusal_status_has_its_own_error() -> None:
    kinds = {
        type(refusal(s, message="m", elicitation_id="e", timeout=timedelta(minutes=5)))
        for s in Status
        if s.is_final
    }
    assert len(kinds) == 7


@pytest.mark.parametrize("status", [s for s in Status if not s.is_final])
def test_open_status_has_no_refusal_error(status: Status) -> None:
    with pytest.raises(ValueError, match="not an outcome"):
        refusal(status, message="m", elicitation_id="e", timeout=timedelta(minutes=5))


async def test_asker_is_reset_after_its_block() -> None:
    reported = FixedAsker(Outcome(status=Status.ACCEPTED, content={}))
    with asking(reported):
        inner = asyncio.create_task(question().or_none())
        assert await inner == {}
        assert elicit.can("url")
    with pytest.raises(NoAsker):
        await question()


@pytest.mark.parametrize("message", ["", " ", "\n\t"])
def test_empty_message_is_refused(message: str) -> None:
    with pytest.raises(InvalidQuestion):
        _ = question(message)


@pytest.mark.parametrize(
    "timeout",
    [
        timedelta(),
        timedelta(seconds=-1),
        timedelta(milliseconds=999),
        TIMEOUT_AT_MOST + timedelta(microseconds=1),
        timedelta.max,
        timedelta.min,
    ],
)
def test_timeout_outside_limits_is_refused(timeout: timedelta) -> None:
    with pytest.raises(InvalidQuestion):
        _ = question(timeout=timeout)


def test_shortest_and_longest_timeout_are_allowed() -> None:
    assert question(timeout=timedelta(seconds=1)).timeout == timedelta(seconds=1)
    assert question(timeout=TIMEOUT_AT_MOST).timeout == TIMEOUT_AT_MOST


def test_timeout_as_number_and_list_as_text_are_refused() -> None:
    # finding: A10
    with pytest.raises(InvalidQuestion, match="timedelta"):
        _ = question(timeout=cast("Any", 5))
    with pytest.raises(InvalidQuestion, match=r"scopes=\['repo'\]"):
        _ = elicit.oauth("github", scopes="repo")
    with pytest.raises(InvalidQuestion, match="origins is a list"):
        _ = elicit.url("m", URL, origins="https://example.com")


def test_empty_key_is_refused() -> None:
    with pytest.raises(InvalidQuestion):
        _ = question(key="")


@pytest.mark.parametrize(
    "id", ["", "a b", "a/b", "é", "a\n", "\n", "x" * 129, "a:b", "%41", "\x00"]
)
def test_invalid_elicitation_id_is_refused(id: str) -> None:
    with pytest.raises(InvalidQuestion):
        _ = question(elicitation_id=id)


@pytest.mark.parametrize("id", ["a", "order-7", "x" * 128, "a.b_c~d-e"])
def test_custom_elicitation_id_is_used(id: str) -> None:
    assert question(elicitation_id=id).elicitation_id == id


def test_url_function_requires_origins() -> None:
    with pytest.raises(InvalidQuestion):
        _ = elicit.url("m", lambda _: URL)
    made = elicit.url("m", lambda link: f"{URL}?back={link.id}", origins=["https://example.com"])
    assert visit(made).address(LINK) == f"{URL}?back=e"


@pytest.mark.parametrize(
    "origin",
    [
        "https://example.com/",
        "https://example.com/x",
        "example.com",
        "https://u@example.com",
        "http://example.com",
        "https://example.com:443",
        "https://EXAMPLE.com",
        "*",
        "",
    ],
)
def test_invalid_origin_is_refused(origin: str) -> None:
    with pytest.raises(InvalidQuestion):
        _ = question(origins=[origin])


def test_origins_as_single_text_are_refused() -> None:
    with pytest.raises(InvalidQuestion):
        _ = question(origins="https://example.com")


@pytest.mark.parametrize(
    "address",
    ["https://evil.example/", "https://example.com.evil.example/", "https://example.com:444/"],
)
def test_url_function_with_foreign_origin_is_refused(address: str) -> None:
    made = elicit.url("m", lambda _: address, origins=["https://example.com"])
    with pytest.raises(InvalidQuestion, match=r"https://example\.com"):
        visit(made).address(LINK)


def test_link_has_browser_return_url_and_service_callback_url() -> None:
    assert LINK.return_token == "return"
    assert LINK.return_url == "https://elicit.example/return?elicitation=return"
    assert LINK.callback_url == "https://elicit.example/callback/url/callback"


def test_origin_of_fixed_url_is_always_included() -> None:
    assert visit(question()).origins == ("https://example.com",)
    more = question(origins=["https://other.example", "https://example.com"])
    assert visit(more).origins == ("https://example.com", "https://other.example")


def test_equal_questions_have_equal_digest() -> None:
    assert question() == question()
    assert question().digest == question().digest
    assert len(question().digest) == 32
    assert len({question(), question()}) == 2, (
        "equal questions are separate objects, so `gather` asks both"
    )


@pytest.mark.parametrize(
    "other",
    [
        question("Please go there!"),
        question("please go there."),
        question("Please go there. "),
        question(url="https://example.com/other"),
        question(url="https://example.org/go"),
        question(origins=["https://example.org"]),
    ],
)
def test_question_shown_differently_has_another_digest(other: Question[Any]) -> None:
    assert other.digest != question().digest


def test_key_and_timeout_do_not_change_digest() -> None:
    for same in (question(key="k"), question(timeout=timedelta(hours=1))):
        assert same.digest == question().digest
        assert same != question()


def test_url_function_does_not_change_digest() -> None:
    origins = ["https://example.com"]
    one = elicit.url("m", lambda link: f"{URL}?{link.id}", origins=origins)
    other = elicit.url("m", lambda link: f"{URL}?{link.return_url}", origins=origins)
    assert one.digest == other.digest


def test_questions_with_different_urls_are_not_equal() -> None:
    assert question(url="https://example.com/1") != question(url="https://example.com/2")


def test_wait_for_completion_changes_digest() -> None:
    assert question(wait_for_completion=False).digest != question().digest


@pytest.mark.parametrize(
    ("message", "url"), [("Go \ud800 there.", URL), ("Go there.", "https://example.com/\udfff")]
)
def test_text_with_lone_surrogate_is_refused(message: str, url: str) -> None:
    with pytest.raises(InvalidQuestion):
        _ = question(message, url)


def test_too_long_message_is_refused() -> None:
    with pytest.raises(InvalidQuestion):
        _ = question("x" * 100_000)


async def test_once_requires_a_name() -> None:
    async def work(key: str) -> Json:
        return key

    with asking(FixedAsker(Outcome(status=Status.ACCEPTED))):
        with pytest.raises(InvalidQuestion):
            await elicit.once("", work)
        assert await elicit.once("name", work) == "idempotency-key"


async def test_completion_accepts_an_id_or_a_request() -> None:
    class Request:
        query_params: ClassVar[Any] = {"elicitation": "x"}
        cookies: ClassVar[Any] = {}
        scope: ClassVar[Any] = {}

    with asking(FixedAsker(Outcome(status=Status.ACCEPTED))):
        assert await elicit.complete_elicitation("e-1") is Completion.ACCEPTED
        assert await elicit.complete_elicitation(Request()) is Completion.LATE
