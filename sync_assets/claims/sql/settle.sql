-- Write back what became of claimed accounts. Fenced: only where the row still is the very claim that was worked.
WITH ours AS MATERIALIZED (       -- past the guard (guard.sql), for this statement only
    SELECT set_config('sync_assets.writes', 'on', true)
), outcome AS MATERIALIZED (
    SELECT * FROM unnest(
        %(account_ids)s::text[], %(claim_seqs)s::bigint[], %(succeeded)s::boolean[], %(error_kinds)s::text[],
        %(errors)s::text[], %(counted)s::boolean[], %(not_befores)s::timestamptz[], %(not_before_seconds)s::float8[]
    ) AS outcome (account_id, claim_seq, succeeded, error_kind, error, counted, not_before, not_before_seconds)
), held AS MATERIALIZED (         -- in key order, and past what others hold: no deadlock, nobody waits for one row
    SELECT {account_id} AS account_id,
        least(account.failures, 2147483646) + (NOT outcome.counted)::integer AS failures
    FROM {table} AS account JOIN outcome ON {is_outcome}
    WHERE account.claim_seq = outcome.claim_seq AND account.claimed_by = %(claimed_by)s
        AND account.status = 'IN_PROGRESS'
    ORDER BY {account_id} FOR NO KEY UPDATE OF account SKIP LOCKED
)
UPDATE {table} AS account
SET status = CASE WHEN outcome.succeeded THEN 'IDLE' ELSE 'FAILED' END,
    last_success = CASE WHEN outcome.succeeded THEN now() ELSE account.last_success END,
    failures = CASE WHEN outcome.succeeded THEN 0 ELSE held.failures END,
    error_kind = outcome.error_kind,
    last_error = outcome.error,
    next_attempt_at = CASE WHEN outcome.succeeded THEN NULL
        WHEN held.failures >= %(max_failures)s::integer THEN 'infinity'  -- quarantine: no tick comes after it
        -- twice as long after each failure, and never the power itself: it would leave what an interval can hold
        ELSE now() + make_interval(secs => %(backoff)s::float8
            * least(%(max_backoff)s::float8 / %(backoff)s::float8, 2.0::float8 ^ (least(held.failures, 64) - 1))) END,
    not_before = CASE WHEN outcome.succeeded THEN NULL  -- a failure that names no time leaves the one that was named
        ELSE coalesce(greatest(outcome.not_before, now() + make_interval(secs => outcome.not_before_seconds)),
            account.not_before) END
FROM outcome JOIN held USING (account_id) CROSS JOIN ours
WHERE {is_outcome}
    -- The fence. The number alone would do, but for a server that lost its last commits in a crash or a failover and
    -- gives the same numbers again: the holder's name has a nonce of its process.
    AND account.claim_seq = outcome.claim_seq AND account.claimed_by = %(claimed_by)s
    AND account.status = 'IN_PROGRESS'
RETURNING account.claim_seq
