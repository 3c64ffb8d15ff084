-- An account's own limit, a number of seconds. Held within a century (NaN too, which is greater than all), so that one
-- odd value spoils no other account's check.
CASE WHEN account.{column} IS NOT NULL
    THEN make_interval(secs => least(greatest(account.{column}::float8, 0), 3155760000)) END
