"""Names in docstrings, comments and reprs: what looks like code exists in the code."""

import ast
import builtins
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.cli import HOUSE

SOURCES = {
    path.relative_to(HOUSE).as_posix(): path
    for package in ("flows", "webapp")
    for path in sorted((HOUSE / package).rglob("*.py"))
}
DOTTED = re.compile(r"(?<![\w./:@-])(?:flows|webapp)(?:\.[A-Za-z_]\w*)+")
# The name of another library's exception is written with its module, and is not checked.
RAISES = re.compile(r"\bRaises `?([A-Z]\w+)")
RAISES_SECTION = re.compile(r"(?ms)^ *Raises:\n(.*?)(?:\n\s*\n|\Z)")
RAISED = re.compile(r"(?m)^ +([A-Z]\w+):")
ERRORS = {name for name in dir(builtins) if name[0].isupper()}


@cache
def tree_of(path: str) -> ast.Module:
    return ast.parse(SOURCES[path].read_text("utf-8"))


def names_in(body: list[ast.stmt]) -> dict[str, ast.AST]:
    """Return what a module or class binds: classes, functions, assigned and imported names."""
    found: dict[str, ast.AST] = {}
    for node in body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found[name] = node
            case ast.AsyncFunctionDef(name=name):
                found[name] = node
            case ast.Import() | ast.ImportFrom():
                found |= {one.asname or one.name: node for one in node.names}
            case ast.Assign(targets=targets):
                for target in targets:
                    found |= {
                        each.id: node for each in ast.walk(target) if isinstance(each, ast.Name)
                    }
            case ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node
            case ast.If(body=inner, orelse=other):
                found |= names_in(inner) | names_in(other)
            case _:
                pass
    return found


def module_at(parts: list[str]) -> str | None:
    path = "/".join(parts)
    return next((each for each in (f"{path}.py", f"{path}/__init__.py") if each in SOURCES), None)


def exists(dotted: str) -> bool:
    """Return True for a module, or for a name (of a class) in one."""
    parts = dotted.split(".")
    for size in range(len(parts), 0, -1):
        if path := module_at(parts[:size]):
            found: ast.AST | None = None
            body = tree_of(path).body
            for part in parts[size:]:
                found = names_in(body).get(part)
                if found is None:
                    return False
                if isinstance(found, ast.ImportFrom):
                    return True  # defined elsewhere
                body = found.body if isinstance(found, ast.ClassDef) else []
            return True
    return Path(HOUSE / "/".join(parts)).is_dir()


def prose_of(path: str) -> Iterator[tuple[int, str]]:
    """Yield the docstrings and comments of a module with their lines."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.lineno, str(node.value.value)
    with SOURCES[path].open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


# finding: XH8
def test_dotted_names_in_docstrings_and_comments_exist() -> None:
    wrong = [
        f"{path}:{line}: {name}"
        for path in SOURCES
        for line, text in prose_of(path)
        for name in DOTTED.findall(text)
        if not exists(name.removesuffix(".py"))
    ]
    assert wrong == []


@cache
def bound_in(path: str) -> frozenset[str]:
    """Return every name that a module defines or imports, also inside its functions."""
    nodes = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.stmt)]
    return frozenset(names_in(nodes))


def imported_by(path: str) -> Iterator[str]:
    """Yield the modules of this project that a module imports from."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{one.name}" for one in node.names)):
                if found := module_at(name.split(".")):
                    yield found


# finding: XH5
def test_exceptions_in_docstrings_are_known_to_the_module_or_to_one_that_it_imports() -> None:
    shared = bound_in("flows/errors.py") | ERRORS
    wrong = []
    for path in SOURCES:
        known = shared.union(bound_in(path), *map(bound_in, imported_by(path)))
        for line, text in prose_of(path):
            sections = "\n".join(RAISES_SECTION.findall(text))
            raised = (*RAISES.findall(text), *RAISED.findall(sections))
            wrong += [f"{path}:{line}: {name}" for name in raised if name not in known]
    assert wrong == []


# finding: XH7
def test_repr_begins_with_the_name_of_its_class() -> None:
    wrong = []
    for path in SOURCES:
        for owner in ast.walk(tree_of(path)):
            if not isinstance(owner, ast.ClassDef):
                continue
            shown = names_in(owner.body).get("__repr__")
            for text in ast.walk(shown) if shown else ():
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    named = re.match(r"([A-Z]\w+)\(", text.value)
                    if named and named[1] != owner.name:
                        wrong.append(f"{path}:{text.lineno}: {owner.name} is shown as {named[1]}")
    assert wrong == []
