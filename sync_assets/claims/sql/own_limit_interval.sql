-- An account's own limit, an interval. Held within a century, so that one odd value spoils no other account's check.
CASE WHEN account.{column} IS NOT NULL
    THEN least(greatest(account.{column}, interval '0'), interval '100 years') END
