"""Tests that every ability and defect of other systems is cited by a test here.

A test cites what it covers in a comment on its own line, in the test or directly above it. A
comment between two definitions is about the whole module. `parity: F12`, `finding: S1, S2` and
`defect: lynq early completion` are citations. T is Toolshed, F FrontMCP, E Tesseron, L lynq.
"""

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent.parent
CITATION = re.compile(r"^\s*# (parity|defect|finding): (.*\S)\s*$")
ROWS = {
    "T": 11,
    "F": 16,
    "E": 11,
    "L": 13,
}
# Findings of trials from outside: S security, R nothing lost, M money, A authors, P speed, T tests,
# H machines, I identity providers, C the proofs of each kind.
FOUND = {"S": 32, "R": 19, "M": 11, "A": 10, "H": 8, "I": 3, "P": 1, "T": 4, "C": 1}
FINDINGS = [f"{about}{number}" for about, last in FOUND.items() for number in range(1, last + 1)]
FINDINGS += ["I4", "I5", "I6", "I8", "I9", "I10"]
# Findings of the third review: XS security, XM money, XO identity providers, XC clients, XQ
# frameworks, XV incidents, XB stores, XD state, XA authors, XP pages, XH the tests.
THIRD_LOOK = {
    "XA": (1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20),
    "XB": (1, 2, 3, 4, 5, 6, 7),
    "XC": (1, 2, 3, 4, 5, 6, 7, 8, 9),
    "XD": (1, 2, 3, 4, 5, 6),
    "XH": (1, 2, 3, 5, 7, 8, 10),
    "XM": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10),
    "XO": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
    "XP": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19),
    "XQ": (1, 2, 3, 4, 5, 7, 10, 11),
    "XS": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
    "XV": (1, 2, 3, 4, 5, 6, 7, 8),
}
FINDINGS += [f"{about}{number}" for about, numbers in THIRD_LOOK.items() for number in numbers]
NOT_YET = {"A8"}
DUE = [f"{system}{number}" for system, last in ROWS.items() for number in range(1, last + 1)]
DEFECTS = [
    "lynq early completion",
    "lynq late completion",
    "lynq two waiters on one id",
    "lynq cancel leaves the waiter",
    "lynq failed send leaves the entry",
    "lynq limit of 60 seconds",
    "lynq replayed state",
    "lynq state without expiry",
    "lynq state of an unknown session",
    "lynq no PKCE",
    "lynq access_denied releases nobody",
    "lynq cancelled payment releases nobody",
    "lynq somebody else's checkout",
    "lynq replayed return pays again",
    "lynq cost grows with the square",
    "frontmcp no URL is sent",
    "frontmcp unvalidated content",
    "frontmcp subscribes after sending",
    "frontmcp another session answers",
    "frontmcp second question gets the first answer",
    "toolshed unauthenticated resolve",
    "tesseron nested items unchecked",
    "tesseron limit of 60 seconds",
    "mcp-authkit forwarded link",
    "mcp-authkit two callbacks two exchanges",
    "mcp-authkit callback after the timeout",
    "mcp-authkit denied looks like timed out",
    "mcp-authkit raw state is logged",
    "paymcp fractions are cut",
    "paymcp yen have no cents",
    "paymcp no idempotency key",
    "paymcp no webhooks",
    "paymcp session id leaves",
]


@cache
def citations() -> tuple[tuple[str, str, bool], ...]:
    """Return each citation: its kind, its id, and whether it is inside a test."""
    found = list[tuple[str, str, bool]]()
    for path in TESTS.rglob("test_*.py"):
        lines = path.read_text("utf-8").splitlines()
        matches = [(number, CITATION.match(line)) for number, line in enumerate(lines, start=1)]
        here = [(number, match[1], match[2]) for number, match in matches if match]
        if here:
            inside = _lines_of_tests("\n".join(lines))
            found += [
                (of, id, number in inside) for number, of, ids in here for id in ids.split(", ")
            ]
    return tuple(found)


def _lines_of_tests(text: str) -> set[int]:
    """Return the numbers of all lines except those of functions that are not tests."""
    tree = ast.parse(text)
    helpers = {
        number
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("test_")
        for number in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    return {*range(1, text.count("\n") + 2)} - helpers


def cited(of: str) -> set[str]:
    return {id for about, id, is_in_a_test in citations() if about == of and is_in_a_test}


def test_every_ability_of_other_systems_has_a_test() -> None:
    shown = cited("parity")
    assert [row for row in DUE if row not in shown] == []


def test_every_defect_of_other_systems_has_a_test() -> None:
    shown = cited("defect")
    assert [defect for defect in DEFECTS if defect not in shown] == []


def test_every_external_finding_has_a_test() -> None:
    shown = cited("finding")
    assert [row for row in FINDINGS if row not in shown | NOT_YET] == []
    assert shown & NOT_YET == set()


def test_every_citation_is_known_and_within_a_test() -> None:
    # finding: T2
    known = {"parity": {*DUE}, "defect": {*DEFECTS}, "finding": {*FINDINGS}}
    assert [
        (of, id) for of, id, is_in_a_test in citations() if id not in known[of] or not is_in_a_test
    ] == []
