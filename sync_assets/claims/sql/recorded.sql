-- What init or adopt has noted about a table, and the types of its columns, as they are written in a cast.
SELECT obj_description(guard.oid, 'pg_trigger'),
    (SELECT json_object_agg(attribute.attname, format_type(attribute.atttypid, -1)) FROM pg_attribute AS attribute
        WHERE attribute.attrelid = guard.tgrelid AND attribute.attnum > 0 AND NOT attribute.attisdropped)
FROM pg_trigger AS guard
WHERE guard.tgrelid = to_regclass(%(table)s) AND guard.tgname = 'sync_assets_claim_guard'
