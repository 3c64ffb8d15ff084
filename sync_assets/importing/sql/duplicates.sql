-- What is in the file more than once: which of them is meant, only its author knows.
SELECT max(line), min(line), account_id, record_id, count(*) OVER ()
FROM sync_assets_import
GROUP BY account_id, record_id
HAVING count(*) > 1
ORDER BY 1
LIMIT %(limit)s
