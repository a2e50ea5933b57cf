"""A check that the tests still find 200 frozen faults.

`draw` drew the faults once: 20 for each of ten subjects (`subjects` has their modules), from the
changes that cosmic-ray's operators can make there, with the seed in faults.json. Each fault is
stored as text: the original lines, their neighbours, and the changed lines. So a fault is found
again after lines have moved, even to another module. A fault that cannot be placed any more is
reported by its id. outcomes.json has an outcome for each fault, from a run of all tests that reach
the fault's line: the test that killed the fault, or that it survived. A survivor can have a note.

    python -m tests.mutation                     is each still killed by the test that killed it?
    python -m tests.mutation.reach MAP           which tests reach which line (minutes; coverage)
    python -m tests.mutation --reach MAP         is each killed by any of those?
    python -m tests.mutation --tests PATH ...    is each killed by these files and folders?

The faults P001 and following, with the operator `Planted`, are written by people: each breaks a
promise that no test checked until a reviewer broke it. Add your fault to faults.json with the next
id, then record the test that kills it: `python -m tests.mutation --only P005 --tests PATH --write`.
`draw` keeps these faults, and pytest fails if one of them no longer has a place in the code.

pytest runs no other part of this package: the trials take minutes, and drawing and measuring need
two tools that are not installed for the tests.
"""
