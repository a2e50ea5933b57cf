"""Tests of docstrings, comments, reprs and names: their first words, and names that must exist."""

import ast
import builtins
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

import pytest

PROJECT = Path(__file__).parent.parent
FOLDERS = ("flows", "webapp", "tests", "benchmarks", "examples", "docs")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
CLAUSE = re.compile(
    r"(What|Whether|Whoever|Whatever|Whose|Which|Who|That|Of|By|As|How|Where|When|With|Without|If"
    r"|For|From|To|In|On|At|Also|Else|One|Those|These|They|Their|Its?|Nobody|Nothing|None|No|All"
    r"|Every|Each|The same|Not|And|Or|But|So|Once|Only|Until|Till|Since|Because|Though|Ours?|Raises"
    r"|Told|Kept|Somebody)\b"
)
RAISED = re.compile(
    r"\bRaises? ((?:\w+\.)*[A-Z]\w+(?:(?:,| and|, and| or|, or) (?:\w+\.)*[A-Z]\w+)*)"
)
SECTION = re.compile(r"^Raises:\n((?:    .*\n?|\n)+)", re.MULTILINE)
QUOTED = re.compile(r"`([A-Za-z_][\w.]*)(?:\(\))?`")
DOTTED = re.compile(r"(?<![\w./:@-])(?:flows|webapp)(?:\.[A-Za-z_]\w*)+")
BY_OTHERS = {"IntegrityError", "BrokenResourceError"}  # errors of sqlite3 and anyio
# Words of this project's former dialect. A name says what its value is: `errors`, `expires_at`.
RETIRED = {
    *("afresh", "anew", "beside", "hear", "heard", "hears", "kept", "knew", "knows", "leg", "legs"),
    *("letters", "ours", "said", "theirs", "told"),
}
MAY_STAY = {
    *(("flows/elicitation/states.py", name) for name in ("kept", "leg")),  # stored fields
    ("flows/kinds/form.py", "can_be_kept"),  # a stored field
    ("flows/payments/receipt.py", "heard"),  # a stored field
    ("flows/payments/declared/declaration.py", "told"),  # a table of elicit.toml
    ("webapp/identity/sessions.py", "kept"),  # a field of a cookie
    ("webapp/mcp/leg.py", "PreparedLeg"),  # `leg` is in the glossary
    ("webapp/mcp/leg.py", "TaskLeg"),
    ("webapp/mcp/tasks.py", "task_leg_of"),
    ("webapp/operations/rows.py", "is_of_ours"),  # a field of the JSON that a command prints
    ("webapp/testing/received.py", "told"),  # a former name that still works
    *(("webapp/records/values.py", name) for name in ("not_kept", "not_kept_at", "said")),  # stored
}

# Phrases of that dialect, in any text: code, documents, pages, SQL, scripts.
PHRASES = re.compile(
    r"\b(?:(?:am|is|are|was|were|be|been|being|get|gets) told|(?:said|told|says?) (?:no|yes)"
    r"|a yes(?!.or.no)|a no|(?:is|are|was|were|be|been|being) kept"
    r"|gi(?:ves?|ving|ven) (?:(?:it|them|(?:the )?money) )?back|gave back|anew|afresh|beside"
    r"|of (?:ours|theirs)|whoever|looks? in for|ma(?:kes?|king|de) way|lets? go|line returns"
    r"|the letters|call(?:ed|s)? off|loose ends?|turned back|hears? of)\b",
    re.IGNORECASE,
)
MAY_BE_WRITTEN = {
    ("flows/payments/session.py", "whoever"),  # a text in stores of earlier versions
    ("tests/webapp/payments/test_payments_lost.py", "whoever"),
    ("tests/webapp/payments/test_unresolved.py", "loose end"),  # the stored name of a kind
    ("tests/webapp/records/test_earlier_store.py", "loose end"),
    ("webapp/kinds/decision.py", "whoever"),  # a stored reason
    ("webapp/records/values.py", "loose end"),
}
TEXTS = ("*.css", "*.html", "*.js", "*.lua", "*.md", "*.mjs", "*.py", "*.sql", "*.toml", "*.y*ml")

SOURCES = {
    path.relative_to(PROJECT).as_posix(): path
    for package in ("flows", "webapp")
    for path in sorted((PROJECT / package).rglob("*.py"))
}


@pytest.fixture(autouse=True, scope="module")
def _forget_trees() -> Iterator[None]:
    """Free the syntax trees. Otherwise they slow down each garbage collection in later tests."""
    yield
    tree_of.cache_clear()


class Docstring(NamedTuple):
    place: str
    text: str


def bound_by(node: ast.AST) -> str:
    """Return the name that a node binds, or "" if it binds none."""
    match node:
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name
        case ast.arg():
            return node.arg
        case ast.Name(ctx=ast.Store()):
            return node.id
        case ast.Attribute(ctx=ast.Store()):
            return node.attr
        case ast.alias(asname=str(name)) | ast.MatchAs(name=str(name)):
            return name
        case ast.ExceptHandler(name=str(name)):
            return name
        case _:
            return ""


def words_of(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


@cache
def read() -> tuple[tuple[Docstring, ...], frozenset[str], frozenset[tuple[str, str]]]:
    """Return all docstrings, every word in the code outside of prose, and names with retired words.

    A name with a retired word comes with the path of its module.
    """
    docstrings = list[Docstring]()
    words = set[str]()
    retired = set[tuple[str, str]]()
    for path in (path for folder in FOLDERS for path in sorted((PROJECT / folder).rglob("*.py"))):
        name = path.relative_to(PROJECT).as_posix()
        source = path.read_text("utf-8")
        lines = source.splitlines()
        for node in ast.walk(tree_of(name) if name in SOURCES else ast.parse(source)):
            if words_of(bound := bound_by(node)) & RETIRED:
                retired.add((name, bound))
            text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
            if text:
                assert isinstance(node, DOCUMENTED)
                first, last = node.body[0].lineno, node.body[0].end_lineno or 0
                docstrings.append(Docstring(f"{name}:{first}", text))
                lines[first - 1 : last] = [""] * (last - first + 1)
        code = (line.split("  # ")[0] for line in lines if not line.lstrip().startswith("#"))
        words.update(re.findall(r"\w+", "\n".join(code)))
    return tuple(docstrings), frozenset(words), frozenset(retired)


def raised_in(text: str) -> set[str]:
    """Return the names of the errors that a docstring says are raised."""
    names = {
        name.split(".")[-1]
        for found in RAISED.finditer(text)
        for name in re.findall(r"[\w.]*\b[A-Z]\w+", found[1])
    }
    if section := SECTION.search(text):
        names |= set(re.findall(r"^    ([A-Z]\w+):", section[1], re.MULTILINE))
    return names


def test_no_docstring_begins_with_clause_pronoun_or_negation() -> None:
    docstrings, _, _ = read()
    assert [one for one in docstrings if CLAUSE.match(one.text)] == []


def test_errors_raised_according_to_docstrings_exist() -> None:
    docstrings, words, _ = read()
    known = words | set(dir(builtins)) | BY_OTHERS
    missing = [(one.place, raised_in(one.text) - known) for one in docstrings]
    assert [(place, names) for place, names in missing if names] == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Raises Failed.", {"Failed"}),
        ("Read it. Raises Failed, Expired and errors.Gone if so.", {"Failed", "Expired", "Gone"}),
        ("Do.\n\nRaises:\n    Refused: If so.\n    Gone: Else.", {"Refused", "Gone"}),
    ],
)
def test_raised_errors_are_read_from_sentence_and_section(text: str, names: set[str]) -> None:
    assert raised_in(text) == names


def test_names_quoted_in_docstrings_exist() -> None:
    docstrings, words, _ = read()
    quoted = [(one.place, found[1]) for one in docstrings for found in QUOTED.finditer(one.text)]
    assert [(place, name) for place, name in quoted if not set(name.split(".")) <= words] == []


def test_names_have_no_retired_words() -> None:
    *_, retired = read()
    assert retired == MAY_STAY


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def what_she_said(): ...", {"what", "she", "said"}),
        ("RECORD_KEPT = 1", {"record", "kept"}),
        ("class ToldAccount: ...", {"told", "account"}),
        ("f(told=1, other=said.heard)", set[str]()),
        ("with a as beside: ...", {"beside"}),
        ("self.is_ours = 1", {"is", "ours"}),
        ("lambda theirs: 1", {"theirs"}),
        ("import a as leg", {"leg"}),
    ],
)
def test_words_of_bound_names_are_found(code: str, words: set[str]) -> None:
    assert (
        set[str]().union(*(words_of(bound_by(node)) for node in ast.walk(ast.parse(code)))) == words
    )


def test_texts_have_no_retired_phrases() -> None:
    folders = [PROJECT / name for name in (*FOLDERS, "deploy", "templates")]
    paths = {
        *(
            PROJECT / name
            for name in ("CONTRIBUTING.md", "README.md", "Makefile", "pyproject.toml")
        ),
        *(path for folder in folders for pattern in TEXTS for path in folder.rglob(pattern)),
    }
    found = {
        (path.relative_to(PROJECT).as_posix(), phrase.lower())
        for path in paths
        if "node_modules" not in path.parts and path != Path(__file__)
        for phrase in PHRASES.findall(path.read_text("utf-8"))
    }
    assert found == MAY_BE_WRITTEN


@pytest.mark.parametrize(
    ("text", "phrases"),
    [
        ("The tool is told, and a yes counts.", ["is told", "a yes"]),
        ("Answer a yes or no question.", []),
        ("It gives the money back, anew.", ["gives the money back", "anew"]),
        ("a_name_of_ours = besides", []),
    ],
)
def test_retired_phrases_are_found(text: str, phrases: list[str]) -> None:
    assert PHRASES.findall(text) == phrases


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
    """Return True if `dotted` names a module, a name in a module, or a member of its classes."""
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
                    return True  # the rest of the name is in the imported module
                body = found.body if isinstance(found, ast.ClassDef) else []
            return True
    return Path(PROJECT / "/".join(parts)).is_dir()


@cache
def prose_of(path: str) -> tuple[tuple[int, str], ...]:
    """Return the docstrings and comments of a module with their lines."""
    docstrings = [
        (node.lineno, cleandoc(str(node.value.value)))
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    ]
    with SOURCES[path].open("rb") as file:
        comments = [
            (token.start[0], token.string)
            for token in tokenize.tokenize(file.readline)
            if token.type == tokenize.COMMENT
        ]
    return (*docstrings, *comments)


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
def bound_in(path: str) -> set[str]:
    """Return every name that a module defines, imports or reads from an imported module."""
    nodes = [*ast.walk(tree_of(path))]
    read_names = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return read_names.union(names_in([node for node in nodes if isinstance(node, ast.stmt)]))


def imported_by(path: str) -> Iterator[str]:
    """Yield the modules of this project that a module imports from."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{one.name}" for one in node.names)):
                if found := module_at(name.split(".")):
                    yield found


# finding: XH5
def test_exceptions_in_docstrings_are_known_to_module_or_its_imports() -> None:
    shared = bound_in("flows/errors.py") | set(dir(builtins)) | BY_OTHERS
    wrong = []
    for path in SOURCES:
        known = shared.union(bound_in(path), *map(bound_in, imported_by(path)))
        for line, text in prose_of(path):
            wrong += [f"{path}:{line}: {name}" for name in raised_in(text) - known]
    assert wrong == []


# finding: XH7
def test_repr_begins_with_class_name() -> None:
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
