-- base_url stays null: the demo's upstream has another port every time, and a changed base_url would be a changed
-- configuration of every account.
INSERT INTO {table} ({key}, {enabled}, secret_ref)
SELECT account_id, enabled, secret_ref
FROM unnest(%(ids)s::text[], %(enabled)s::boolean[], %(secret_refs)s::text[]) AS demo (account_id, enabled, secret_ref)
ON CONFLICT DO NOTHING
