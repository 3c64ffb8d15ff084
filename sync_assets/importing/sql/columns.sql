-- The columns of a table that somebody may write, in their order: with the type to cast a text to (without a length,
-- which a cast would cut to in silence), and what a new row has where nothing is said.
SELECT attribute.attname::text, format_type(attribute.atttypid, NULL), pg_get_expr(adbin, adrelid)
FROM pg_attribute AS attribute
LEFT JOIN pg_attrdef ON adrelid = attribute.attrelid AND adnum = attribute.attnum
WHERE attribute.attrelid = to_regclass(%(table)s) AND attribute.attnum > 0 AND NOT attribute.attisdropped
    AND attribute.attgenerated = '' AND attribute.attidentity <> 'a'
ORDER BY attribute.attnum
