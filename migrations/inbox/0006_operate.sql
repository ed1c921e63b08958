-- Operators' acts on dead entries. Each leaves a row in audit, in the same transaction, also
-- where there was nothing to do.

CREATE OR REPLACE FUNCTION {{schema}}.replay(
    consumer   text,
    message_id text,
    by_whom    text,
    reason     text,
    version    text DEFAULT 'sql'
) RETURNS text
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
DECLARE
    entry   record;
    outcome text;
BEGIN
    SELECT m.ordering_key INTO entry FROM {{message}} m
    WHERE m.consumer = replay.consumer AND m.message_id = replay.message_id;
    IF NOT FOUND THEN
        RETURN 'missing';
    END IF;
    IF entry.ordering_key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock({{schema}}.key_lock(replay.consumer, entry.ordering_key));
    END IF;
    SELECT m.state, m.ordering_key, m.attempt, m.reason_class, m.reason, m.done_at INTO entry
    FROM {{message}} m
    WHERE m.consumer = replay.consumer AND m.message_id = replay.message_id
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        -- Somebody works on it.
        RETURN 'unfinished';
    END IF;
    outcome := CASE entry.state
        WHEN 'dead' THEN 'replayed'
        WHEN 'done' THEN 'suppressed'
        ELSE 'unfinished'
    END;
    IF outcome = 'replayed' THEN
        UPDATE {{message}} m
        SET state = 'waiting', owner = NULL, attempt = 0, done_at = NULL, first_failed_at = NULL,
            due_at = CASE WHEN entry.ordering_key IS NULL THEN clock_timestamp() END
        WHERE m.consumer = replay.consumer AND m.message_id = replay.message_id;
        IF entry.ordering_key IS NOT NULL THEN
            PERFORM {{schema}}.pass_on(replay.consumer, entry.ordering_key);
        END IF;
    END IF;
    INSERT INTO {{schema}}.audit (act, by_whom, reason, consumer, message_id, detail, version)
    VALUES ('replay', replay.by_whom, replay.reason, replay.consumer, replay.message_id,
            jsonb_build_object('outcome', outcome, 'state', entry.state, 'attempts', entry.attempt,
                               'reason_class', entry.reason_class, 'reason', entry.reason,
                               'finished_at', entry.done_at),
            replay.version);
    RETURN outcome;
END
{{tag}};

CREATE OR REPLACE FUNCTION {{schema}}.discard(
    consumer   text,
    message_id text,
    by_whom    text,
    reason     text,
    version    text DEFAULT 'sql'
) RETURNS text
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
DECLARE
    entry   record;
    outcome text;
BEGIN
    SELECT m.state, m.attempt, m.reason_class, m.reason, m.done_at, sha256(m.payload) AS digest INTO entry
    FROM {{message}} m
    WHERE m.consumer = discard.consumer AND m.message_id = discard.message_id
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        PERFORM FROM {{message}} m
        WHERE m.consumer = discard.consumer AND m.message_id = discard.message_id;
        RETURN CASE WHEN FOUND THEN 'unfinished' ELSE 'missing' END;
    END IF;
    outcome := CASE entry.state WHEN 'dead' THEN 'discarded' WHEN 'done' THEN 'suppressed' ELSE 'unfinished' END;
    IF outcome = 'discarded' THEN
        -- It stays as done, so that a copy that still arrives is a duplicate.
        UPDATE {{message}} m
        SET state = 'done', payload = NULL, reason_class = 'discarded', reason = discard.reason,
            done_at = clock_timestamp()
        WHERE m.consumer = discard.consumer AND m.message_id = discard.message_id;
    END IF;
    INSERT INTO {{schema}}.audit (act, by_whom, reason, consumer, message_id, detail, version)
    VALUES ('discard', discard.by_whom, discard.reason, discard.consumer, discard.message_id,
            jsonb_build_object('outcome', outcome, 'state', entry.state, 'attempts', entry.attempt,
                               'reason_class', entry.reason_class, 'reason', entry.reason,
                               'finished_at', entry.done_at, 'payload_sha256', encode(entry.digest, 'hex')),
            discard.version);
    RETURN outcome;
END
{{tag}};

REVOKE ALL ON FUNCTION {{schema}}.replay(text, text, text, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.discard(text, text, text, text, text) FROM PUBLIC;

COMMENT ON FUNCTION {{schema}}.replay(text, text, text, text, text) IS
    'Opens a dead entry again with all its attempts; inbox.due hands it out in its place within its key. Returns replayed, suppressed (it is done and will not run twice), unfinished (it is still being worked on) or missing. Audited.';
COMMENT ON FUNCTION {{schema}}.discard(text, text, text, text, text) IS
    'Closes a dead entry for good; its payload is removed, its digest kept in audit. Returns discarded, suppressed, unfinished or missing. Audited.';
