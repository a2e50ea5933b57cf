"""Former defects that an outsider could see, tried again against a served process, with counts.

Each module is a row: `FINDING` is the defect's id, and `reproduce(times)` yields, for each try, a
case and whether it passed. `python -m tests.outside` prints counts. The tests try each row once.
"""
