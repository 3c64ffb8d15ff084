-- In the future: claimed at a time that has not come, by the five minutes that the claim allows (selections.sql).
-- A leg for each index. What is disabled and free holds nothing, and nobody waits for it.
SELECT count(*) OVER (), found.* FROM (   -- counted before the LIMIT below cuts it to what is shown
    (
        SELECT {troubled}
        FROM {table} AS account
        WHERE status = 'IN_PROGRESS' AND started_at > now() + interval '5 minutes'
            -- what the index has: no lease ends before it began
            AND (started_at AT TIME ZONE 'UTC') + coalesce(lease, '0') > (now() AT TIME ZONE 'UTC')
        ORDER BY (started_at AT TIME ZONE 'UTC') + coalesce(lease, '0') DESC LIMIT %(most)s
    ) UNION ALL (
        SELECT {troubled}
        FROM {table} AS account
        WHERE {enabled} AND status <> 'IN_PROGRESS' AND started_at > now() + interval '5 minutes'
        ORDER BY started_at DESC NULLS LAST LIMIT %(most)s
    )
    LIMIT %(most)s
) AS found
ORDER BY started_at DESC, id LIMIT %(shown)s
