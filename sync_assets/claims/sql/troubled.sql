-- What a person is told of an account in trouble. Put into each trouble_….sql, and read by TroubledAccount in this order.
{account_id} AS id, status, started_at,
    ((started_at AT TIME ZONE 'UTC') + coalesce(lease, make_interval(secs => %(lease)s))) AT TIME ZONE 'UTC'
        AS held_until,
    claimed_by, failures, error_kind, last_error, last_success,
    CASE WHEN isfinite(greatest(next_attempt_at, not_before)) THEN greatest(next_attempt_at, not_before) END
        AS waits_until,
    coalesce(next_attempt_at = 'infinity', false) AS is_quarantined
