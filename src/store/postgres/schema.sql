-- The table of lambda-idempotency on PostgreSQL 12 or later: version 2 of its schema.
--
-- `idempotency table create` runs this, and so may your own migrations. For another table name, replace the three
-- quoted names. The marker table has the table's name followed by `_schema`, and is in the same schema.

CREATE TABLE IF NOT EXISTS "idempotency" (
    -- The stored key, `<function>/<operation>#<64 hex digits>`. Compared byte by byte, in any locale.
    id                text COLLATE "C" PRIMARY KEY,
    -- The version of the record's format.
    version           bigint NOT NULL,
    status            text NOT NULL CHECK (status IN ('STARTED', 'COMPLETED', 'FAILED', 'RELEASED')),
    -- 16 random bytes.
    owner             bytea NOT NULL,
    -- Unsigned 64-bit numbers, which `bigint` can't hold. The times are milliseconds since the Unix epoch.
    generation        numeric(20) NOT NULL,
    attempt           bigint NOT NULL,
    -- `1:` and 64 hex digits.
    fingerprint       text NOT NULL,
    lock_acquired_at  numeric(20) NOT NULL,
    lease_until       numeric(20),
    -- When the record expires. NULL means never: the record is an at-most-once claim that isn't settled yet.
    expires_at        numeric(20),
    -- Whether an earlier attempt ended without an answer.
    interrupted       boolean NOT NULL DEFAULT false,
    -- UTF-8; `convert_from(request_id, 'UTF8')` shows it. Stored as bytes, because text can't hold the NUL character.
    request_id        bytea,
    -- `identity` or `deflate` (RFC 1951), then `;format=NAME` if the format isn't JSON, and `;key=ID` if the response
    -- is encrypted; `omitted` if the response wasn't kept.
    response_encoding text,
    -- The response's length in bytes, before encoding. The SHA-256 is from before encoding too, or for an encrypted
    -- response, from the ciphertext.
    response_length   numeric(20),
    response_sha256   bytea,
    response          bytea,
    -- Reserved for a later version of the library. This version doesn't write these columns, and refuses to read a
    -- record in which one of the last two is set.
    trace_id          text,
    response_codec    text,
    response_key_id   text,
    -- The hour in which the record expires, rounded up, in hours since the Unix epoch. It's for the sweep's index.
    -- An index on `expires_at` itself would change with every settlement, so PostgreSQL would update all indexes.
    sweep_hour        bigint GENERATED ALWAYS AS (ceil(expires_at / 3600000)::bigint) STORED,
    -- A STARTED record has a lease, and other records don't.
    CHECK ((status = 'STARTED') = (lease_until IS NOT NULL))
);

-- The library already compresses responses that benefit from it.
ALTER TABLE "idempotency" ALTER COLUMN response SET STORAGE EXTERNAL;

-- The sweep's index. A table that an earlier version created has no `sweep_hour`, and keeps its index on `expires_at`.
-- `idempotency table check` shows how to replace that index.
DO $migration$ BEGIN
    IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = '"idempotency"'::regclass AND attname = 'sweep_hour') THEN
        CREATE INDEX IF NOT EXISTS "idempotency_sweep_hour" ON "idempotency" (sweep_hour);
    END IF;
END $migration$;

-- The version of the schema. The library reads it, and refuses to work with an unknown version.
CREATE TABLE IF NOT EXISTS "idempotency_schema" (version integer PRIMARY KEY);
-- A table of an older version keeps its version here, so that the library refuses to use it.
INSERT INTO "idempotency_schema" (version)
    SELECT 2 WHERE NOT EXISTS (SELECT FROM "idempotency_schema") ON CONFLICT DO NOTHING;
