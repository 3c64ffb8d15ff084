-- The records that the default sync keeps equal upstream. Who owns them inserts, updates and sets deleted_at; the
-- rest is the sync's. No foreign key to the accounts: their table may be anybody's, and an account that is deleted
-- in the middle of its sync takes nothing with it.
CREATE SEQUENCE {version_seq};

CREATE TABLE {records} (
    account_id          text NOT NULL CHECK (length(account_id) BETWEEN 1 AND 512),
    record_id           text NOT NULL CHECK (length(record_id) BETWEEN 1 AND 512),
    data                jsonb NOT NULL,
    deleted_at          timestamptz,     -- set: a tombstone; to be deleted upstream, too

    version             bigint NOT NULL, -- of the record as it is now
    synced_version      bigint,          -- the version the upstream accepted last
    synced_at           timestamptz,     -- when that was written here
    rejected_version    bigint,          -- the version the upstream refused last, if it has accepted none since
    rejected_generation bigint,          -- the account's configuration under which it did
    external_id         text,            -- the upstream's own name for the record
    error               text,            -- why it refused

    PRIMARY KEY (account_id, record_id),
    CHECK ((rejected_version IS NULL) = (rejected_generation IS NULL))
);

ALTER SEQUENCE {version_seq} OWNED BY {records}.version;

-- What changed in one account, without a look at what is synced. Rejected records stay in it: whether they are sent
-- again depends on the account's generation, and an index can know only its own table.
CREATE INDEX {changed_records_index} ON {records} (account_id, record_id) WHERE synced_version IS DISTINCT FROM version;
