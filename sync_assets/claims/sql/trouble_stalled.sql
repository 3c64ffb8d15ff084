-- Stalled: past their lease, so that their run is dead, and not taken over yet. What is disabled nobody takes over.
SELECT count(*) OVER (), found.* FROM (   -- counted before the LIMIT below cuts it to what is shown
    SELECT {troubled}
    FROM {table} AS account
    WHERE {enabled} AND status = 'IN_PROGRESS'
        AND (started_at AT TIME ZONE 'UTC') + coalesce(lease, '0') < (now() AT TIME ZONE 'UTC')  -- what the index has
        AND (started_at AT TIME ZONE 'UTC') + coalesce(lease, make_interval(secs => %(lease)s))  -- what is meant
            < (now() AT TIME ZONE 'UTC')
    ORDER BY (started_at AT TIME ZONE 'UTC') + coalesce(lease, '0') LIMIT %(most)s
) AS found
ORDER BY held_until, id LIMIT %(shown)s
