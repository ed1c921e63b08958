-- What claim and due share, and configure.
--
-- Locks, in this order: the ordering key (an advisory lock of the transaction), then the entry.
-- Whatever makes an entry of a key `processing`, or ends it, holds the key's lock, so that two
-- claims of one key see each other. Nothing here waits for an entry that somebody else has
-- locked: a handler's transaction may hold it for minutes.
--
-- A claim must see what was committed while it waited for the key's lock, hence READ COMMITTED.

CREATE OR REPLACE FUNCTION {{schema}}.configure(
    consumer         text,
    max_attempts     integer DEFAULT 5,
    retry_initial    interval DEFAULT '1s',
    retry_multiplier double precision DEFAULT 2,
    retry_max_delay  interval DEFAULT '5m',
    retry_jitter     double precision DEFAULT 0.2,
    done_retention   interval DEFAULT '35d',
    replay_window    interval DEFAULT '30d'
) RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
BEGIN
    IF configure.done_retention < configure.replay_window THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('done_retention (%s) is shorter than replay_window (%s): a copy published again would run twice',
                             configure.done_retention, configure.replay_window),
            HINT = 'Make done_retention at least as long as the longest time after which a message may still be published again.';
    END IF;
    INSERT INTO {{schema}}.consumer AS c (
        consumer, max_attempts, retry_initial, retry_multiplier, retry_max_delay, retry_jitter,
        done_retention, replay_window
    ) VALUES (
        configure.consumer, configure.max_attempts, configure.retry_initial, configure.retry_multiplier,
        configure.retry_max_delay, configure.retry_jitter, configure.done_retention, configure.replay_window
    )
    ON CONFLICT ON CONSTRAINT consumer_pkey DO UPDATE SET
        max_attempts = excluded.max_attempts, retry_initial = excluded.retry_initial,
        retry_multiplier = excluded.retry_multiplier, retry_max_delay = excluded.retry_max_delay,
        retry_jitter = excluded.retry_jitter, done_retention = excluded.done_retention,
        replay_window = excluded.replay_window
    WHERE c IS DISTINCT FROM excluded;
END
{{tag}};

-- The consumer's limit of attempts, after noting it down where it is new or another.
CREATE OR REPLACE FUNCTION {{schema}}.attempts_allowed(consumer text, max_attempts integer)
    RETURNS integer
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
DECLARE
    allowed integer;
BEGIN
    SELECT c.max_attempts INTO allowed FROM {{schema}}.consumer c
    WHERE c.consumer = attempts_allowed.consumer;
    IF FOUND AND (attempts_allowed.max_attempts IS NULL OR attempts_allowed.max_attempts = allowed) THEN
        RETURN allowed;
    END IF;
    INSERT INTO {{schema}}.consumer AS c (consumer, max_attempts)
    VALUES (attempts_allowed.consumer, coalesce(attempts_allowed.max_attempts, 5))
    ON CONFLICT ON CONSTRAINT consumer_pkey DO UPDATE
        SET max_attempts = coalesce(attempts_allowed.max_attempts, c.max_attempts)
    RETURNING c.max_attempts INTO allowed;
    RETURN allowed;
END
{{tag}};

-- The advisory lock that stands for a consumer's ordering key.
CREATE OR REPLACE FUNCTION {{schema}}.key_lock(consumer text, ordering_key text)
    RETURNS bigint
    LANGUAGE sql IMMUTABLE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
    SELECT hashtextextended(length(consumer) || ':' || consumer || ':' || ordering_key, 7316684211437);
{{tag}};

-- Takes a key's lock for this transaction, unless somebody keeps it for longer than a moment: a
-- handler's transaction that hangs between complete and commit holds up its own key only.
CREATE OR REPLACE FUNCTION {{schema}}.lock_key(consumer text, ordering_key text)
    RETURNS boolean
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
DECLARE
    key     bigint := {{schema}}.key_lock(consumer, ordering_key);
    timeout text := current_setting('lock_timeout');
BEGIN
    IF pg_try_advisory_xact_lock(key) THEN
        RETURN true;
    END IF;
    BEGIN
        PERFORM set_config('lock_timeout', '100ms', true);
        PERFORM pg_advisory_xact_lock(key);
    EXCEPTION WHEN lock_not_available THEN
        -- What was set is undone with the block.
        RETURN false;
    END;
    PERFORM set_config('lock_timeout', timeout, true);
    RETURN true;
END
{{tag}};

-- Gives the turn to the first unfinished entry of a key, if it waits for that. The caller holds
-- the key's lock.
CREATE OR REPLACE FUNCTION {{schema}}.pass_on(consumer text, ordering_key text)
    RETURNS void
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
BEGIN
    UPDATE {{message}} m SET due_at = clock_timestamp()
    WHERE m.consumer = pass_on.consumer
      AND m.due_at IS NULL AND m.done_at IS NULL
      AND m.message_id = (
          SELECT n.message_id
          FROM unnest(ARRAY['processing', 'retry', 'waiting']) AS s (state),
               LATERAL (
                   SELECT o.message_id, o.received_at FROM {{message}} o
                   WHERE o.consumer = pass_on.consumer AND o.ordering_key = pass_on.ordering_key
                     AND hashtextextended(o.ordering_key, 0) = hashtextextended(pass_on.ordering_key, 0)
                     AND o.state = s.state AND o.done_at IS NULL
                   ORDER BY o.received_at, o.message_id LIMIT 1
               ) n
          ORDER BY n.received_at, n.message_id LIMIT 1
      );
END
{{tag}};

-- Makes an entry the caller's, if it may be: the one place where an entry that exists becomes
-- `processing`, and where one whose owners all vanished becomes `dead`. The caller holds the lock
-- of the entry's key. Outcomes are those of claim, and `gone`.
CREATE OR REPLACE FUNCTION {{schema}}.take_up(
    consumer     text,
    message_id   text,
    lease        interval,
    max_attempts integer
) RETURNS TABLE (outcome text, owner uuid, attempt integer, result jsonb)
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
DECLARE
    entry record;
    at    timestamptz;
BEGIN
    SELECT m.state, m.attempt, m.lease_until, m.due_at, m.ordering_key, m.received_at, m.result
    INTO entry
    FROM {{message}} m
    WHERE m.consumer = take_up.consumer AND m.message_id = take_up.message_id
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        SELECT m.attempt INTO attempt FROM {{message}} m
        WHERE m.consumer = take_up.consumer AND m.message_id = take_up.message_id;
        -- Locked by a handler's transaction, or just being changed: in either case it is stored.
        outcome := CASE WHEN FOUND THEN 'busy' ELSE 'gone' END;
        RETURN NEXT;
        RETURN;
    END IF;
    at := clock_timestamp();
    attempt := entry.attempt;
    IF entry.state = 'done' THEN
        outcome := 'duplicate';
        result := entry.result;
    ELSIF entry.state = 'dead' THEN
        outcome := 'dead';
    ELSIF entry.state = 'processing' AND entry.lease_until > at THEN
        outcome := 'busy';
    ELSIF entry.state <> 'processing' AND entry.due_at > at THEN
        outcome := 'waiting';
    ELSIF entry.state <> 'processing' AND entry.ordering_key IS NOT NULL AND EXISTS (
        SELECT FROM {{message}} o
        WHERE o.consumer = take_up.consumer AND o.ordering_key = entry.ordering_key
          AND hashtextextended(o.ordering_key, 0) = hashtextextended(entry.ordering_key, 0)
          AND o.state = 'processing' AND o.done_at IS NULL
        UNION ALL
        SELECT FROM {{message}} o
        WHERE o.consumer = take_up.consumer AND o.ordering_key = entry.ordering_key
          AND hashtextextended(o.ordering_key, 0) = hashtextextended(entry.ordering_key, 0)
          AND o.state = 'retry' AND o.done_at IS NULL
          AND (o.received_at, o.message_id) < (entry.received_at, take_up.message_id)
        UNION ALL
        SELECT FROM {{message}} o
        WHERE o.consumer = take_up.consumer AND o.ordering_key = entry.ordering_key
          AND hashtextextended(o.ordering_key, 0) = hashtextextended(entry.ordering_key, 0)
          AND o.state = 'waiting' AND o.done_at IS NULL
          AND (o.received_at, o.message_id) < (entry.received_at, take_up.message_id)
    ) THEN
        outcome := 'waiting';
        -- Whoever ends the entry in front passes the turn on.
        UPDATE {{message}} m SET due_at = NULL
        WHERE m.consumer = take_up.consumer AND m.message_id = take_up.message_id
          AND m.due_at IS NOT NULL;
    ELSIF entry.attempt >= take_up.max_attempts THEN
        outcome := 'dead';
        UPDATE {{message}} m
        SET state = 'dead', lease_until = NULL, due_at = NULL, done_at = at,
            first_failed_at = coalesce(m.first_failed_at, at),
            reason_class = CASE entry.state WHEN 'processing' THEN 'abandoned' ELSE 'attempts_exhausted' END,
            reason = CASE entry.state
                WHEN 'processing' THEN format(
                    'attempt %s of %s was the last, and its owner let the lease end without a word: it crashed, hung, or lost the database',
                    entry.attempt, take_up.max_attempts)
                ELSE format('%s attempts were made, %s are allowed now: %s',
                            entry.attempt, take_up.max_attempts, coalesce(m.reason, 'no reason is known'))
            END
        WHERE m.consumer = take_up.consumer AND m.message_id = take_up.message_id;
        IF entry.ordering_key IS NOT NULL THEN
            PERFORM {{schema}}.pass_on(take_up.consumer, entry.ordering_key);
        END IF;
    ELSE
        outcome := CASE entry.state WHEN 'processing' THEN 'taken_over' ELSE 'claimed' END;
        owner := gen_random_uuid();
        attempt := entry.attempt + 1;
        UPDATE {{message}} m
        SET state = 'processing', owner = take_up.owner, attempt = take_up.attempt,
            lease_until = at + take_up.lease, due_at = at + take_up.lease
        WHERE m.consumer = take_up.consumer AND m.message_id = take_up.message_id;
    END IF;
    RETURN NEXT;
END
{{tag}};

REVOKE ALL ON FUNCTION {{schema}}.configure(text, integer, interval, double precision, interval, double precision, interval, interval) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.attempts_allowed(text, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.key_lock(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.lock_key(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.pass_on(text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.take_up(text, text, interval, integer) FROM PUBLIC;

COMMENT ON FUNCTION {{schema}}.configure(text, integer, interval, double precision, interval, double precision, interval, interval) IS
    'Sets a consumer''s limits, all of them. Refuses with SQLSTATE 22023 a done_retention shorter than replay_window.';
