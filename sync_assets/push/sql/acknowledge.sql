-- Write back what became of records that were sent. Fenced: only while the account's row still is this very claim's.
WITH patience AS MATERIALIZED (   -- for this statement only: the fence may wait for the account's owner, but not long
    SELECT set_config('lock_timeout', %(lock_timeout)s, true)
), fence AS MATERIALIZED (        -- held, not looked at: nobody can take the account over until this is committed
    SELECT FROM {table} AS account
    WHERE {is_named}
        AND account.claim_seq = %(claim_seq)s AND account.claimed_by = %(claimed_by)s
        AND account.status = 'IN_PROGRESS'
        AND EXISTS (SELECT FROM patience)
    FOR SHARE OF account
), outcome AS MATERIALIZED (
    SELECT * FROM unnest(
        %(record_ids)s::text[], %(versions)s::bigint[], %(accepted)s::boolean[], %(external_ids)s::text[],
        %(errors)s::text[]
    ) AS outcome (record_id, version, accepted, external_id, error)
), held AS MATERIALIZED (         -- past what somebody edits: who waits for a record while holding the account
    SELECT record.record_id       -- would deadlock with an owner who edits the record first and then the account
    FROM {records} AS record JOIN outcome ON outcome.record_id = record.record_id
    WHERE record.account_id = %(account_id)s AND EXISTS (SELECT FROM fence)
    ORDER BY record.record_id FOR NO KEY UPDATE OF record SKIP LOCKED
), written AS (
    UPDATE {records} AS record    -- the version that was sent: an edit made meanwhile stays due
    SET synced_version = CASE WHEN outcome.accepted THEN outcome.version ELSE record.synced_version END,
        synced_at = CASE WHEN outcome.accepted THEN now() ELSE record.synced_at END,
        rejected_version = CASE WHEN NOT outcome.accepted THEN outcome.version END,
        rejected_generation = CASE WHEN NOT outcome.accepted THEN %(generation)s::bigint END,
        external_id = coalesce(outcome.external_id, record.external_id),
        error = outcome.error
    FROM outcome JOIN held USING (record_id)
    WHERE record.account_id = %(account_id)s AND record.record_id = outcome.record_id
    RETURNING record.record_id
)
SELECT EXISTS (SELECT FROM fence),
    ARRAY(                        -- still there and not written: to be tried again
        SELECT outcome.record_id
        FROM outcome JOIN {records} AS record
            ON record.account_id = %(account_id)s AND record.record_id = outcome.record_id
        WHERE outcome.record_id NOT IN (SELECT written.record_id FROM written)
    )
