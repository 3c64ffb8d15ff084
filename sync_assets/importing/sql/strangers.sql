-- Records of accounts that are not there: nobody would ever send them.
SELECT min(line), staged.account_id, count(*) OVER ()
FROM sync_assets_import AS staged
WHERE NOT EXISTS (SELECT FROM {table} AS account WHERE {account_id} = staged.account_id)
GROUP BY staged.account_id
ORDER BY 1
LIMIT %(limit)s
