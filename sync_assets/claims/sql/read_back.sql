-- The rows of claims whose answer was lost: held in this process's name, and not known to it.
SELECT {account_id}, claim_seq, claimed_generation, claimed_by, started_at, extract(epoch FROM lease)::float8,
    coalesce(next_attempt_at = 'infinity', false),
    to_json(account.*)::text,
    CASE WHEN failures > 0 THEN 'FAILED' ELSE 'IDLE' END, started_at, last_tick, claimed_generation, claimed_by,
    error_kind
FROM {table} AS account
WHERE status = 'IN_PROGRESS' AND claimed_by = %(claimed_by)s AND claim_seq <> ALL(%(known)s::bigint[])
