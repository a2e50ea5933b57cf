"""Draw the faults: `python -m tests.mutation.draw`.

This was run once, and faults.json has the result. It needs cosmic-ray (8.7; not in the constraints:
`pip install cosmic-ray`), whose operators find the possible changes of a module. A place in the
code is drawn first, then one of its possible changes. Otherwise `+`, which can become eleven other
operators, would be drawn eleven times as often as `not`. Changes of annotations, docstrings and
code that only a type checker reads are left out.
"""

import ast
import importlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final

from tests.mutation.fault import PLANTED, Fault, Location, sources_of
from tests.mutation.subjects import SUBJECTS, modules_of

SEED: Final = 20260301
OF_EACH_SUBJECT: Final = 20
NEIGHBOURS_AT_LEAST: Final = 2
NEIGHBOURS_AT_MOST: Final = 8
FAULTS: Final = Path(__file__).with_name("faults.json")

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
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


def replace_annotation(node: ast.AnnAssign) -> ast.AnnAssign:
    node.annotation = ast.Name("object", ast.Load())
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
    module: str, subject: str, operator: str, mutated: str, sources: Mapping[str, list[str]]
) -> Fault | None:
    """Return the changed lines, with as many neighbours as are needed to find them."""
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
            subject=subject,
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


def draw_from(subject: str, chance: random.Random) -> list[Fault]:
    sources = sources_of()
    codes = {module: "\n".join(sources[module]) for module in modules_of(subject)}
    found: dict[tuple[str, Any], list[_Change]] = {}
    for module, code in codes.items():
        for place, change in places(code):
            found.setdefault((module, place), []).append(change)
    order = sorted(found, key=repr)
    chance.shuffle(order)
    drawn: list[Fault] = []
    for module, place in order:
        change = chance.choice(found[module, place])
        mutated = changed(codes[module], change)
        made = mutated and fault_of(module, subject, change[0], mutated, sources)
        if made:
            drawn.append(made)
        if len(drawn) == OF_EACH_SUBJECT:
            break
    return drawn


def main() -> None:
    chance = random.Random(SEED)  # noqa: S311 -- repeatable, and no secret
    drawn = [fault for subject in SUBJECTS for fault in draw_from(subject, chance)]
    faults = [replace(fault, id=f"F{number:03}") for number, fault in enumerate(drawn, 1)]
    existing = json.loads(FAULTS.read_text())["faults"] if FAULTS.exists() else []
    planted = [fault for fault in existing if fault["operator"] == PLANTED]
    frozen = {
        "seed": SEED,
        "tool": "cosmic-ray 8.7.0",
        "modules": {subject: modules_of(subject) for subject in SUBJECTS},
        "faults": [*(fault.written() for fault in faults), *planted],
    }
    FAULTS.write_text(json.dumps(frozen, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(len(faults), "faults")  # noqa: T201 -- says what it did


if __name__ == "__main__":
    main()
