-- Where a file's rows wait until all of them are there: this session's own, and no work for the write-ahead log.
-- What is given stays text, so that a value Postgres cannot take is found by its line and not by a broken COPY.
CREATE TEMPORARY TABLE sync_assets_import (line bigint NOT NULL, account_id text, record_id text, given text NOT NULL)
    ON COMMIT DROP
