-- SELECTED, the policy: each entry point narrows the eligible rows by exactly one of these. Put into claim.sql.

-- due: a schedule tick. Once per tick, however often it is fired; ticks are compared with ticks, never with a clock.
--   waits_for_nothing
next_attempt_at IS NULL AND not_before IS NULL
--   has_waited
(next_attempt_at IS NOT NULL OR not_before IS NOT NULL) AND greatest(next_attempt_at, not_before) <= now()
--   selected
coalesce(last_tick, '-infinity') < %(tick)s::timestamptz
--   selected_stalled: whatever its tick and our backoff, but never before the upstream's time
(not_before IS NULL OR not_before <= now())
--   oldest
coalesce(last_tick, '-infinity'), (failures > 0), started_at NULLS FIRST

-- all: by hand, everything, once in this run (or stamped by a clock that has been set back since).
--   waits_for_nothing
next_attempt_at IS NULL AND not_before IS NULL
--   has_waited
(next_attempt_at IS NOT NULL OR not_before IS NOT NULL) AND greatest(next_attempt_at, not_before) <= now()
--   selected
(started_at IS NULL OR started_at < %(since)s OR started_at > now() + interval '5 minutes')
--   selected_stalled
started_at < %(since)s AND coalesce(greatest(next_attempt_at, not_before) <= now(), true)
--   oldest
started_at NULLS FIRST

-- accounts: by hand, these, now, whatever they wait for.
--   waits_for_nothing
true
--   has_waited
false
--   selected
{is_among}
--   selected_stalled
{is_among}
--   oldest
{account_id}

-- changed: the sensor. Whatever our own backoff: the owner may just have mended it; once in this run.
--   waits_for_nothing
not_before IS NULL
--   has_waited
not_before <= now()
--   selected
generation > claimed_generation
AND (started_at IS NULL OR started_at < %(since)s OR started_at > now() + interval '5 minutes')
--   selected_stalled
generation > claimed_generation AND started_at < %(since)s AND (not_before IS NULL OR not_before <= now())
--   oldest
generation
