"""Defects that were once seen from outside, tried again against a served process, with counts.

Each module is a row: `FINDING` is its id, and `reproduce(times)` yields for each try a case and
whether it passed. `python -m tests.outside` prints counts. The test suite tries each row once.
"""
