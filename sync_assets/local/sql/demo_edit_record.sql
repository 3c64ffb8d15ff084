-- The time makes every edit a real change.
UPDATE {records}
SET data = data || jsonb_build_object('edited_at', clock_timestamp())
WHERE (account_id, record_id) = (
    SELECT account_id, record_id
    FROM {records}
    WHERE account_id = %(account_id)s AND deleted_at IS NULL
    ORDER BY record_id
    LIMIT 1
)
RETURNING record_id
