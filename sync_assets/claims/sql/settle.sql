-- Write back what became of claimed accounts. Fenced: only where the row still is the very claim that was worked.
WITH ours AS MATERIALIZED (       -- past the guard (guard.sql), for this statement only
    SELECT set_config('sync_assets.writes', 'on', true)
), outcome AS MATERIALIZED (
    SELECT * FROM unnest(
        %(account_ids)s::text[], %(claim_seqs)s::bigint[], %(succeeded)s::boolean[], %(error_kinds)s::text[],
        %(errors)s::text[], %(backoffs)s::float8[], %(not_befores)s::timestamptz[], %(not_before_seconds)s::float8[]
    ) AS outcome (account_id, claim_seq, succeeded, error_kind, error, backoff, not_before, not_before_seconds)
), held AS MATERIALIZED (         -- in key order, and past what others hold: no deadlock, nobody waits for one row
    SELECT {account_id} AS account_id
    FROM {table} AS account JOIN outcome ON {is_outcome}
    WHERE account.claim_seq = outcome.claim_seq AND account.claimed_by = %(claimed_by)s
        AND account.status = 'IN_PROGRESS'
    ORDER BY {account_id} FOR NO KEY UPDATE OF account SKIP LOCKED
)
UPDATE {table} AS account
SET status = CASE WHEN outcome.succeeded THEN 'IDLE' ELSE 'FAILED' END,
    last_success = CASE WHEN outcome.succeeded THEN now() ELSE account.last_success END,
    failures = CASE WHEN outcome.succeeded THEN 0 ELSE least(account.failures, 2147483646) + 1 END,
    error_kind = outcome.error_kind,
    last_error = outcome.error,
    next_attempt_at = now() + make_interval(secs => outcome.backoff),
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
