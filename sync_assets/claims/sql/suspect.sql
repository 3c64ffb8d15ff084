-- Which row a claim that failed on a value or on an owner's trigger would have begun with. Put after the places of
-- claim.sql, in place of its write.
SELECT account_id FROM chosen
