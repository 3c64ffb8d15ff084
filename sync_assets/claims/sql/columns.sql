-- What a table really has: its columns by name, with their types as Postgres spells them.
SELECT attribute.attname::text, format_type(attribute.atttypid, NULL)
FROM pg_attribute AS attribute
WHERE attribute.attrelid = to_regclass(%(table)s) AND attribute.attnum > 0 AND NOT attribute.attisdropped
