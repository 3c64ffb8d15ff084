-- All accounts at a glance. One statement, so that the numbers are of one moment and add up.
-- NOT MATERIALIZED: a copy of ten million rows would go to disk, and the oldest claim would not be found by its index.
WITH account AS NOT MATERIALIZED (
    SELECT {account_id} AS id, {enabled} IS TRUE AS is_on, status, started_at, claimed_by, last_success, last_tick,
        error_kind,
        status = 'IN_PROGRESS' AS is_held,
        -- with the lease on the row, as the claim reads it; in UTC, where a day is always as long
        ((started_at AT TIME ZONE 'UTC') + coalesce(lease, make_interval(secs => %(lease)s))) AT TIME ZONE 'UTC'
            AS held_until,
        greatest(next_attempt_at, not_before) AS waits_until,
        next_attempt_at = 'infinity' AS is_set_aside      -- quarantined: until somebody releases it
    FROM {table} AS account
), counted AS (
    SELECT count(*) FILTER (WHERE is_on AND status = 'IDLE'),
        count(*) FILTER (WHERE is_on AND status = 'FAILED'),
        count(*) FILTER (WHERE is_on AND is_held),
        count(*) FILTER (WHERE NOT is_on AND status = 'IDLE'),
        count(*) FILTER (WHERE NOT is_on AND status = 'FAILED'),
        count(*) FILTER (WHERE NOT is_on AND is_held),
        -- what a run for the last tick would claim: the due, and the stalled besides
        count(*) FILTER (WHERE is_on AND NOT is_held AND (waits_until > now()) IS NOT TRUE
            AND (last_tick IS NULL OR last_tick < %(tick)s)),
        count(*) FILTER (WHERE is_on AND NOT is_held AND waits_until > now() AND is_set_aside IS NOT TRUE),
        count(*) FILTER (WHERE is_on AND NOT is_held AND is_set_aside),
        count(*) FILTER (WHERE is_on AND is_held AND held_until < now()),
        -- by the clock of this moment: a claim committed since this statement began is none of them
        count(*) FILTER (WHERE is_held AND started_at > clock_timestamp())
    FROM account
), oldest AS (
    SELECT id, claimed_by, started_at, held_until FROM account
    WHERE is_held ORDER BY started_at, id LIMIT 1
), stalest AS (
    SELECT id, last_success FROM account
    WHERE is_on ORDER BY last_success NULLS FIRST, id LIMIT 1
)
SELECT now(), counted.*, oldest.*, stalest.*,
    (SELECT coalesce(jsonb_object_agg(kind, number), '{{}}') FROM (
        SELECT coalesce(error_kind, 'unknown') AS kind, count(*) AS number FROM account
        WHERE is_on AND status = 'FAILED' GROUP BY 1
    ) AS kinds)
FROM counted LEFT JOIN oldest ON true LEFT JOIN stalest ON true
