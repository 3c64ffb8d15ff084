-- The database's side of the truth: every change of every account and record, written by the change itself. A row's
-- changes have the order of their numbers, because each is drawn while the row's lock is held; what was rolled back, or
-- lost in a crash, is not there.
CREATE SCHEMA soak;

CREATE TABLE soak.account_history (
    number   bigserial PRIMARY KEY,
    at       float8 NOT NULL,  -- clock_timestamp(), seconds since the epoch
    began    float8 NOT NULL,  -- now(): what the claim measures leases with
    uptime   float8,           -- the machine's, in hundredths of a second: tells by which clock the two were read
    who      text NOT NULL,    -- the login role: each run has its own
    account  text NOT NULL,
    before   jsonb,
    after    jsonb
);

CREATE TABLE soak.record_history (
    number   bigserial PRIMARY KEY,
    at       float8 NOT NULL,
    uptime   float8,
    who      text NOT NULL,
    account  text NOT NULL,
    record   text NOT NULL,
    before   jsonb,
    after    jsonb,
    holder_seq    bigint,      -- whose the account was at this moment
    holder_status text
);

-- Of a clock that nobody sets, and this server's least of all; none where the system has no such file.
CREATE FUNCTION soak.uptime() RETURNS float8 LANGUAGE sql VOLATILE AS $$
    SELECT split_part(pg_catalog.pg_read_file('/proc/uptime', 0, 100, true), ' ', 1)::float8
$$;

CREATE FUNCTION soak.account_state(account sync.account_config) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'enabled', account.enabled, 'status', account.status, 'started_at', extract(epoch FROM account.started_at),
        'lease', extract(epoch FROM account.lease), 'claim_seq', account.claim_seq, 'claimed_by', account.claimed_by,
        'last_tick', extract(epoch FROM account.last_tick), 'last_success', extract(epoch FROM account.last_success),
        'failures', account.failures, 'error_kind', account.error_kind,
        'next_attempt_at', extract(epoch FROM account.next_attempt_at), 'not_before', extract(epoch FROM account.not_before),
        'generation', account.generation, 'claimed_generation', account.claimed_generation)
$$;

CREATE FUNCTION soak.record_state(record sync.account_record) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object(
        'version', record.version, 'synced_version', record.synced_version, 'rejected_version', record.rejected_version,
        'deleted', record.deleted_at IS NOT NULL)
$$;

-- As their owner: the runs have no rights here.
CREATE FUNCTION soak.note_account() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
BEGIN
    INSERT INTO soak.account_history (at, began, uptime, who, account, before, after)
    VALUES (extract(epoch FROM clock_timestamp()), extract(epoch FROM now()), soak.uptime(), session_user,
        CASE WHEN TG_OP = 'DELETE' THEN OLD.account_id ELSE NEW.account_id END,
        CASE WHEN TG_OP <> 'INSERT' THEN soak.account_state(OLD) END,
        CASE WHEN TG_OP <> 'DELETE' THEN soak.account_state(NEW) END);
    RETURN NULL;
END
$$;

CREATE FUNCTION soak.note_record() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $$
DECLARE
    changed sync.account_record := CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    INSERT INTO soak.record_history (at, uptime, who, account, record, before, after, holder_seq, holder_status)
    SELECT extract(epoch FROM clock_timestamp()), soak.uptime(), session_user, changed.account_id, changed.record_id,
        CASE WHEN TG_OP <> 'INSERT' THEN soak.record_state(OLD) END,
        CASE WHEN TG_OP <> 'DELETE' THEN soak.record_state(NEW) END,
        (SELECT claim_seq FROM sync.account_config WHERE account_id = changed.account_id),
        (SELECT status FROM sync.account_config WHERE account_id = changed.account_id);
    RETURN NULL;
END
$$;

CREATE TRIGGER soak_history AFTER INSERT OR UPDATE OR DELETE ON sync.account_config
    FOR EACH ROW EXECUTE FUNCTION soak.note_account();
CREATE TRIGGER soak_history AFTER INSERT OR UPDATE OR DELETE ON sync.account_record
    FOR EACH ROW EXECUTE FUNCTION soak.note_record();

-- What a run may do, and nothing else: each run logs in as a role of its own that is in this one.
CREATE ROLE soak_runs;
GRANT USAGE ON SCHEMA sync TO soak_runs;
GRANT SELECT, UPDATE ON sync.account_config, sync.account_record TO soak_runs;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA sync TO soak_runs;
