-- The ways by which rows of the view `writes` become changes of records: see sqlite_batch.py. A row's
-- version is the one that was read, and 0 for a new record; what is no record has a negative one.
CREATE TEMP VIEW writes AS
SELECT owner, kind, id, status, key, due_at, erase_at, version, sealed FROM records;

CREATE TEMP TRIGGER first_version INSTEAD OF INSERT ON writes WHEN NEW.version = 0 BEGIN
    INSERT INTO records (owner, kind, id, status, key, due_at, erase_at, version, sealed)
    VALUES (
        NEW.owner, NEW.kind, NEW.id, NEW.status, NEW.key, NEW.due_at, NEW.erase_at, 1, NEW.sealed
    );
END;

-- An UPDATE that names an indexed column rewrites the index even where the value stays, and takes
-- twice as long. So the first one names none, and where that has changed the version, the second
-- finds it no more.
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

-- What is over lets go of its key and its time.
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

-- The opening stands in place of the owner, and in place of the time how many commits are
-- remembered. The oldest are forgotten many at once.
CREATE TEMP TRIGGER remember_commit INSTEAD OF INSERT ON writes WHEN NEW.version = -2 BEGIN
    INSERT INTO commits (opening, records) VALUES (NEW.owner, NEW.sealed);
    DELETE FROM commits
    WHERE sequence <= last_insert_rowid() - NEW.due_at AND last_insert_rowid() % 64 = 0;
END;
