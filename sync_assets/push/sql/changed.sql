-- A page of what is to be sent for one account, in the order of record ids: each is seen once in a run, however often
-- it is edited meanwhile. There is no cursor from run to run, so a row that was committed late is simply still due.
SELECT record_id, version, CASE WHEN deleted_at IS NULL THEN data::text END
FROM {records}
WHERE account_id = %(account_id)s
    AND record_id > %(after)s
    AND synced_version IS DISTINCT FROM version
    -- refused as it is; but a mended configuration (another address, another secret) sends it again
    AND (rejected_version IS DISTINCT FROM version OR rejected_generation IS DISTINCT FROM %(generation)s)
ORDER BY record_id
LIMIT %(page_size)s
