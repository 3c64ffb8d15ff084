-- The claim: three places to look, the oldest chosen, one guard, one write. One statement, in autocommit.
--
-- FOR NO KEY UPDATE: FOR UPDATE would hide every account whose child row is being inserted just now.
-- SKIP LOCKED: a plain UPDATE stalls behind one locked row, and two of them can deadlock in opposite orders.
-- MATERIALIZED: a LIMIT in a plain subquery can run again after a conflict and claim more than it says.
-- Each place has its own partial index and its own LIMIT, so that each finds rows nobody else has locked.
-- set_aside: rows that could not be claimed, for a trigger of their owner's or a value, and must not stop the others.
WITH ours AS MATERIALIZED (       -- past the guard (guard.sql), for this statement only
    SELECT set_config('sync_assets.writes', 'on', true)
), free AS MATERIALIZED (         -- nobody works them, and they wait for nothing
    SELECT {account_id} AS account_id, status, started_at, last_tick, claimed_generation, claimed_by, error_kind
    FROM {table} AS account
    WHERE {enabled} AND status <> 'IN_PROGRESS' AND {waits_for_nothing} AND {selected}
        AND {account_id} <> ALL(%(set_aside)s::text[])
    ORDER BY {oldest} LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
), waited AS MATERIALIZED (       -- the time they waited for has come
    SELECT {account_id} AS account_id, status, started_at, last_tick, claimed_generation, claimed_by, error_kind
    FROM {table} AS account
    WHERE {enabled} AND status <> 'IN_PROGRESS' AND {has_waited} AND {selected}
        AND {account_id} <> ALL(%(set_aside)s::text[])
    ORDER BY greatest(next_attempt_at, not_before) LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
), stalled AS MATERIALIZED (      -- their run broke its promise: it is dead. This one is not, whatever it holds
    SELECT {account_id} AS account_id, status, started_at, last_tick, claimed_generation, claimed_by, error_kind
    FROM {table} AS account
    WHERE {enabled} AND status = 'IN_PROGRESS' AND {selected_stalled} AND claimed_by IS DISTINCT FROM %(claimed_by)s
        AND {account_id} <> ALL(%(set_aside)s::text[])
        AND (started_at AT TIME ZONE 'UTC') + coalesce(lease, '0') < (now() AT TIME ZONE 'UTC')  -- what the index has
        AND (started_at AT TIME ZONE 'UTC') + coalesce(lease, make_interval(secs => %(lease)s))  -- what is meant
            < (now() AT TIME ZONE 'UTC')
    ORDER BY (started_at AT TIME ZONE 'UTC') + coalesce(lease, '0') LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
), chosen AS MATERIALIZED (       -- claimed longest ago goes first, whatever its place, so that none starves
    SELECT * FROM (SELECT * FROM free UNION ALL SELECT * FROM waited UNION ALL SELECT * FROM stalled) AS found
    ORDER BY started_at NULLS FIRST, account_id LIMIT %(limit)s
)
UPDATE {table} AS account
SET status = 'IN_PROGRESS',
    started_at = now(),                                   -- the lease rides in the same statement: always honest
    lease = make_interval(secs => %(lease)s),             -- of seconds: a day would change length with the clocks
    claim_seq = nextval({claim_seq_name}),
    claimed_by = %(claimed_by)s,
    last_tick = greatest(account.last_tick, %(tick)s::timestamptz),  -- null (no tick) changes nothing
    claimed_generation = account.generation,
    -- a takeover counts as a failure of the run that died
    failures = least(account.failures, 2147483646) + (account.status = 'IN_PROGRESS')::integer,
    error_kind = CASE WHEN account.status = 'IN_PROGRESS' THEN 'crashed' ELSE account.error_kind END,
    last_error = CASE WHEN account.status = 'IN_PROGRESS'
        THEN format('taken over from %%s, which claimed it at %%s UTC and never settled it', account.claimed_by,
            to_char(account.started_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'))
        ELSE account.last_error END,
    next_attempt_at = CASE
        WHEN account.generation > account.claimed_generation THEN NULL  -- what was changed has not failed yet
        -- quarantine, in the takeover itself: also when this run dies, or hands the account back
        WHEN account.status = 'IN_PROGRESS' AND account.failures >= %(max_failures)s::integer - 1 THEN 'infinity'
        ELSE account.next_attempt_at END
FROM chosen CROSS JOIN ours
WHERE {is_chosen}
    -- ELIGIBLE, the safety clause: whatever the places above say, nothing else is ever claimed
    AND {still_enabled}
    AND (account.status IN ('IDLE', 'FAILED')
        OR account.status = 'IN_PROGRESS'
            AND (account.started_at AT TIME ZONE 'UTC') + coalesce(account.lease, make_interval(secs => %(lease)s))
                < (now() AT TIME ZONE 'UTC'))
RETURNING {account_id}, account.claim_seq, account.claimed_generation, account.claimed_by, account.started_at,
    extract(epoch FROM account.lease)::float8,
    coalesce(account.next_attempt_at = 'infinity', false),
    to_json(account.*)::text,       -- as text, and no jsonb: one row that cannot be read must spoil itself only
    chosen.status, chosen.started_at, chosen.last_tick, chosen.claimed_generation, chosen.claimed_by, chosen.error_kind
