-- What the claims since a moment came to, with the records the upstream accepted since.
SELECT {key}, status, coalesce(error_kind || ': ' || last_error, ''),
    (SELECT count(*) FROM {records} AS record
        WHERE record.account_id = account.{key} AND record.synced_at >= %(since)s)
FROM {table} AS account
WHERE started_at >= %(since)s
ORDER BY {key}
