-- Failed: the last attempt did not succeed, whether it is tried again at the next tick, later, or never (quarantine).
SELECT count(*) OVER (), found.* FROM (   -- counted before the LIMIT below cuts it to what is shown
    SELECT {troubled}
    FROM {table} AS account
    WHERE {enabled} AND status = 'FAILED'
    ORDER BY last_success NULLS FIRST LIMIT %(most)s  -- as the index has them: longest without a success
) AS found
ORDER BY last_success NULLS FIRST, failures DESC, id LIMIT %(shown)s
