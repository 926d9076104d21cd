-- The table of lambda-idempotency on PostgreSQL 12 or later: version 3 of its schema.
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
    -- The version of the fingerprint's rules, 1, and the SHA-256.
    fingerprint       bytea NOT NULL,
    claimed_at        numeric(20) NOT NULL,
    lease_until       numeric(20),
    -- When the record expires. NULL means never: the record is an at-most-once claim that isn't settled yet.
    expires_at        numeric(20),
    -- `interrupted` if an earlier attempt ended without an answer.
    mark              text,
    -- `at-most-once` if the claim's handler may not run again.
    execution         text,
    -- UTF-8; `convert_from(request_id, 'UTF8')` shows it. Stored as bytes, because text can't hold the NUL character.
    request_id        bytea,
    -- The trace of the run, also in UTF-8.
    trace             bytea,
    -- `deflate` (RFC 1951) or `identity`, then `;format=NAME` if the format isn't JSON, and `;key=ID` if the response
    -- is encrypted; `omitted` if the response wasn't kept. NULL for `identity` alone.
    encoding          text,
    -- The response's length in bytes, before encoding; NULL if it's that of `response`. The SHA-256 is from before
    -- encoding too, or for an encrypted response, from the ciphertext.
    length            numeric(20),
    sha256            bytea,
    response          bytea,
    -- The hour in which the record expires, rounded up, in hours since the Unix epoch. It's for the sweep's index.
    -- An index on `expires_at` itself would change with every settlement, so PostgreSQL would update all indexes.
    sweep_hour        bigint GENERATED ALWAYS AS (ceil(expires_at / 3600000)::bigint) STORED,
    -- A STARTED record has a lease, and other records don't.
    CHECK ((status = 'STARTED') = (lease_until IS NOT NULL)),
    -- Only an at-most-once claim that isn't settled may have no expiry, so that the sweep never deletes it.
    CHECK (expires_at IS NOT NULL OR status = 'STARTED' AND execution IS NOT NULL)
);

-- The library already compresses responses that benefit from it.
ALTER TABLE "idempotency" ALTER COLUMN response SET STORAGE EXTERNAL;

-- The sweep's index.
CREATE INDEX IF NOT EXISTS "idempotency_sweep_hour" ON "idempotency" (sweep_hour);

-- The version of the schema. The library reads it, and refuses to work with an unknown version.
CREATE TABLE IF NOT EXISTS "idempotency_schema" (version integer PRIMARY KEY);
-- A table of an older version keeps its version here, so that the library refuses to use it.
INSERT INTO "idempotency_schema" (version)
    SELECT 3 WHERE NOT EXISTS (SELECT FROM "idempotency_schema") ON CONFLICT DO NOTHING;
