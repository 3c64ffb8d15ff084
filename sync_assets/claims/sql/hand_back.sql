-- Put claimed accounts back without a result, counting nothing. Fenced like settle.sql.
-- Handed back (the run is stopping): as the claim found them, so that the same tick may claim them again.
-- Given up for this run: free again, but stamped as claimed, or the loop would take them again at once.
WITH ours AS MATERIALIZED (       -- past the guard (guard.sql), for this statement only
    SELECT set_config('sync_assets.writes', 'on', true)
), outcome AS MATERIALIZED (
    SELECT * FROM unnest(
        %(account_ids)s::text[], %(claim_seqs)s::bigint[], %(given_up)s::boolean[], %(statuses)s::text[],
        %(started_ats)s::timestamptz[], %(last_ticks)s::timestamptz[], %(claimed_generations)s::bigint[]
    ) AS outcome (account_id, claim_seq, given_up, status, started_at, last_tick, claimed_generation)
), held AS MATERIALIZED (
    SELECT {account_id} AS account_id
    FROM {table} AS account JOIN outcome ON {is_outcome}
    WHERE account.claim_seq = outcome.claim_seq AND account.claimed_by = %(claimed_by)s
        AND account.status = 'IN_PROGRESS'
    ORDER BY {account_id} FOR NO KEY UPDATE OF account SKIP LOCKED
)
UPDATE {table} AS account
SET status = outcome.status,
    started_at = CASE WHEN outcome.given_up THEN account.started_at ELSE outcome.started_at END,
    last_tick = CASE WHEN outcome.given_up THEN account.last_tick ELSE outcome.last_tick END,
    claimed_generation =
        CASE WHEN outcome.given_up THEN account.claimed_generation ELSE outcome.claimed_generation END
FROM outcome JOIN held USING (account_id) CROSS JOIN ours
WHERE {is_outcome}
    AND account.claim_seq = outcome.claim_seq AND account.claimed_by = %(claimed_by)s
    AND account.status = 'IN_PROGRESS'  -- the fence
RETURNING account.claim_seq
