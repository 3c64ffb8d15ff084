INSERT INTO {records} (account_id, record_id, data)
SELECT account_id, record_id, data
FROM unnest(%(account_ids)s::text[], %(record_ids)s::text[], %(data)s::jsonb[]) AS demo (account_id, record_id, data)
ON CONFLICT DO NOTHING
