-- What became of rows that a settle or a hand-back did not write: the number and status they have now.
SELECT {key}, claim_seq, claimed_by, status FROM {table} WHERE {key} = ANY(%(account_ids)s::text[])
