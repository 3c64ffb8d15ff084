-- Why an account was or was not claimed, in one look.
SELECT {enabled} IS TRUE, status, started_at, claimed_by, error_kind, last_error, failures,
    -- what Python has no time for is told apart: our quarantine
    coalesce(next_attempt_at = 'infinity', false),
    CASE WHEN isfinite(next_attempt_at) THEN next_attempt_at END, CASE WHEN isfinite(not_before) THEN not_before END,
    now(),
    ((started_at AT TIME ZONE 'UTC') + coalesce(lease, make_interval(secs => %(lease)s))) AT TIME ZONE 'UTC',
    -- the very lock a claim takes, let go at once: null when another transaction has the row
    (SELECT true FROM {table} AS account WHERE {is_named} FOR NO KEY UPDATE SKIP LOCKED)
FROM {table} AS account
WHERE {is_named}
