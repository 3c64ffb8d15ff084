-- The triggers of a table, and whether each is at work ('D' is disabled).
SELECT tgname::text, tgenabled <> 'D' FROM pg_trigger WHERE tgrelid = to_regclass(%(table)s) AND NOT tgisinternal
