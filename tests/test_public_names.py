"""Tests of the public names: their docstrings, type checks of samples, and former names."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import flows
from flows import errors
from flows.elicit import __all__ as VERBS  # noqa: N812 - a list of names
from tests.support.cli import PROJECT
from tests.support.samples import FILES
from webapp import testing
from webapp.testing import AskedPerson, elicit_person

API = (PROJECT / "docs/reference/api.md").read_text("utf-8")
DIRECTIVE = re.compile(
    r"^\.\. auto(function|class|exception|data):: ([\w.]+)(\(\))?$((?:\n +:.*)*)", re.MULTILINE
)
MEMBERS = re.compile(r":members: (.+)")
PROTOCOLS = {"webapp.Store"}  # implemented by an author, not called
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def found_at(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def public_callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield each callable that docs/reference/api.md shows, `elicit_person` and `Money`."""
    for kind, path, is_given, options in DIRECTIVE.findall(API):
        found = found_at(path)
        if kind == "function" or (kind == "class" and "Args:" in (found.__doc__ or "")):
            yield path, found
        if path in PROTOCOLS or kind in ("function", "data"):
            continue
        for name in next(iter(MEMBERS.findall(options)), "").split(", "):
            member = inspect.getattr_static(found, name, None) if name else None
            if callable(member) or isinstance(member, classmethod):
                yield f"{path}.{name}", getattr(found, name)
        assert is_given or kind != "class" or found.__doc__, path
    yield "webapp.testing.elicit_person", elicit_person
    yield "flows.Money", flows.Money


CALLABLES = dict(public_callables())


def section(text: str, name: str) -> str:
    """Return a section of a docstring in Google style, without its heading."""
    match = re.search(rf"^{name}:\n((?:    .*\n?|\n)+)", text + "\n", re.MULTILINE)
    return "" if match is None else textwrap.dedent(match[1])


def raised_in(function: Callable[..., Any]) -> set[str]:
    """Return the public errors that the body raises itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    names = {
        node.exc.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        and isinstance(node.exc, ast.Call)
        and isinstance(node.exc.func, ast.Name)
    }
    return {name for name in names if hasattr(errors, name) or name in ("TypeError", "ValueError")}


@pytest.mark.parametrize("path", CALLABLES)
def test_docstring_names_each_parameter_result_and_error(path: str) -> None:
    function = CALLABLES[path]
    text = inspect.getdoc(function) or ""
    signature = inspect.signature(function)
    expected = [
        f"*{name}" if parameter.kind in VARIADIC else name
        for name, parameter in signature.parameters.items()
        if name not in ("self", "_")
    ]
    assert re.findall(r"^(\*?\w+): ", section(text, "Args"), re.MULTILINE) == expected
    returns = signature.return_annotation
    is_class = isinstance(function, type)
    has_result = not is_class and returns not in (None, "None") and returns is not signature.empty
    assert (
        text.startswith(("Return", "Yield"))
        or "Returns:" in text
        or not has_result
        or ("Generator" in str(returns))
    )
    own = raised_in(function) if not is_class else set[str]()
    assert own <= set(re.findall(r"^(\w+): ", section(text, "Raises"), re.MULTILINE))
    assert text.rstrip().endswith((".", ")"))


def test_each_verb_and_each_public_name_is_on_the_page() -> None:
    shown = {path for _kind, path, *_ in DIRECTIVE.findall(API)}
    missing = [name for name in VERBS if f"flows.elicit.{name}" not in shown]
    named = {name.rpartition(".")[2] for name in shown} | set(re.findall(r"`(\w+)`", API))
    missing += [name for name in (*flows.__all__, "Elicit") if name not in named | {"elicit"}]
    assert missing == []


def test_each_public_attribute_of_asked_person_has_a_docstring() -> None:
    public = {name: value for name, value in vars(AskedPerson).items() if not name.startswith("_")}
    assert [name for name, value in public.items() if not inspect.getdoc(value)] == []


def test_samples_and_examples_pass_the_strict_type_check(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for example in (PROJECT / "examples").glob("*.py"):
        (tmp_path / example.name).write_text(example.read_text("utf-8"))
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(PROJECT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = ("-m", "pyright", "-p", str(tmp_path), "--pythonpath", sys.executable)
    ran = subprocess.run([sys.executable, *command], capture_output=True, check=False, text=True)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.parametrize(
    ("module", "former", "name"),
    [
        (flows, "ResultNotKept", "ResultNotStored"),
        (testing, "Told", "ReceivedQuestion"),
        (testing, "Heard", "ReceivedResult"),
    ],
)
def test_former_names_still_work_and_warn(module: ModuleType, former: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=name):
        assert getattr(module, former) is getattr(module, name)


@pytest.mark.parametrize("kind", [testing.UnexpectedQuestion, testing.StillOpen])
def test_former_name_of_question_in_error_still_works_and_warns(kind: type[AssertionError]) -> None:
    error = kind.__new__(kind)
    error.question = question = object()  # type: ignore[attr-defined]
    with pytest.warns(DeprecationWarning, match="question"):
        assert error.told is question  # type: ignore[attr-defined]
