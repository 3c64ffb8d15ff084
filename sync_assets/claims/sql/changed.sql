-- What a run with only_changed would claim: enabled, changed, not worked, and past the upstream's time. Bounded.
SELECT count(*) FROM (
    SELECT FROM {table} AS account
    WHERE {enabled} AND generation > claimed_generation
        AND (not_before IS NULL OR not_before <= now())
        AND (status <> 'IN_PROGRESS'
            OR (started_at AT TIME ZONE 'UTC') + coalesce(lease, make_interval(secs => %(lease)s))
                < (now() AT TIME ZONE 'UTC'))
    LIMIT %(limit)s
) AS due
