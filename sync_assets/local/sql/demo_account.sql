-- The account itself, or some that a person may have meant.
SELECT {key}
FROM {table}
ORDER BY {key} = %(account_id)s DESC, starts_with({key}, split_part(%(account_id)s, '-', 1)) DESC, {key}
LIMIT 3
