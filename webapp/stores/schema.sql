-- Version 1 of the file's layout (PRAGMA user_version). Times are microseconds since 1970, UTC.
CREATE TABLE records (
    number        INTEGER PRIMARY KEY,
    owner         TEXT NOT NULL,
    kind          TEXT NOT NULL,
    id            TEXT NOT NULL,
    status        TEXT NOT NULL,
    key           TEXT,
    due_at        INTEGER,
    erase_at      INTEGER,
    claimed_until INTEGER,             -- somebody is at work on what was due; every write clears it
    version       INTEGER NOT NULL,
    sealed        BLOB NOT NULL,
    UNIQUE (kind, id, owner)           -- in this order it serves pages by id, too
);
CREATE UNIQUE INDEX records_by_key ON records (owner, kind, key) WHERE key IS NOT NULL;
CREATE INDEX records_by_due_at ON records (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX records_by_erase_at ON records (erase_at) WHERE erase_at IS NOT NULL;

-- One row for each commit, which the watches of other processes read. Old rows are deleted. An
-- index of the changes on `records` would have to be rewritten with every record.
CREATE TABLE commits (
    sequence INTEGER PRIMARY KEY,      -- without a gap: SQLite gives the largest plus one
    opening  INTEGER NOT NULL,         -- who committed
    records  TEXT NOT NULL             -- JSON: [[owner, kind, id], ...]
);
