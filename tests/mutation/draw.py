"""Draw new faults: `python -m tests.mutation.draw SEED`.

A fault stays if its code still exists and a test detected it. New faults replace the others. Each
package gets a share of all faults in proportion to its lines. faults.json stores the seed
and the first id of each draw. The draw needs cosmic-ray (8.7; not in the constraints: `pip install
cosmic-ray`), whose operators find the possible changes of a module. A place in the code is drawn
first, then one of its possible changes. Otherwise `+`, which can become eleven other operators,
would be drawn eleven times as often as `not`. Changes of annotations, docstrings, options of
dataclasses and structs, and other code that only a type checker reads, are left out.
"""

import ast
import importlib
import json
import random
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, Final

from tests.mutation.fault import DEAD, FAULTS, OUTCOMES, Fault, Location, faults_of
from tests.mutation.packages import package_of, shares, sources_of

COUNT: Final = 300
TOOL: Final = "cosmic-ray 8.7.0"
DRAWN: Final = "F"  # the first letter of the id of a drawn fault
NEIGHBOURS_AT_LEAST: Final = 2
NEIGHBOURS_AT_MOST: Final = 8
# No running code reads these. mypy checks all but `slots`.
OF_A_CLASS: Final = ("frozen", "kw_only", "slots")
FOR_CHECKERS: Final = ("final", "overload", "override")

_Lines = tuple[str, tuple[str, ...], tuple[str, ...]]
_Change = tuple[str, int]  # the operator's name, and the number of its occurrence in the module


class _Bared(ast.NodeTransformer):
    """Removes everything that no running code reads."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        is_alias = ast.unparse(node.annotation) == "TypeAlias"
        return None if is_alias else self.generic_visit(replace_annotation(node))

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_If(self, node: ast.If) -> ast.AST | None:
        is_for_checkers = ast.unparse(node.test) in ("TYPE_CHECKING", "not TYPE_CHECKING")
        return None if is_for_checkers else self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        made = [one for one in node.decorator_list if isinstance(one, ast.Call)]
        written = [one for one in made if ast.unparse(one.func) == "dataclass"]
        of_class: list[ast.ClassDef | ast.Call] = [node, *written]
        for one in of_class:
            one.keywords = [word for word in one.keywords if word.arg not in OF_A_CLASS]
        return self.generic_visit(without_checks(node))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(without_checks(node))

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(without_checks(node))


def replace_annotation(node: ast.AnnAssign) -> ast.AnnAssign:
    node.annotation = ast.Name("object", ast.Load())
    return node


def without_checks(
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef:
    node.decorator_list = [
        one for one in node.decorator_list if ast.unparse(one) not in FOR_CHECKERS
    ]
    return node


def bared(code: str) -> str:
    return ast.dump(_Bared().visit(ast.parse(code)))


def places(code: str) -> Iterator[tuple[tuple[Any, str], _Change]]:
    """Yield every possible change of a module, with its place and the operator's family."""
    plugins = importlib.import_module("cosmic_ray.plugins")
    trees = importlib.import_module("cosmic_ray.ast")
    nodes = [*trees.ast_nodes(trees.get_ast(code))]
    for name in plugins.operator_names():
        operator_class = plugins.get_operator(name)
        if operator_class.arguments():
            continue  # such an operator needs a variable's name
        operator = operator_class()
        positions = [where for node in nodes for where in operator.mutation_positions(node)]
        for occurrence, where in enumerate(positions):
            yield (where, name.split("/")[1].split("_")[0]), (name, occurrence)


def changed(code: str, change: _Change) -> str | None:
    """Return the changed module, or None if the change has no effect when it runs."""
    mutating = importlib.import_module("cosmic_ray.mutating")
    operator = importlib.import_module("cosmic_ray.plugins").get_operator(change[0])()
    try:
        mutated = str(mutating.mutate_code(code, operator, change[1]))
        return mutated if bared(mutated) != bared(code) else None
    except (AttributeError, SyntaxError):  # the tool fails at `except a.b:`
        return None


def fault_of(
    module: str, operator: str, mutated: str, sources: Mapping[str, list[str]]
) -> Fault | None:
    """Return the change as a fault, with as many neighbours as are needed to find its lines."""
    old, new = sources[module], mutated.split("\n")
    blocks = SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changes = [one for one in blocks if one[0] != "equal"]
    start, end = changes[0][1], changes[-1][2]
    if start == end:
        return None
    left = len(old[start]) - len(old[start].lstrip())
    for width in range(NEIGHBOURS_AT_LEAST, NEIGHBOURS_AT_MOST + 1):
        fault = Fault(
            id="",
            module=module,
            operator=operator.split("/")[1],
            before=tuple(line.strip() for line in old[max(0, start - width) : start]),
            original=tuple(line[left:] for line in old[start:end]),
            faulty=tuple(line[left:] for line in new[start : changes[-1][4]]),
            after=tuple(line.strip() for line in old[end : end + width]),
        )
        place = Location(module=module, start=start)
        if fault.place(sources) == place and fault.applied(old, place) == new:
            return fault
    return None


def draw(count: int, chance: random.Random, known: Collection[_Lines]) -> list[Fault]:
    """Draw faults of each package until it has its share. Skip faults that are in `known`."""
    sources = sources_of()
    drawn: list[Fault] = []
    for package, share in shares(sources, count).items():
        own = [module for module in sources if package_of(module) == package]
        of_package = draw_from({module: sources[module] for module in own}, chance, sources)
        new = (fault for fault in of_package if _lines(fault) not in known)
        drawn += islice(new, share)
    return drawn


def draw_from(
    own: Mapping[str, Sequence[str]], chance: random.Random, sources: Mapping[str, list[str]]
) -> Iterator[Fault]:
    """Yield faults of these modules: draw a module, weighted by its lines, then a place in it."""
    left: dict[str, list[list[_Change]]] = {}
    weights = {module: len(lines) for module, lines in own.items()}
    while weights:
        [module] = chance.choices([*weights], [*weights.values()])
        code = "\n".join(own[module])
        if module not in left:
            found: dict[Any, list[_Change]] = {}
            for place, change in places(code):
                found.setdefault(place, []).append(change)
            left[module] = [found[place] for place in sorted(found, key=repr)]
            chance.shuffle(left[module])
        if not left[module]:
            del weights[module]
            continue
        change = chance.choice(left[module].pop())
        mutated = changed(code, change)
        if mutated and (fault := fault_of(module, change[0], mutated, sources)):
            yield fault


def _lines(fault: Fault) -> _Lines:
    return fault.module, fault.before[-1:], fault.original


def main() -> None:
    seed = int(sys.argv[1])
    outcomes = json.loads(OUTCOMES.read_text())
    sources = sources_of()
    existing = faults_of()
    killed = [one for one in existing if outcomes.get(one.id, {}).get("outcome") in DEAD]
    stored = [one for one in killed if one.place(sources)]
    chance = random.Random(seed)  # noqa: S311 -- repeatable, and no secret
    drawn = draw(COUNT, chance, {_lines(fault) for fault in stored})
    first = 1 + max((int(one.id[1:]) for one in existing if one.id[0] == DRAWN), default=0)
    new = [replace(one, id=f"{DRAWN}{number}") for number, one in enumerate(drawn, first)]
    draws = [
        *json.loads(FAULTS.read_text())["draws"],
        {"seed": seed, "tool": TOOL, "first": new[0].id},
    ]
    faults = sorted([*stored, *new], key=lambda fault: fault.id)
    frozen = {"draws": draws, "faults": [fault.written() for fault in faults]}
    FAULTS.write_text(json.dumps(frozen, indent=1, ensure_ascii=False) + "\n", "utf-8")
    ids = {fault.id for fault in faults}
    left = {id: outcome for id, outcome in outcomes.items() if id in ids}
    OUTCOMES.write_text(json.dumps(left, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(len(new), "new faults,", len(stored), "kept")  # noqa: T201 -- says what it did


if __name__ == "__main__":
    main()
