-- The time makes every edit a real change.
UPDATE {table}
SET settings = settings || jsonb_build_object('edited_at', clock_timestamp())
WHERE {key} = %(account_id)s
RETURNING {enabled}
