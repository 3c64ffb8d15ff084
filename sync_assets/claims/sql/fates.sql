-- What became of rows that a settle or a hand-back did not write: the number and status they have now.
SELECT {account_id}, claim_seq, claimed_by, status FROM {table} AS account WHERE {is_among}
