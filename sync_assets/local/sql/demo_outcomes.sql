-- What the claims since a moment came to, with the records the upstream accepted since and one it will never accept.
SELECT {key}, status, CASE WHEN status = 'FAILED' THEN error_kind || ': ' || last_error END,
    (SELECT count(*) FROM {records} AS record
        WHERE record.account_id = account.{key} AND record.synced_at >= %(since)s),
    (SELECT 'rejected: ' || min(record.error) FROM {records} AS record
        WHERE record.account_id = account.{key} AND record.rejected_version = record.version)
FROM {table} AS account
WHERE started_at >= %(since)s
ORDER BY {key}
