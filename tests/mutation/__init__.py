"""A check that the tests still find frozen faults in every package of flows and webapp.

`draw` chose the faults at random from the changes that cosmic-ray's operators can make. Each
package has a share of the faults in proportion to its lines. faults.json stores the seed of each
draw and its first id. Each fault is stored as text: the original lines, their neighbours, and the
changed lines. So a fault is found again after lines have moved, even to another module. A fault
that cannot be placed any more is reported by its id. outcomes.json has an outcome for each fault:
the test that killed the fault, or that it survived all tests that run its line. A survivor has a
note that says why. A fault that makes a test hang counts as killed too (`timed out`), and its note
says what hangs. A fault without an outcome is undecided.

    python -m tests.mutation                     is each still killed by the test that killed it?
    python -m tests.mutation.reach MAP PATH ...  which of these tests run the line of which fault?
    python -m tests.mutation --reach MAP         is each killed by any of those?
    python -m tests.mutation --tests PATH ...    is each killed by these files and folders?

A fault that no test has killed yet is tried by the tests that import its module and those of its
package. `--only ID ...` selects faults, and `--write` records the outcomes.

The faults P001 and following, with the operator `Planted`, are written by people: each breaks a
behaviour that no test checked until a reviewer broke it. A fault with a `finding` undoes the
correction of that finding, and is killed by a test that cites it (`# finding: XS2`). Add your fault
to faults.json with the next id, then record the test that kills it: `python -m tests.mutation
--only P005 --tests PATH --write`.

`draw` keeps these faults, and pytest fails if one of them no longer has a place in the code.
pytest runs no other part of this package: the trials take minutes, and drawing needs a tool that
is not installed for the tests.
"""
