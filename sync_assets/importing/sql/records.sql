-- The records of some lines of the file: new ones made, the others made as they are given. The trigger draws versions.
WITH staged AS MATERIALIZED (   -- each text read as JSON once
    SELECT account_id, record_id, given::jsonb AS given
    FROM sync_assets_import
    WHERE line > %(after)s AND line <= %(until)s
), written AS (
    INSERT INTO {records} AS record (account_id, record_id, data, deleted_at)
    SELECT account_id, record_id, coalesce(given -> 'data', '{{}}'),
        -- in CSV a text, in NDJSON a boolean: both read the same
        CASE WHEN (given ->> 'deleted')::boolean THEN now() END
    FROM staged
    ORDER BY account_id, record_id  -- the order in which other writers of many rows should lock them, too
    ON CONFLICT (account_id, record_id) DO UPDATE SET
        -- the data of a tombstone is what it was; a tombstone keeps its time
        data = CASE WHEN excluded.deleted_at IS NULL THEN excluded.data ELSE record.data END,
        deleted_at = CASE WHEN excluded.deleted_at IS NULL THEN NULL
            ELSE coalesce(record.deleted_at, excluded.deleted_at) END
    -- a row that is as it should be is not written: no new version, no dead tuple
    WHERE (record.deleted_at IS NULL) <> (excluded.deleted_at IS NULL)
        OR (excluded.deleted_at IS NULL AND record.data <> excluded.data)
    RETURNING xmax = 0 AS made
)
SELECT count(*) FILTER (WHERE made), count(*) FILTER (WHERE NOT made) FROM written
