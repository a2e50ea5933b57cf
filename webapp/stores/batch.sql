-- The view `writes`, whose triggers turn inserted rows into changes of records: see sqlite_rows.py.
-- A row's version is the version that the caller read, or 0 for a new record. A negative version
-- marks a row that is not a record.
CREATE TEMP VIEW writes AS
SELECT owner, kind, id, status, key, due_at, erase_at, version, sealed FROM records;

CREATE TEMP TRIGGER first_version INSTEAD OF INSERT ON writes WHEN NEW.version = 0 BEGIN
    INSERT INTO records (owner, kind, id, status, key, due_at, erase_at, version, sealed)
    VALUES (
        NEW.owner, NEW.kind, NEW.id, NEW.status, NEW.key, NEW.due_at, NEW.erase_at, 1, NEW.sealed
    );
END;

-- An UPDATE that sets an indexed column rewrites the index even if the value does not change, and
-- takes twice as long. The first UPDATE therefore sets no indexed column. If it changed the row,
-- the row's version is different, and the second UPDATE does not find the row.
CREATE TEMP TRIGGER next_version INSTEAD OF INSERT ON writes
WHEN NEW.version > 0 AND (NEW.key IS NOT NULL OR NEW.due_at IS NOT NULL) BEGIN
    SELECT RAISE(ABORT, 'another version') WHERE NOT EXISTS (
        SELECT 1 FROM records
        WHERE owner = NEW.owner AND kind = NEW.kind AND id = NEW.id AND version = NEW.version
    );
    UPDATE records
    SET status = NEW.status, claimed_until = NULL, version = NEW.version + 1, sealed = NEW.sealed
    WHERE owner = NEW.owner AND kind = NEW.kind AND id = NEW.id AND version = NEW.version
        AND key IS NEW.key AND due_at IS NEW.due_at AND erase_at IS NEW.erase_at;
    UPDATE records
    SET status = NEW.status, key = NEW.key, due_at = NEW.due_at, erase_at = NEW.erase_at,
        claimed_until = NULL, version = NEW.version + 1, sealed = NEW.sealed
    WHERE owner = NEW.owner AND kind = NEW.kind AND id = NEW.id AND version = NEW.version;
END;

-- A record without a key and a due time has ended: release its key and its due time.
CREATE TEMP TRIGGER last_version INSTEAD OF INSERT ON writes
WHEN NEW.version > 0 AND NEW.key IS NULL AND NEW.due_at IS NULL BEGIN
    UPDATE records
    SET status = NEW.status, key = NULL, due_at = NULL, erase_at = NEW.erase_at,
        claimed_until = NULL, version = NEW.version + 1, sealed = NEW.sealed
    WHERE owner = NEW.owner AND kind = NEW.kind AND id = NEW.id AND version = NEW.version;
    SELECT RAISE(ABORT, 'another version') WHERE changes() = 0;
END;

CREATE TEMP TRIGGER release_key INSTEAD OF INSERT ON writes WHEN NEW.version = -1 BEGIN
    UPDATE records SET key = NULL
    WHERE owner = NEW.owner AND kind = NEW.kind AND id = NEW.id;
END;

-- In these rows, `owner` is the opening that commits, and `due_at` is the number of commits to
-- keep. Older commits are deleted with every 64th commit.
CREATE TEMP TRIGGER remember_commit INSTEAD OF INSERT ON writes WHEN NEW.version = -2 BEGIN
    INSERT INTO commits (opening, records) VALUES (NEW.owner, NEW.sealed);
    DELETE FROM commits
    WHERE sequence <= last_insert_rowid() - NEW.due_at AND last_insert_rowid() % 64 = 0;
END;
