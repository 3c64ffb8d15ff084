-- Not fresh: the last success is longer ago than the account's limit, or the default. Without either nothing is asked
-- of it. Never synced is not fresh once a first attempt has ended: before it the account is new, not late (no column
-- says since when it is there). No index has this; it is one pass over the table, as overview.sql is.
SELECT count(*) OVER (), found.* FROM (   -- counted before the LIMIT below cuts it to what is shown
    SELECT {troubled}, extract(epoch FROM own.fresh_for)::float8 AS fresh_for
    FROM {table} AS account
        CROSS JOIN LATERAL (SELECT coalesce({own_limit}, make_interval(secs => %(freshness)s::float8)) AS fresh_for)
            AS own
    WHERE {still_enabled} AND own.fresh_for IS NOT NULL AND (
        -- in UTC, where a limit of a day is always as long
        (last_success AT TIME ZONE 'UTC') + own.fresh_for < (now() AT TIME ZONE 'UTC')
        OR last_success IS NULL AND started_at IS NOT NULL AND (status <> 'IN_PROGRESS' OR failures > 0)
    )
    ORDER BY (last_success AT TIME ZONE 'UTC') + own.fresh_for NULLS FIRST LIMIT %(most)s
) AS found
ORDER BY last_success + make_interval(secs => found.fresh_for) NULLS FIRST, id LIMIT %(shown)s
