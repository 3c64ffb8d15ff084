-- One configuration row per account. The owner's columns are the owner's; the rest is the state machine.
CREATE SEQUENCE {claim_seq};
CREATE SEQUENCE {generation_seq};

CREATE TABLE {table} (
    {key}              text PRIMARY KEY CHECK (length({key}) BETWEEN 1 AND 512),
    {enabled}          boolean NOT NULL DEFAULT true,  -- the owner's switch; never written by a sync

    status             text NOT NULL DEFAULT 'IDLE' CHECK (status IN ('IDLE', 'IN_PROGRESS', 'FAILED')),
    started_at         timestamptz,                    -- when the current or last claim was made
    lease              interval,                       -- how long that claim was promised
    claim_seq          bigint NOT NULL DEFAULT 0,      -- the claim's number: the fencing token
    claimed_by         text,                           -- who holds the row, or held it last
    last_tick          timestamptz,                    -- the latest schedule tick the row was claimed for
    last_success       timestamptz,
    failures           integer NOT NULL DEFAULT 0,     -- in a row
    error_kind         text,
    last_error         text,
    next_attempt_at    timestamptz,                    -- our own backoff; null: whenever
    not_before         timestamptz,                    -- the time the upstream named; null: none
    generation         bigint NOT NULL DEFAULT 0,      -- moves when the owner changes the configuration
    claimed_generation bigint NOT NULL DEFAULT 0,      -- the generation the last claim saw

    base_url           text,
    secret_ref         text,                           -- where the secret is (env:NAME, file:PATH), never the secret
    settings           jsonb NOT NULL DEFAULT '{{}}',

    -- a claim without its start could never be found stalled: it would be held for ever
    CHECK (status <> 'IN_PROGRESS' OR started_at IS NOT NULL)
);

-- Owned by the table, so that dropping the table leaves nothing behind.
ALTER SEQUENCE {claim_seq} OWNED BY {table}.claim_seq;
ALTER SEQUENCE {generation_seq} OWNED BY {table}.generation;

-- One index for each way of being due (claim.sql): an OR over all of them could use none.
-- Of one tick, those that fail go last: they must not take an upstream's patience from the others at every tick.
CREATE INDEX {free_index} ON {table} (coalesce(last_tick, '-infinity'), (failures > 0), started_at NULLS FIRST)
    WHERE {enabled} AND status <> 'IN_PROGRESS' AND next_attempt_at IS NULL AND not_before IS NULL;
CREATE INDEX {waiting_index} ON {table} (greatest(next_attempt_at, not_before))
    WHERE {enabled} AND status <> 'IN_PROGRESS' AND (next_attempt_at IS NOT NULL OR not_before IS NOT NULL);
-- In UTC, because timestamptz + interval depends on the session's zone and cannot be indexed.
CREATE INDEX {held_index} ON {table} (((started_at AT TIME ZONE 'UTC') + coalesce(lease, '0')))
    WHERE status = 'IN_PROGRESS';
-- For runs by hand over everything, and for the sensor.
CREATE INDEX {oldest_index} ON {table} (started_at NULLS FIRST) WHERE {enabled} AND status <> 'IN_PROGRESS';
CREATE INDEX {changed_index} ON {table} (generation) WHERE {enabled} AND generation > claimed_generation;
-- For the check of those that fail. Those that do not are not in it, so that it costs their claims nothing.
CREATE INDEX {failed_index} ON {table} (last_success NULLS FIRST) WHERE {enabled} AND status = 'FAILED';
