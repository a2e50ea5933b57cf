-- The tables of a store in PostgreSQL, and all statements, which postgres_driver.py reads by name.
-- name: schema
-- `layout` is the version number of the tables. Code of an older layout can write as long as
-- `oldest_layout` is not greater than that code's own layout. A new layout that only adds to the
-- tables can therefore serve together with older code during a rolling upgrade.
CREATE TABLE elicit_store (
    is_only       boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    layout        integer NOT NULL,
    oldest_layout integer NOT NULL,
    fenced        text,                -- why writes are refused, or null
    checked_at    timestamptz,
    system_identifier text,            -- of the last database cluster
    timeline      integer              -- of the last server, as a number
);
INSERT INTO elicit_store (layout, oldest_layout) VALUES (2, 1);

CREATE TABLE elicit_records (
    owner         text COLLATE "C" NOT NULL,
    kind          text COLLATE "C" NOT NULL,
    id            text COLLATE "C" NOT NULL,
    status        text COLLATE "C" NOT NULL,
    key           text COLLATE "C",
    due_at        timestamptz,
    erase_at      timestamptz,
    claimed_until timestamptz,         -- end of the claim on due work; each write clears it
    version       bigint NOT NULL,
    sealed        bytea NOT NULL,
    PRIMARY KEY (kind, id, owner),     -- in this order, the index serves pages by id
    UNIQUE (owner, key, kind) DEFERRABLE INITIALLY IMMEDIATE -- a statement can move keys
) WITH (fillfactor = 80);
CREATE INDEX elicit_records_by_due_at ON elicit_records (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX elicit_records_by_erase_at ON elicit_records (erase_at) WHERE erase_at IS NOT NULL;
ALTER TABLE elicit_records ALTER COLUMN sealed SET STORAGE EXTERNAL; -- ciphertext does not compress

-- Carry out the writes of several callers. `writes` has a number for each record: records with the
-- same number belong to one write, and are all written or not at all. For each refused write,
-- return the existing record that it conflicts with, or nulls if the record to change does not
-- exist. Each statement of the function sees the data that was committed before the statement
-- began. The rows are therefore locked first, in the same order by every caller: no other session
-- can change them between the comparison and the write.
--
-- The comparison does not see an insert that another session has not committed yet. The constraints
-- wait for that insert. If it is committed, this call fails with 23505, and its caller repeats it.
--
-- PostgreSQL caches query plans, even a plan made while the table was empty and all indexes cost
-- the same. Each row is therefore looked up separately (LIMIT 1), by the first two columns of one
-- index. The third column is compared as an expression (|| ''), so that the planner cannot choose
-- another index for it.
--
-- A newer layout must keep this function as long as code that calls it can write.
CREATE FUNCTION elicit_write_1(
    writes integer[], owners text[], kinds text[], ids text[], statuses text[], keys text[],
    due_ats timestamptz[], erase_ats timestamptz[], versions bigint[], seals bytea[]
) RETURNS TABLE (
    refused integer, owner text, kind text, id text, status text, key text, due_at timestamptz,
    erase_at timestamptz, version bigint, sealed bytea
)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    losers integer[] := '{}';
BEGIN
    PERFORM FROM (
        SELECT * FROM unnest(owners, kinds, ids) AS asked (owner, kind, id)
        ORDER BY kind COLLATE "C", id COLLATE "C", owner COLLATE "C"
    ) AS asked
    CROSS JOIN LATERAL (
        SELECT FROM elicit_records AS stood
        WHERE stood.kind = asked.kind AND stood.id = asked.id
            AND stood.owner || '' = asked.owner
        LIMIT 1 FOR UPDATE
    ) AS locked;
    FOR refused, owner, kind, id, status, key, due_at, erase_at, version, sealed IN
        SELECT DISTINCT ON (conflict.write)
            conflict.write, conflict.owner, conflict.kind, conflict.id, conflict.status,
            conflict.key, conflict.due_at, conflict.erase_at, conflict.version, conflict.sealed
        FROM (
            SELECT asked.write, 1 AS rank, asked.place, stood.*
            FROM unnest(writes, owners, kinds, ids, versions)
                WITH ORDINALITY AS asked (write, owner, kind, id, version, place)
            LEFT JOIN LATERAL (
                SELECT * FROM elicit_records AS stood
                WHERE stood.kind = asked.kind AND stood.id = asked.id
                    AND stood.owner || '' = asked.owner
                LIMIT 1
            ) AS stood ON true
            WHERE asked.version <> coalesce(stood.version, 0)
            UNION ALL
            SELECT asked.write, 2, asked.place, holder.*
            FROM unnest(writes, owners, kinds, ids, keys)
                WITH ORDINALITY AS asked (write, owner, kind, id, key, place)
            CROSS JOIN LATERAL (
                SELECT * FROM elicit_records AS holder
                WHERE holder.owner = asked.owner AND holder.key = asked.key
                    AND holder.kind || '' = asked.kind
                LIMIT 1
            ) AS holder
            WHERE holder.id <> asked.id AND NOT EXISTS (
                SELECT FROM unnest(writes, kinds, ids) AS together (write, kind, id)
                WHERE together.write = asked.write AND together.kind = holder.kind
                    AND together.id = holder.id
            )
        ) AS conflict
        ORDER BY conflict.write, conflict.rank, conflict.place
    LOOP
        losers := losers || refused;
        RETURN NEXT;
    END LOOP;
    IF 0 < ANY (versions) THEN
        UPDATE elicit_records AS stood
        SET status = asked.status, key = asked.key, due_at = asked.due_at, erase_at = asked.erase_at,
            claimed_until = NULL, version = asked.version + 1, sealed = asked.sealed
        FROM unnest(writes, owners, kinds, ids, statuses, keys, due_ats, erase_ats, versions, seals)
            AS asked (write, owner, kind, id, status, key, due_at, erase_at, version, sealed)
        CROSS JOIN LATERAL (
            SELECT found.ctid AS place FROM elicit_records AS found
            WHERE found.kind = asked.kind AND found.id = asked.id
                AND found.owner || '' = asked.owner
            LIMIT 1
        ) AS locked
        WHERE stood.ctid = locked.place AND asked.version > 0 AND asked.write <> ALL (losers);
    END IF;
    IF 0 = ANY (versions) THEN
        INSERT INTO elicit_records (
            owner, kind, id, status, key, due_at, erase_at, version, sealed
        )
        SELECT asked.owner, asked.kind, asked.id, asked.status, asked.key, asked.due_at,
            asked.erase_at, 1, asked.sealed
        FROM unnest(writes, owners, kinds, ids, statuses, keys, due_ats, erase_ats, versions, seals)
            AS asked (write, owner, kind, id, status, key, due_at, erase_at, version, sealed)
        WHERE asked.version = 0 AND asked.write <> ALL (losers)
        ORDER BY asked.kind, asked.id, asked.owner;
    END IF;
END
$$;

-- Refuse every statement that changes records, in any version of elicit, unless it loads a copy.
CREATE FUNCTION elicit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('elicit.is_loading', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION USING ERRCODE = 'EL001', MESSAGE = (SELECT fenced FROM elicit_store);
    END IF;
    RETURN NULL;
END
$$;

-- name: server
SELECT
    current_setting('server_version_num')::integer AS version_number,
    current_setting('server_version') AS version,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('server_encoding') AS encoding,
    current_setting('default_transaction_isolation') AS isolation,
    pg_backend_pid() AS process,
    to_regclass('elicit_store') IS NOT NULL AS is_ours,
    to_regclass('elicit_records') IS NOT NULL AS has_records;

-- name: identity
SELECT
    (SELECT system_identifier::text FROM pg_control_system()) AS system,
    CASE WHEN pg_is_in_recovery() THEN NULL
        ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END AS timeline, -- hexadecimal
    pg_postmaster_start_time() AS started_at,
    pg_is_in_recovery() AS is_standby,
    current_setting('transaction_read_only') = 'on' AS is_read_only;

-- name: identity_without_timeline
-- For a hosted PostgreSQL that forbids the functions which the statement `identity` calls.
SELECT NULL AS system, NULL AS timeline, pg_postmaster_start_time() AS started_at,
    pg_is_in_recovery() AS is_standby,
    current_setting('transaction_read_only') = 'on' AS is_read_only;

-- name: is_stalled
-- True if a commit of this role has waited for a standby longer than a reachable standby needs.
SELECT EXISTS (
    SELECT FROM pg_stat_activity
    WHERE wait_event = 'SyncRep' AND datname = current_database() AND usename = current_user
        AND query_start < clock_timestamp() - interval '1500 ms'
);

-- name: replication
SELECT (SELECT count(*) FROM pg_stat_replication) AS standbys,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS synchronous_standby_names,
    current_setting('archive_mode') AS archive_mode;

-- name: access
SELECT ARRAY(
        SELECT rolname::text FROM pg_roles
        WHERE rolcanlogin AND NOT rolsuper AND rolname <> current_user AND (
            has_table_privilege(oid, 'elicit_records', 'INSERT, UPDATE, DELETE, TRUNCATE')
            OR has_any_column_privilege(oid, 'elicit_records', 'INSERT, UPDATE')
        )
        ORDER BY rolname LIMIT 6
    ) AS writers,
    current_user::text AS role,
    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS is_superuser,
    coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false) AS is_encrypted,
    host(inet_client_addr()) AS client;

-- name: seen_server
SELECT system_identifier, timeline FROM elicit_store;

-- name: note_server
UPDATE elicit_store SET system_identifier = $1, timeline = $2;

-- name: layout_2
-- Upgrade from layout 1. Code of layout 1 can serve at the same time: it writes neither column.
ALTER TABLE elicit_store
    ADD COLUMN IF NOT EXISTS system_identifier text, ADD COLUMN IF NOT EXISTS timeline integer;
UPDATE elicit_store SET layout = 2 WHERE layout < 2;

-- name: lock
SELECT pg_advisory_xact_lock(1701603683); -- "elic"

-- name: is_laid_out
-- Query the catalog, not to_regclass: a session caches that a name did not exist before it got the
-- lock.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class WHERE relname = 'elicit_store' AND pg_table_is_visible(oid)
);

-- name: layout
SELECT layout, oldest_layout FROM elicit_store;

-- name: clock
SELECT clock_timestamp();

-- name: any
SELECT EXISTS (SELECT FROM elicit_records);

-- name: write
SELECT * FROM elicit_write_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: read
SELECT found.*, asked.place
FROM unnest($1::text[], $2::text[], $3::text[])
    WITH ORDINALITY AS asked (owner, kind, id, place)
CROSS JOIN LATERAL (
    SELECT owner, kind, id, status, key, due_at, erase_at, version, sealed FROM elicit_records
    WHERE kind = asked.kind AND id = asked.id
        AND owner || '' = asked.owner
    LIMIT 1
) AS found;

-- name: find
SELECT found.*, asked.place
FROM unnest($1::text[], $2::text[], $3::text[])
    WITH ORDINALITY AS asked (owner, kind, key, place)
CROSS JOIN LATERAL (
    SELECT owner, kind, id, status, key, due_at, erase_at, version, sealed FROM elicit_records
    WHERE owner = asked.owner AND key = asked.key
        AND kind || '' = asked.kind
    LIMIT 1
) AS found;

-- name: list
SELECT owner, kind, id, status, key, due_at, erase_at, version, sealed FROM elicit_records
WHERE {condition}
ORDER BY id LIMIT $1;

-- name: due
-- SKIP LOCKED: another session is claiming the rows that it has locked.
UPDATE elicit_records AS claimed
SET claimed_until = $2
FROM (
    SELECT ctid AS place FROM elicit_records
    WHERE due_at <= $1
        AND (claimed_until IS NULL OR claimed_until <= $1 OR claimed_until > $3)
    ORDER BY due_at LIMIT $4
    FOR UPDATE SKIP LOCKED
) AS due
WHERE claimed.ctid = due.place
RETURNING claimed.owner, claimed.kind, claimed.id, claimed.status, claimed.key, claimed.due_at,
    claimed.erase_at, claimed.version, claimed.sealed;

-- name: erase
-- The condition is written twice. If another session changes a row while this statement waits for
-- the row's lock, PostgreSQL checks only the outer condition again.
DELETE FROM elicit_records
WHERE (kind, id, owner) IN (SELECT kind, id, owner FROM elicit_records WHERE {condition} LIMIT $1)
    AND {condition}
RETURNING 1;

-- name: check
UPDATE elicit_store SET checked_at = clock_timestamp() WHERE fenced IS NULL RETURNING 1;

-- name: notify
-- Do not wait for the disk: a notification that is lost when the database server stops does no
-- harm.
SELECT set_config('synchronous_commit', 'off', true), pg_notify('elicit', payload)
FROM unnest($1::text[]) AS payload;

-- name: page
SELECT owner, kind, id, status, key, due_at, erase_at, version, sealed FROM elicit_records
WHERE (kind, id, owner) > ($1, $2, $3)
ORDER BY kind, id, owner LIMIT $4;

-- name: load
INSERT INTO elicit_records (owner, kind, id, status, key, due_at, erase_at, version, sealed)
SELECT * FROM unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[],
    $7::timestamptz[], $8::bigint[], $9::bytea[]
)
ON CONFLICT (kind, id, owner) DO UPDATE
SET status = excluded.status, key = excluded.key, due_at = excluded.due_at,
    erase_at = excluded.erase_at, claimed_until = NULL, version = excluded.version,
    sealed = excluded.sealed;

-- name: key_holder
SELECT held.owner, held.kind, held.id, held.status, held.key, held.due_at, held.erase_at,
    held.version, held.sealed
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS asked (owner, kind, id, key)
JOIN elicit_records AS held
    ON held.owner = asked.owner AND held.kind = asked.kind AND held.key = asked.key
WHERE held.id <> asked.id
LIMIT 1;

-- name: loading
-- FOR SHARE: no other session can change the fence before the copied records are committed.
SELECT fenced, set_config('elicit.is_loading', 'on', true) FROM elicit_store FOR SHARE;

-- name: fence
-- CREATE TRIGGER waits until running statements end. The trigger then refuses all later statements.
CREATE OR REPLACE TRIGGER elicit_fence
BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON elicit_records
FOR EACH STATEMENT EXECUTE FUNCTION elicit_refuse();

-- name: unfence
DROP TRIGGER IF EXISTS elicit_fence ON elicit_records;

-- name: found_fence
-- FOR UPDATE: no other session can change the fence until this transaction ends.
SELECT fenced FROM elicit_store FOR UPDATE;

-- name: note_fence
UPDATE elicit_store SET fenced = $1;

-- name: fenced
SELECT fenced FROM elicit_store;
