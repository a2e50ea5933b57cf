"""Extract the texts of the pages into the translation catalogues in `webapp/catalogues`.

`python -m tests.messages` (or `make messages`) adds new texts to each catalogue and removes texts
that the pages no longer contain. `python -m tests.messages fr` begins a catalogue for French.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from io import BytesIO
from itertools import chain
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po
from jinja2.ext import babel_extract

from flows.providers import PROVIDERS
from webapp.languages import ASKERS, CATALOGUES, FROM_CODE, JUST_NOW, named_asker
from webapp.notifications.delivery import LINES, SENTENCES

ROOT = Path(__file__).resolve().parents[1]
_FAILURES = ("Failed", "MetadataRefused", "SetupFault", "Unreachable")
_OPTIONS = {"trim_blocks": "1", "lstrip_blocks": "1", "newstyle_gettext": "1", "silent": "0"}
_KEYWORDS = ("_", "gettext", "ngettext")
_SENTENCE = re.compile(r"(?:[A-Z]|%\().*[.?]|you, on this computer", re.DOTALL)
_CREATED = datetime(2025, 1, 1, tzinfo=UTC)  # the same at each extraction

Finder = Callable[[ast.AST], Iterator[str]]


def english_templates() -> list[Path]:
    """Return the templates that are not translated."""
    return sorted((ROOT / "templates").glob("operator*.html"))


def template_texts() -> Iterator[tuple[str | tuple[str, str], str]]:
    """Yield the texts of the templates. Texts that name the asker are yielded for each of `ASKERS`.

    The pages of operators are in English, as are the log and the command line.
    """
    for path in sorted(set((ROOT / "templates").glob("*.html")) - set(english_templates())):
        with path.open("rb") as file:
            found = list(babel_extract(file, _KEYWORDS, [], _OPTIONS))
        for _, _, text, _ in found:
            texts = text if isinstance(text, tuple) else (text,)
            for for_user in (False, True):
                ids = [named_asker(one, for_user=for_user) for one in texts if one]
                yield ids[0] if len(ids) == 1 else (ids[0], ids[1]), path.name


def code_texts() -> Iterator[tuple[str, str]]:
    """Yield the texts of the code that pages show."""
    for pattern, find in _SOURCES:
        paths = sorted(ROOT.glob(pattern))
        assert paths, pattern
        for path in paths:
            for text in find(ast.parse(path.read_text("utf-8"))):
                yield text, str(path.relative_to(ROOT))
    for provider in PROVIDERS.values():
        where = f"flows/providers/{provider.name}"
        for words in (*provider.scope_words.values(), provider.tenant_label):
            if words:
                yield words, where


def extracted() -> Catalog:
    """Return all texts, without translations."""
    found = Catalog(charset="utf-8", creation_date=_CREATED)
    for text in (*ASKERS, JUST_NOW):
        found.add(text, locations=[("webapp/languages.py", 0)])
    for texts, where in template_texts():
        found.add(texts, locations=[(f"templates/{where}", 0)])
    for text in (*chain.from_iterable(SENTENCES.values()), *LINES.values()):
        found.add(text, locations=[("webapp/notifications/delivery.py", 0)])
    for text, where in code_texts():
        found.add(text, context=FROM_CODE, locations=[(where, 0)])
    return found


def updated(path: Path) -> str:
    """Return the catalogue of a language with the current texts."""
    locale = path.stem.replace("-", "_")
    catalogue = Catalog(locale=locale, charset="utf-8")
    if path.exists():
        with path.open("rb") as file:
            catalogue = read_po(file, locale=locale)
    catalogue.update(extracted(), no_fuzzy_matching=True)
    catalogue.obsolete.clear()
    assert catalogue.locale is not None, path
    written = BytesIO()
    write_po(written, catalogue, width=0, omit_header=True, include_lineno=False)
    head = (
        f"# {catalogue.locale.english_name} texts of the pages: docs/how-to/pages.md",
        'msgid ""',
        'msgstr ""',
        rf'"Language: {path.stem}\n"',
        r'"Content-Type: text/plain; charset=utf-8\n"',
        rf'"Plural-Forms: {catalogue.plural_forms}\n"',
    )
    return "\n".join((*head, "", written.getvalue().decode().lstrip("\n")))


def _text_of(node: ast.expr) -> str | None:
    """Return a string as a message: an f-string's values become placeholders."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if not isinstance(node, ast.JoinedStr):
        return None
    parts: list[str] = []
    names: dict[str, str] = {}  # the expression of each placeholder
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            value = ast.unparse(part.value)
            name = re.findall(r"[A-Za-z]\w*", value.partition("(")[0])[-1]
            while names.setdefault(name, value) != value:
                name += "_"
            parts.append(f"%({name})s")
        else:
            assert isinstance(part, ast.Constant)
            parts.append(str(part.value))
    return "".join(parts)


def _sentences(tree: ast.AST) -> Iterator[str]:
    """Yield the sentences of a tree, other than docstrings and log lines."""
    if isinstance(tree, ast.Expr | ast.Raise):
        return
    text = _text_of(tree) if isinstance(tree, ast.expr) else None
    if text is not None:
        if _SENTENCE.fullmatch(text):
            yield re.sub(r"\{(\w+)\}", r"%(\1)s", text)
        return
    for child in ast.iter_child_nodes(tree):
        yield from _sentences(child)


def _named(*names: str) -> Finder:
    """Find the sentences of these constants and functions."""

    def find(tree: ast.AST) -> Iterator[str]:
        for node in ast.walk(tree):
            is_function = (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in names
            )
            targets = (
                node.targets
                if isinstance(node, ast.Assign)
                else [node.target]
                if isinstance(node, ast.AnnAssign)
                else []
            )
            if is_function or any(isinstance(one, ast.Name) and one.id in names for one in targets):
                yield from _sentences(node)

    return find


def _faults(tree: ast.AST) -> Iterator[str]:
    """Yield the sentences of faults, including those in a variable `message`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Fault":
            for keyword in node.keywords:
                yield from _sentences(keyword.value)
    yield from _named("message", "_missing")(tree)


def _failures(tree: ast.AST) -> Iterator[str]:
    """Yield the messages of failures, without the full stop that the page adds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in _FAILURES and node.args:
            for text in _sentences(node.args[0]):
                yield text.removesuffix(".")


def _refusals(tree: ast.AST) -> Iterator[str]:
    """Yield the messages of `refused`, including those that its callers pass as `otherwise`."""
    for text in _named("refused")(tree):
        if "otherwise" not in text:
            yield text.removesuffix(".")
    for node in ast.walk(tree):
        is_given = isinstance(node, ast.keyword) and node.arg == "otherwise"
        is_set = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "otherwise"
        if isinstance(node, ast.keyword | ast.Assign) and (is_given or is_set):
            beginning = _text_of(node.value)
            yield from [f"{beginning} (%(shown)s)"] if beginning else []


def _names(tree: ast.AST) -> Iterator[str]:
    """Find the labels of answers and secrets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if ast.unparse(target) in ("ONE_TEXT", "_SECRETS"):
                assert node.value is not None
                found = ast.literal_eval(node.value)
                yield from (found,) if isinstance(found, str) else found


_SOURCES: tuple[tuple[str, Finder], ...] = (
    ("flows/schema/fields.py", _sentences),
    ("flows/schema/schema.py", _faults),
    ("flows/schema/schema.py", _names),
    ("webapp/kinds/rules.py", _faults),
    ("webapp/kinds/rules.py", _named("NOT_CHECKED", "_broken")),
    ("webapp/pages/builder_forms.py", _names),
    ("webapp/pages/form.py", _faults),
    ("webapp/pages/form.py", _named("_LINES_HELP")),
    ("flows/elicitation/user_code.py", _named("PAGE_WORDS", "USERS_PAGE_WORDS")),
    *(
        (
            "webapp/routes/openers.py",
            _named(name),
        )
        for name in (
            *("_HERE_ONLY", "_PAIR", "_SHOWN_HERE_ONLY", "_SHOWN_TO_PAIRED"),
            *("_SHOWN_TO_SIGNED_IN", "_APPLICATION"),
        )
    ),
    ("webapp/identity/identity.py", _named("viewer")),
    ("webapp/routes/answers.py", _named("_REFUSALS", "_REFUSED")),
    ("flows/oauth/*.py", _failures),
    ("flows/oauth/*.py", _refusals),
    ("flows/payments/responses.py", _failures),
)


def main(tags: list[str]) -> None:
    """Write each catalogue, and those of new languages."""
    for path in sorted({*CATALOGUES.glob("*.po"), *(CATALOGUES / f"{tag}.po" for tag in tags)}):
        path.write_text(updated(path), "utf-8")
        print(path)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
