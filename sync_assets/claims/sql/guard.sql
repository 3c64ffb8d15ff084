-- What keeps the state machine whole and sees the owner's changes. Safe to run again; used by init and by adopt.

-- An application that saves every column of a row it read a minute ago must not reset a claim, nor make one up: what it
-- writes to our columns is ignored, the rest of its save is kept. Our own statements name themselves with a setting
-- that ends with their transaction. By hand: SET sync_assets.writes = on
CREATE OR REPLACE FUNCTION {guard_function}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN       -- a new row is free, also when it is a copy of one that is not
        NEW.status := 'IDLE';
        NEW.started_at := NULL;
        NEW.lease := NULL;
        NEW.claim_seq := 0;
        NEW.claimed_by := NULL;
        NEW.last_tick := NULL;
        NEW.last_success := NULL;
        NEW.failures := 0;
        NEW.error_kind := NULL;
        NEW.last_error := NULL;
        NEW.next_attempt_at := NULL;
        NEW.not_before := NULL;
        NEW.generation := 0;
        NEW.claimed_generation := 0;
    ELSE
        NEW.status := OLD.status;
        NEW.started_at := OLD.started_at;
        NEW.lease := OLD.lease;
        NEW.claim_seq := OLD.claim_seq;
        NEW.claimed_by := OLD.claimed_by;
        NEW.last_tick := OLD.last_tick;
        NEW.last_success := OLD.last_success;
        NEW.failures := OLD.failures;
        NEW.error_kind := OLD.error_kind;
        NEW.last_error := OLD.last_error;
        NEW.next_attempt_at := OLD.next_attempt_at;
        NEW.not_before := OLD.not_before;
        NEW.generation := OLD.generation;
        NEW.claimed_generation := OLD.claimed_generation;
    END IF;
    RETURN NEW;
END
$$;

-- The owner's roles need no rights on our sequence: the function runs as whoever created the table.
CREATE OR REPLACE FUNCTION {generation_function}() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    NEW.generation := nextval(TG_ARGV[0]);
    RETURN NEW;
END
$$;

-- Triggers run in the order of their names: the guard goes first. It costs nothing where our columns are not written.
CREATE OR REPLACE TRIGGER sync_assets_claim_guard
    BEFORE INSERT OR UPDATE OF status, started_at, lease, claim_seq, claimed_by, last_tick, last_success, failures,
        error_kind, last_error, next_attempt_at, not_before, generation, claimed_generation ON {table}
    FOR EACH ROW WHEN (current_setting('sync_assets.writes', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION {guard_function}();
CREATE OR REPLACE TRIGGER sync_assets_generation_new BEFORE INSERT ON {table}
    FOR EACH ROW EXECUTE FUNCTION {generation_function}({generation_seq_name});
-- On the owner's columns only, so that a claim or a settle never runs it; and only when one really changed, so that
-- an application that saves the whole row changes nothing. Bytes are compared: some types have no equality.
CREATE OR REPLACE TRIGGER sync_assets_generation BEFORE UPDATE OF {watched} ON {table}
    FOR EACH ROW WHEN (ROW({watched_old})::record *<> ROW({watched_new})::record)
    EXECUTE FUNCTION {generation_function}({generation_seq_name});

-- What later commands must know of this table, and the version of what is in it.
COMMENT ON TRIGGER sync_assets_claim_guard ON {table} IS {record};
