"""What was once seen from outside, tried again against a served process, with counts.

Each module here is one row: `FINDING` is its id, and `reproduce(times)` yields a case and whether
it went right, for each try. `python -m tests.outside` prints counts; the suite tries each once.
"""
