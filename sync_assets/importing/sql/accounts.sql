-- The accounts of some lines of the file: new ones made, the others changed in what is given. Where the file says
-- nothing, a new row has the column's default and another keeps what it has.
WITH staged AS MATERIALIZED (   -- each text read as JSON once
    SELECT account_id::{key_type} AS id, given::jsonb AS given
    FROM sync_assets_import
    WHERE line > %(after)s AND line <= %(until)s
), changed AS (
    UPDATE {table} AS account SET {assignments}
    FROM staged
    -- a row that is as it should be is not written, and its generation does not move; bytes are compared, since some
    -- types have no equality
    WHERE account.{key} = staged.id AND ROW({old})::record *<> ROW({new})::record
    RETURNING 1
), made AS (
    INSERT INTO {table} ({columns})
    SELECT {fresh} FROM staged
    WHERE NOT EXISTS (SELECT FROM {table} AS account WHERE account.{key} = staged.id)
    RETURNING 1
)
SELECT (SELECT count(*) FROM made), (SELECT count(*) FROM changed)
