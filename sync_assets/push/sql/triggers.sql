-- What draws the versions. Safe to run again: init does, on a table that lacks one.

-- One sequence for all records, so that one that is deleted and made again never has a version it had before. The
-- owner's roles need no rights on it: the function runs as whoever created the table.
CREATE OR REPLACE FUNCTION {version_function}() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog AS $sync_assets$
BEGIN
    NEW.version := nextval({version_seq_name});
    RETURN NEW;
END
$sync_assets$;

CREATE OR REPLACE TRIGGER sync_assets_version_new BEFORE INSERT ON {records}
    FOR EACH ROW EXECUTE FUNCTION {version_function}();
-- On what the owner writes only, so that an acknowledgement never compares a large document with itself; and only
-- when it really changed. A record that gets another name is another record upstream.
CREATE OR REPLACE TRIGGER sync_assets_version BEFORE UPDATE OF account_id, record_id, data, deleted_at ON {records}
    FOR EACH ROW
    WHEN ((OLD.account_id, OLD.record_id, OLD.data, OLD.deleted_at)
        IS DISTINCT FROM (NEW.account_id, NEW.record_id, NEW.data, NEW.deleted_at))
    EXECUTE FUNCTION {version_function}();
