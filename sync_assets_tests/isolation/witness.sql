-- What watches every permutation from inside the database: who claimed, settled and wrote what, in which order, and
-- whether they were allowed to.
CREATE TABLE permutation (n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, begun timestamptz DEFAULT now());
CREATE TABLE history (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, permutation bigint, session text, event text, base_url text
);
CREATE TABLE violation (permutation bigint, what text);

CREATE FUNCTION this_permutation() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT max(n) FROM permutation';

-- The tester names its sessions isolation/NAME.
CREATE FUNCTION me() RETURNS text LANGUAGE sql STABLE AS
    $$ SELECT regexp_replace(current_setting('application_name'), '.*/', '') $$;

-- The number of this session's last claim of account x, and the row as that claim found it; null before its first.
CREATE FUNCTION mine() RETURNS bigint LANGUAGE sql STABLE AS
    $$ SELECT nullif(current_setting('witness.claim_seq', true), '')::bigint $$;
CREATE FUNCTION found() RETURNS jsonb LANGUAGE sql STABLE AS
    $$ SELECT nullif(current_setting('witness.found', true), '')::jsonb $$;

CREATE FUNCTION note(event text, base_url text DEFAULT NULL) RETURNS void LANGUAGE sql VOLATILE AS $$
    INSERT INTO history (permutation, session, event, base_url) VALUES (this_permutation(), me(), event, base_url)
$$;
CREATE FUNCTION violated(what text) RETURNS void LANGUAGE sql VOLATILE AS $$
    INSERT INTO violation VALUES (this_permutation(), me() || ': ' || what)
$$;

CREATE FUNCTION watch_account() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    owners text[] := ARRAY['enabled', 'base_url', 'secret_ref', 'settings', 'generation'];
BEGIN
    IF NEW.claim_seq <> OLD.claim_seq THEN
        IF NEW.claim_seq < OLD.claim_seq THEN PERFORM violated('a claim number went back'); END IF;
        IF NOT OLD.enabled THEN PERFORM violated('claimed a disabled account'); END IF;
        IF OLD.status = 'IN_PROGRESS' AND OLD.started_at + OLD.lease >= now() THEN
            PERFORM violated('claimed what another held');
        END IF;
        -- whoever writes records has this lock shared until the commit: both at once must not be possible
        IF NOT pg_try_advisory_xact_lock(hashtext(NEW.account_id)) THEN
            PERFORM violated('took an account over while its records were being written');
        END IF;
        IF NEW.account_id = 'x' THEN  -- the one that is settled
            PERFORM set_config('witness.claim_seq', NEW.claim_seq::text, false);
            PERFORM set_config('witness.found', to_jsonb(OLD)::text, false);
        END IF;
        PERFORM note('claims', NEW.base_url);
    ELSIF to_jsonb(OLD) - owners = to_jsonb(NEW) - owners THEN
        PERFORM note('edits');
    ELSE
        IF OLD.status <> 'IN_PROGRESS' OR mine() IS DISTINCT FROM OLD.claim_seq THEN
            PERFORM violated('wrote to an account that was not its own');
        END IF;
        PERFORM note('settles');
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER watch AFTER UPDATE ON sync.account_config FOR EACH ROW EXECUTE FUNCTION watch_account();

CREATE FUNCTION watch_record() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.synced_version IS NOT DISTINCT FROM OLD.synced_version THEN
        RETURN NULL;
    END IF;
    IF NOT EXISTS (
        SELECT FROM sync.account_config
        WHERE account_id = NEW.account_id AND claim_seq = mine() AND status = 'IN_PROGRESS'
    ) OR NOT pg_try_advisory_xact_lock_shared(hashtext(NEW.account_id)) THEN
        PERFORM violated('wrote a record of an account that was not its own');
    END IF;
    PERFORM note('writes ' || NEW.record_id);
    RETURN NULL;
END
$$;
CREATE TRIGGER watch AFTER UPDATE ON sync.account_record FOR EACH ROW EXECUTE FUNCTION watch_record();

-- What is said at the end of each permutation: nothing, or what was wrong.
CREATE VIEW verdict AS
SELECT what AS wrong FROM violation WHERE permutation = this_permutation()
UNION ALL
SELECT 'a change of the configuration was passed over' FROM sync.account_config AS account
WHERE generation = claimed_generation AND base_url IS DISTINCT FROM (
    SELECT history.base_url FROM history
    WHERE permutation = this_permutation() AND event = 'claims' ORDER BY n DESC LIMIT 1
)
UNION ALL
SELECT 'an edit of a record was acknowledged unsent' FROM sync.account_record
WHERE synced_version = version AND data <> '[]';
