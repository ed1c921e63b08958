-- Ending work: hold, renew, complete, fail, release, retry, and forgetting what is old.
--
-- All but `retry` return false, and change nothing, to whoever is no longer the owner.

CREATE OR REPLACE FUNCTION {{schema}}.hold(consumer text, message_id text, owner uuid)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
BEGIN
    PERFORM FROM {{message}} m
    WHERE m.consumer = hold.consumer AND m.message_id = hold.message_id
      AND m.owner = hold.owner AND m.state = 'processing'
    FOR UPDATE;
    RETURN FOUND;
END
{{tag}};

CREATE OR REPLACE FUNCTION {{schema}}.renew(consumer text, message_id text, owner uuid, lease interval)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
DECLARE
    at timestamptz := clock_timestamp();
BEGIN
    IF renew.lease IS NULL OR renew.lease < '0' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('lease is %s; it must not be negative', coalesce(renew.lease::text, 'null'));
    END IF;
    UPDATE {{message}} m SET lease_until = at + renew.lease, due_at = at + renew.lease
    WHERE m.consumer = renew.consumer AND m.message_id = renew.message_id
      AND m.owner = renew.owner AND m.state = 'processing';
    RETURN FOUND;
END
{{tag}};

CREATE OR REPLACE FUNCTION {{schema}}.complete(
    consumer   text,
    message_id text,
    owner      uuid,
    result     jsonb DEFAULT NULL
) RETURNS boolean
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
DECLARE
    entry record;
BEGIN
    SELECT m.state, m.ordering_key INTO entry FROM {{message}} m
    WHERE m.consumer = complete.consumer AND m.message_id = complete.message_id
      AND m.owner = complete.owner AND m.state IN ('processing', 'done');
    IF NOT FOUND THEN
        RETURN false;
    ELSIF entry.state = 'done' THEN
        -- Said again after an answer that was lost: it is this owner's result that stands.
        RETURN true;
    END IF;
    IF entry.ordering_key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock({{schema}}.key_lock(complete.consumer, entry.ordering_key));
    END IF;
    UPDATE {{message}} m
    SET state = 'done', result = complete.result, payload = NULL, lease_until = NULL, due_at = NULL,
        done_at = clock_timestamp()
    WHERE m.consumer = complete.consumer AND m.message_id = complete.message_id
      AND m.owner = complete.owner AND m.state = 'processing';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF entry.ordering_key IS NOT NULL THEN
        PERFORM {{schema}}.pass_on(complete.consumer, entry.ordering_key);
    END IF;
    RETURN true;
END
{{tag}};

CREATE OR REPLACE FUNCTION {{schema}}.fail(
    consumer     text,
    message_id   text,
    owner        uuid,
    reason_class text,
    reason       text
) RETURNS boolean
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
DECLARE
    key text;
    at  timestamptz;
BEGIN
    SELECT m.ordering_key INTO key FROM {{message}} m
    WHERE m.consumer = fail.consumer AND m.message_id = fail.message_id
      AND m.owner = fail.owner AND m.state = 'processing';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF key IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock({{schema}}.key_lock(fail.consumer, key));
    END IF;
    at := clock_timestamp();
    UPDATE {{message}} m
    SET state = 'dead', lease_until = NULL, due_at = NULL, done_at = at,
        reason_class = coalesce(nullif(fail.reason_class, ''), 'permanent'), reason = coalesce(fail.reason, ''),
        first_failed_at = coalesce(m.first_failed_at, at)
    WHERE m.consumer = fail.consumer AND m.message_id = fail.message_id
      AND m.owner = fail.owner AND m.state = 'processing';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF key IS NOT NULL THEN
        PERFORM {{schema}}.pass_on(fail.consumer, key);
    END IF;
    RETURN true;
END
{{tag}};

CREATE OR REPLACE FUNCTION {{schema}}.release(consumer text, message_id text, owner uuid)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
BEGIN
    UPDATE {{message}} m
    SET state = 'waiting', owner = NULL, lease_until = NULL, attempt = m.attempt - 1,
        due_at = clock_timestamp()
    WHERE m.consumer = release.consumer AND m.message_id = release.message_id
      AND m.owner = release.owner AND m.state = 'processing';
    RETURN FOUND;
END
{{tag}};

CREATE OR REPLACE FUNCTION {{schema}}.retry(
    consumer    text,
    message_id  text,
    owner       uuid,
    reason      text,
    retry_after interval DEFAULT NULL
) RETURNS timestamptz
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
DECLARE
    limits  record;
    tried   integer;
    seconds double precision;
    longest double precision;
    at      timestamptz;
BEGIN
    SELECT m.attempt INTO tried FROM {{message}} m
    WHERE m.consumer = retry.consumer AND m.message_id = retry.message_id
      AND m.owner = retry.owner AND m.state = 'processing';
    SELECT c.* INTO limits FROM {{schema}}.consumer c WHERE c.consumer = retry.consumer;
    IF tried >= limits.max_attempts AND {{schema}}.fail(
        retry.consumer, retry.message_id, retry.owner, 'attempts_exhausted', retry.reason)
    THEN
        RETURN NULL;
    END IF;

    IF retry.retry_after >= '0' AND retry.retry_after <= '1 year' THEN
        seconds := extract(epoch FROM retry.retry_after);
    ELSE
        -- Near the longest pause the spread lies below it, not above.
        longest := extract(epoch FROM limits.retry_max_delay);
        seconds := extract(epoch FROM limits.retry_initial)
            * power(limits.retry_multiplier, least(tried - 1, 100)::double precision);
        seconds := least(seconds, longest / (1 + limits.retry_jitter))
            * (1 + limits.retry_jitter * (2 * random() - 1));
        seconds := least(seconds, longest);
    END IF;
    at := clock_timestamp();
    UPDATE {{message}} m
    SET state = 'retry', owner = NULL, lease_until = NULL, due_at = at + make_interval(secs => seconds),
        reason_class = 'temporary', reason = coalesce(retry.reason, ''),
        first_failed_at = coalesce(m.first_failed_at, at)
    WHERE m.consumer = retry.consumer AND m.message_id = retry.message_id
      AND m.owner = retry.owner AND m.state = 'processing' AND m.attempt < limits.max_attempts
    RETURNING m.due_at INTO at;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING
            ERRCODE = 'OX001',
            MESSAGE = 'inbox.retry: no longer the owner of this entry; nothing was changed',
            HINT = 'The lease ended and another consumer took over. Ack the delivery and leave the rest to the new owner.';
    END IF;
    RETURN at;
END
{{tag}};

CREATE OR REPLACE FUNCTION {{schema}}.tidy(consumer text, "limit" integer DEFAULT 1000)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
DECLARE
    keep    interval;
    removed integer;
    stalled record;
BEGIN
    SELECT c.done_retention INTO keep FROM {{schema}}.consumer c WHERE c.consumer = tidy.consumer;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    DELETE FROM {{message}} m
    WHERE m.consumer = tidy.consumer AND m.state = 'done' AND m.message_id IN (
        SELECT o.message_id FROM {{message}} o
        WHERE o.consumer = tidy.consumer AND o.state = 'done' AND o.done_at < clock_timestamp() - keep
        ORDER BY o.done_at LIMIT tidy."limit"
        FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS removed = ROW_COUNT;
    -- Entries whose turn nobody passed on, because the one in front was removed by hand.
    FOR stalled IN
        SELECT DISTINCT m.ordering_key FROM {{message}} m
        WHERE m.consumer = tidy.consumer AND m.ordering_key IS NOT NULL
          AND m.state = 'waiting' AND m.done_at IS NULL AND m.due_at IS NULL
    LOOP
        IF pg_try_advisory_xact_lock({{schema}}.key_lock(tidy.consumer, stalled.ordering_key)) THEN
            PERFORM {{schema}}.pass_on(tidy.consumer, stalled.ordering_key);
        END IF;
    END LOOP;
    RETURN removed;
END
{{tag}};

REVOKE ALL ON FUNCTION {{schema}}.hold(text, text, uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.renew(text, text, uuid, interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.complete(text, text, uuid, jsonb) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.fail(text, text, uuid, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.release(text, text, uuid) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.retry(text, text, uuid, text, interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.tidy(text, integer) FROM PUBLIC;

COMMENT ON FUNCTION {{schema}}.hold(text, text, uuid) IS
    'First statement of a handler''s transaction: locks the entry, so that nobody takes it over while the transaction lives, whatever its lease says. False: no longer the owner, roll back.';
COMMENT ON FUNCTION {{schema}}.renew(text, text, uuid, interval) IS
    'Extends the lease from now. A lease of zero gives the entry up at once, the next owner being told taken_over. False: no longer the owner, stop.';
COMMENT ON FUNCTION {{schema}}.complete(text, text, uuid, jsonb) IS
    'Stores the result; the entry is done. Last statement of a handler''s transaction, or after the effect of a leased handler. May be said again by the same owner. False: no longer the owner, nothing changed; in a transaction, roll back.';
COMMENT ON FUNCTION {{schema}}.fail(text, text, uuid, text, text) IS
    'Gives the message up: dead, with a class (one word, for counting) and a reason. False: no longer the owner, nothing changed.';
COMMENT ON FUNCTION {{schema}}.release(text, text, uuid) IS
    'Gives back work that was not begun; the attempt does not count. False: no longer the owner, nothing changed.';
COMMENT ON FUNCTION {{schema}}.retry(text, text, uuid, text, interval) IS
    'Puts the entry off until retry_after (0 to 1 year), else by the consumer''s backoff, and returns when it is due; null: attempts used up, the entry is dead. Raises SQLSTATE OX001, changing nothing, for whoever is no longer the owner.';
COMMENT ON FUNCTION {{schema}}.tidy(text, integer) IS
    'Forgets at most limit done entries older than done_retention and returns how many. Call it every few minutes.';
