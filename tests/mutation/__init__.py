"""Are the tests as strong as they were? 200 faults, frozen, that they have to kill.

`draw` drew them once, 20 of each of ten subjects (`subjects` says which modules those stand in),
from what cosmic-ray's operators can change there, by the seed that faults.json names. Each is kept
as text: the lines as they were, with their neighbours, and what they become. So a fault is found
again when lines have moved, to another module too; one that cannot be placed any more is told by
its id. outcomes.json has, for each, the test that killed it when all that reach its line were run,
or that it survives, and why that may be.

    python -m tests.mutation                     is each still killed by the test that killed it?
    python -m tests.mutation.reach MAP           which tests reach which line (minutes; coverage)
    python -m tests.mutation --reach MAP         is each killed by any of those?
    python -m tests.mutation --tests PATH ...    is each killed by these files and folders?

The faults P001 and following, with the operator `Planted`, are written by people: each is a promise
that no test held until a reviewer broke it. Add yours to faults.json with the next id, then record
the test that kills it: `python -m tests.mutation --only P005 --tests PATH --write`. `draw` leaves
them in the file, and pytest fails if one no longer has a place in the code.

Nothing else of this is run by pytest: it takes minutes, and two tools that the tests need not have.
"""
