-- All that a run, the sensor and `sync-assets run` need, for a role of their own: sync_worker here. Run it as the owner
-- of the tables, after `sync-assets init`. With other names for schema, tables or columns, put those in.
-- Nothing of the owner's can be written with it: not `enabled`, `base_url`, `secret_ref`, `settings` or `data`.

GRANT USAGE ON SCHEMA sync TO sync_worker;

-- The claim returns the whole row to the sync, and writes what is the state machine's. (Locking a row, too, needs the
-- right to update one of its columns.)
GRANT SELECT ON sync.account_config TO sync_worker;
GRANT UPDATE (status, started_at, lease, claim_seq, claimed_by, last_tick, claimed_generation, last_success, failures,
    error_kind, last_error, next_attempt_at, not_before) ON sync.account_config TO sync_worker;
GRANT USAGE ON SEQUENCE sync.account_config_claim_seq TO sync_worker;

-- What the default sync reads, and what it writes back. A sync of your own may need neither.
GRANT SELECT ON sync.account_record TO sync_worker;
GRANT UPDATE (synced_version, synced_at, rejected_version, rejected_generation, external_id, error)
    ON sync.account_record TO sync_worker;
