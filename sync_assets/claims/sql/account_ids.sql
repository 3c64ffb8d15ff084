-- The accounts there are, also those switched off. Bounded: whoever asks says how many it can make use of.
SELECT {account_id} FROM {table} AS account LIMIT %(limit)s
