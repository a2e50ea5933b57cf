"""Former defects that an outsider could see: each is tried again, several times, at a real server.

Each module is a row: `FINDING` is the defect's id, and `reproduce(times)` yields, for each try, a
case and whether it passed. `python -m tests.outside` prints counts. The tests try each row once.
"""
