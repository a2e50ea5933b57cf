"""Plugin declarations: which hook runs where and in which order, and what is not a plugin."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flows import hooks
from flows.hooks import (
    STAGES,
    BadPlugin,
    CallOn,
    GivenAnswer,
    HookMisused,
    ProposedQuestion,
    SettledQuestion,
    after,
    around,
    before,
    hooks_of,
    must_only_reduce,
)
from flows.schema.schema import schema_of
from tests.support.samples import PAGES


def test_hook_table_in_documentation_matches_code() -> None:
    text = PAGES["docs/how-to/webhooks.md"].partition("\n## Hooks\n")[2]
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{stage.name}`{' (guard)' if stage.is_guard else ''} | {stage.does} "
        f"| {', '.join(f'`{moment}`' for moment in stage.moments)} "
        f"| `{stage.value.__name__}`"
        f"{f', after it `{stage.after.__name__}`' if stage.after is not stage.value else ''} "
        f"| {', '.join(stage.leaves_open)} |".replace("|  |", "| |")
        for stage in STAGES.values()
    ]


@pytest.mark.parametrize(
    ("moment", "stage"),
    [
        (moment, stage.name)
        for stage in STAGES.values()
        for moment in ("around", "replace")
        if moment not in stage.moments
    ],
)
def test_guard_cannot_be_replaced_and_write_cannot_be_wrapped(moment: str, stage: str) -> None:
    with pytest.raises(BadPlugin, match="Use before or"):
        getattr(hooks, moment)(stage)


def test_only_describe_stage_can_be_replaced() -> None:
    replaced = [stage.name for stage in STAGES.values() if "replace" in stage.moments]
    assert replaced == ["describe"]
    assert not any(stage.leaves_open for stage in STAGES.values() if stage.is_guard)


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        ("verfy", "perhaps 'verify' is meant"),
        ("x", "there are describe, admit"),
        (lambda: None, "has no stage"),
    ],
)
def test_unknown_stage_is_named_in_error(stage: Any, says: str) -> None:
    with pytest.raises(BadPlugin, match=says):
        before(stage)


def test_invalid_hook_is_refused_at_declaration() -> None:
    def plain(self: object, question: object, call_on: object) -> None:
        raise AssertionError

    async def slow(question: object) -> bool:
        raise AssertionError

    untyped: Any = around("describe")
    with pytest.raises(BadPlugin, match="must be an async def"):
        untyped(plain)
    with pytest.raises(BadPlugin, match="write a plain function"):
        before("describe", when=slow)  # type: ignore[call-overload]


class Base:
    @before("describe")
    def first(self, question: ProposedQuestion) -> None: ...

    @before("describe")
    def second(self, question: ProposedQuestion) -> None: ...


class Derived(Base):
    def second(self, question: ProposedQuestion) -> None: ...

    @after("describe")
    @before("describe")
    def third(self, question: ProposedQuestion) -> None: ...

    @around("admit")
    async def fourth(
        self, question: ProposedQuestion, call_on: CallOn[ProposedQuestion]
    ) -> None: ...

    @property
    def never_read(self) -> object:
        raise AssertionError


def test_hooks_run_in_order_of_declaration() -> None:
    found = [(hook.moment, hook.stage.name, hook.method) for hook in hooks_of(Derived())]
    assert found == [
        ("before", "describe", "first"),
        ("after", "describe", "third"),
        ("before", "describe", "third"),
        ("around", "admit", "fourth"),
    ]


@pytest.mark.parametrize(
    ("plugin", "says"),
    [(Base, r"So write Base\(\)"), (object(), "has no hooks"), (None, "has no hooks")],
)
def test_non_plugin_object_is_refused_with_explanation(plugin: object, says: str) -> None:
    with pytest.raises(BadPlugin, match=says):
        hooks_of(plugin)


ORDER = schema_of(
    {
        "type": "object",
        "properties": {
            "note": {"type": "string"},
            "mail": {"type": "string", "format": "email"},
            "count": {"type": "integer"},
            "is_urgent": {"type": "boolean"},
            "size": {"type": "string", "enum": ["small", "large"]},
            "extras": {"type": "array", "items": {"enum": ["salt", "oil"]}},
        },
    }
)
TYPED: dict[str, Any] = {
    "note": "Pay with 4111, please",
    "mail": "ann@example.com",
    "count": 1,
    "is_urgent": False,
    "size": "large",
    "extras": ["salt", "oil"],
}


@pytest.mark.parametrize(
    "changed",
    [
        {"note": "Pay with ****, please"},
        {"note": "Pay, please"},
        {"note": ""},
        {"extras": ["oil"]},
        {"extras": []},
        {},
    ],
)
def test_hook_may_shorten_or_remove_answer_fields(changed: dict[str, Any]) -> None:
    must_only_reduce(ORDER, TYPED, {**TYPED, **changed})
    must_only_reduce(ORDER, TYPED, changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"note": "Pay with 4112, please"},
        {"note": "Pay with 4111, please!"},
        {"note": "please"[::-1]},
        {"note": None},
        {"mail": "ann@example.co"},
        {"count": 0},
        {"count": True},
        {"is_urgent": True},
        {"is_urgent": 0},
        {"size": "small"},
        {"extras": ["pepper"]},
        {"extras": ["salt", "salt", "salt"]},
    ],
)
def test_hook_cannot_change_answer_of_person(changed: dict[str, Any]) -> None:
    with pytest.raises(HookMisused, match=f"changes {next(iter(changed))}"):
        must_only_reduce(ORDER, TYPED, {**TYPED, **changed})


def test_hook_cannot_add_field_left_out_by_person() -> None:
    with pytest.raises(HookMisused, match="changes note"):
        must_only_reduce(ORDER, {"count": 1}, {"count": 1, "note": ""})


def test_repr_of_hook_arguments_hides_question_and_answer() -> None:
    about: dict[str, Any] = {
        **dict.fromkeys(("server", "tool", "client", "client_id", "owner"), "x"),
        "kind": "form",
        "is_for_user": False,
        "id": "e1",
        "message": "Your address?",
        "arguments": {"to": "Elm Street"},
    }
    now = datetime(2026, 3, 1, tzinfo=UTC)
    given = GivenAnswer(**about, by="OnPage", content={"street": "Elm Street"})
    settled = SettledQuestion(
        **about,
        asked_at=now,
        settled_at=now,
        status="accepted",
        is_late=False,
        by="OnPage",
        content={"street": "Elm Street"},
    )
    proposed = {name: value for name, value in about.items() if name != "id"}
    asked = ProposedQuestion(**proposed, timeout=timedelta(minutes=5))
    for each in (given, settled, asked):
        assert "Elm Street" not in repr(each)
        assert "address" not in repr(each)
