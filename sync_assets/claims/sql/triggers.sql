-- Which of our triggers are there and at work on a table ('D' is disabled).
SELECT tgname::text FROM pg_trigger WHERE tgrelid = to_regclass(%(table)s) AND tgenabled <> 'D'
