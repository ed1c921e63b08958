-- Beginning work: claim what was delivered, refuse what nobody can work on, ask for what is due.

CREATE OR REPLACE FUNCTION {{schema}}.claim(
    consumer     text,
    message_id   text,
    lease        interval,
    payload      bytea,
    headers      jsonb DEFAULT NULL,
    properties   jsonb DEFAULT NULL,
    exchange     text DEFAULT '',
    routing_key  text DEFAULT '',
    ordering_key text DEFAULT NULL,
    max_attempts integer DEFAULT NULL
) RETURNS TABLE (outcome text, owner uuid, attempt integer, result jsonb)
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
DECLARE
    key     text := nullif(coalesce(claim.ordering_key, claim.headers ->> 'x-outbox-key'), '');
    allowed integer;
    entry   record;
    at      timestamptz;
    behind  timestamptz;
    locked  boolean;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = 'inbox.claim needs READ COMMITTED: it must see what others committed while it waited',
            HINT = 'Claim outside your own transaction, with default_transaction_isolation = ''read committed''.';
    ELSIF coalesce(claim.consumer, '') = '' OR coalesce(claim.message_id, '') = '' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'consumer and message_id must not be null or empty: together they are the idempotency key';
    ELSIF claim.payload IS NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'payload must not be null: a later attempt may have nothing but this entry';
    ELSIF claim.lease IS NULL OR claim.lease <= '0' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('lease is %s; it must be longer than zero', coalesce(claim.lease::text, 'null'));
    ELSIF octet_length(claim.consumer) > 255 OR octet_length(claim.message_id) > 1024 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('consumer has %s bytes and message_id %s; at most 255 and 1024 are taken',
                             octet_length(claim.consumer), octet_length(claim.message_id));
    ELSIF claim.ordering_key IS NULL
        AND jsonb_typeof(claim.headers -> 'x-outbox-key') IN ('object', 'array', 'boolean')
    THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'the header x-outbox-key is not a text',
            HINT = 'Keep the message by inbox.refuse, or give the ordering key yourself, '''' for none.';
    ELSIF claim.max_attempts < 1 THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('max_attempts is %s; it must be at least 1', claim.max_attempts);
    END IF;
    allowed := {{schema}}.attempts_allowed(claim.consumer, claim.max_attempts);

    LOOP
        -- Of a round before this one: another claim's entry has another owner.
        owner := NULL;
        SELECT m.state, m.attempt, m.lease_until, m.ordering_key, m.result
        INTO entry
        FROM {{message}} m
        WHERE m.consumer = claim.consumer AND m.message_id = claim.message_id;
        IF FOUND THEN
            -- Most repeated deliveries are answered without any lock.
            attempt := entry.attempt;
            outcome := CASE
                WHEN entry.state = 'done' THEN 'duplicate'
                WHEN entry.state = 'dead' THEN 'dead'
                WHEN entry.state = 'processing' AND entry.lease_until > clock_timestamp() THEN 'busy'
            END;
            IF outcome IS NOT NULL THEN
                result := entry.result;
                RETURN NEXT;
                RETURN;
            END IF;
            IF entry.ordering_key IS NOT NULL AND NOT {{schema}}.lock_key(claim.consumer, entry.ordering_key)
            THEN
                -- Stored it is; whoever keeps the lock passes the turn on, and due looks, too.
                outcome := 'busy';
                RETURN NEXT;
                RETURN;
            END IF;
            SELECT t.* INTO outcome, owner, attempt, result
            FROM {{schema}}.take_up(claim.consumer, claim.message_id, claim.lease, allowed) t;
            IF outcome <> 'gone' THEN
                RETURN NEXT;
                RETURN;
            END IF;
        ELSE
            at := clock_timestamp();
            behind := NULL;
            locked := true;
            IF key IS NOT NULL THEN
                locked := {{schema}}.lock_key(claim.consumer, key);
                at := clock_timestamp();
                SELECT max(l.received_at) INTO behind
                FROM unnest(ARRAY['processing', 'retry', 'waiting']) AS s (state),
                     LATERAL (
                         SELECT o.received_at FROM {{message}} o
                         WHERE o.consumer = claim.consumer AND o.ordering_key = key
                           AND hashtextextended(o.ordering_key, 0) = hashtextextended(key, 0)
                           AND o.state = s.state AND o.done_at IS NULL
                         ORDER BY o.received_at DESC, o.message_id DESC LIMIT 1
                     ) l;
            END IF;
            IF locked AND behind IS NULL THEN
                outcome := 'claimed';
                owner := gen_random_uuid();
                attempt := 1;
            ELSE
                outcome := 'waiting';
                owner := NULL;
                attempt := 0;
                -- Arrival order holds even where the clock was set back.
                at := greatest(at, behind + '1 microsecond');
            END IF;
            INSERT INTO {{message}} AS m (
                consumer, message_id, ordering_key, state, owner, lease_until, attempt, due_at,
                payload, headers, properties, exchange, routing_key, schema_version, received_at
            ) VALUES (
                claim.consumer, claim.message_id, key,
                CASE outcome WHEN 'claimed' THEN 'processing' ELSE 'waiting' END,
                claim.owner,
                CASE outcome WHEN 'claimed' THEN at + claim.lease END,
                claim.attempt,
                -- Without the lock nobody else may know of it: due finds out whose turn it is.
                CASE WHEN outcome = 'claimed' THEN at + claim.lease WHEN NOT locked THEN at END,
                claim.payload, claim.headers, claim.properties,
                coalesce(claim.exchange, ''), coalesce(claim.routing_key, ''),
                claim.headers ->> 'schema-version', at
            )
            ON CONFLICT ON CONSTRAINT message_pkey DO NOTHING;
            IF FOUND THEN
                RETURN NEXT;
                RETURN;
            END IF;
            -- Another claim of the same message was first: look at what it left.
        END IF;
    END LOOP;
END
{{tag}};

CREATE OR REPLACE FUNCTION {{schema}}.refuse(
    consumer    text,
    message_id  text,
    payload     bytea,
    reason      text,
    headers     jsonb DEFAULT NULL,
    properties  jsonb DEFAULT NULL,
    exchange    text DEFAULT '',
    routing_key text DEFAULT ''
) RETURNS text
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
DECLARE
    at    timestamptz := clock_timestamp();
    known text;
    id    text := CASE
        WHEN octet_length(refuse.message_id) BETWEEN 1 AND 1024 THEN refuse.message_id
        ELSE 'invalid:' || encode(sha256(
            convert_to(coalesce(refuse.exchange, ''), 'UTF8') || '\x00'::bytea
            || convert_to(coalesce(refuse.routing_key, ''), 'UTF8') || '\x00'::bytea
            || refuse.payload), 'hex')
    END;
BEGIN
    PERFORM {{schema}}.attempts_allowed(refuse.consumer, NULL);
    LOOP
        INSERT INTO {{message}} AS m (
            consumer, message_id, state, payload, headers, properties, exchange, routing_key,
            schema_version, reason_class, reason, received_at, first_failed_at, done_at
        ) VALUES (
            refuse.consumer, id, 'dead', refuse.payload, refuse.headers, refuse.properties,
            coalesce(refuse.exchange, ''), coalesce(refuse.routing_key, ''),
            refuse.headers ->> 'schema-version', 'malformed', coalesce(refuse.reason, ''), at, at, at
        )
        ON CONFLICT ON CONSTRAINT message_pkey DO NOTHING;
        IF FOUND THEN
            RETURN 'refused';
        END IF;
        -- A copy: what is known of the message stands, whatever is wrong with this one.
        SELECT m.state INTO known FROM {{message}} m
        WHERE m.consumer = refuse.consumer AND m.message_id = id;
        IF FOUND THEN
            RETURN known;
        END IF;
    END LOOP;
END
{{tag}};

CREATE OR REPLACE FUNCTION {{schema}}.due(
    consumer text,
    "limit"  integer,
    lease    interval
) RETURNS TABLE (
    message_id     text,
    outcome        text,
    owner          uuid,
    attempt        integer,
    payload        bytea,
    headers        jsonb,
    properties     jsonb,
    exchange       text,
    routing_key    text,
    ordering_key   text,
    schema_version text,
    received_at    timestamptz
)
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_column
DECLARE
    allowed   integer;
    candidate record;
    taken     record;
    handed    integer := 0;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'feature_not_supported',
            MESSAGE = 'inbox.due needs READ COMMITTED: it must see what others committed meanwhile';
    ELSIF due.lease IS NULL OR due.lease <= '0' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = format('lease is %s; it must be longer than zero', coalesce(due.lease::text, 'null'));
    END IF;
    SELECT c.max_attempts INTO allowed FROM {{schema}}.consumer c WHERE c.consumer = due.consumer;
    IF NOT FOUND THEN
        -- Without a claim there is no entry either.
        RETURN;
    END IF;
    FOR candidate IN
        SELECT m.message_id, m.ordering_key FROM {{message}} m
        WHERE m.consumer = due.consumer AND m.done_at IS NULL AND m.due_at <= clock_timestamp()
        ORDER BY m.due_at
    LOOP
        EXIT WHEN handed >= due."limit";
        -- A key that somebody is busy with comes next time.
        CONTINUE WHEN candidate.ordering_key IS NOT NULL AND NOT pg_try_advisory_xact_lock(
            {{schema}}.key_lock(due.consumer, candidate.ordering_key));
        SELECT t.outcome, t.owner, t.attempt INTO taken
        FROM {{schema}}.take_up(due.consumer, candidate.message_id, due.lease, allowed) t;
        CONTINUE WHEN taken.outcome NOT IN ('claimed', 'taken_over');
        handed := handed + 1;
        RETURN QUERY
            SELECT m.message_id, taken.outcome, m.owner, m.attempt, m.payload, m.headers, m.properties,
                   m.exchange, m.routing_key, m.ordering_key, m.schema_version, m.received_at
            FROM {{message}} m
            WHERE m.consumer = due.consumer AND m.message_id = candidate.message_id;
    END LOOP;
END
{{tag}};

REVOKE ALL ON FUNCTION {{schema}}.claim(text, text, interval, bytea, jsonb, jsonb, text, text, text, integer) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.refuse(text, text, bytea, text, jsonb, jsonb, text, text) FROM PUBLIC;
REVOKE ALL ON FUNCTION {{schema}}.due(text, integer, interval) FROM PUBLIC;

COMMENT ON FUNCTION {{schema}}.claim(text, text, interval, bytea, jsonb, jsonb, text, text, text, integer) IS
    'Begins work on a delivered message; commit it before the work begins. outcome: claimed (yours, with owner and attempt); taken_over (yours; an earlier owner vanished and may have acted); duplicate (done: result is what was stored, ack); busy (somebody works on it: ack, due resumes it if need be); waiting (stored until its time or turn: ack); dead (given up: ack). Except for claimed and taken_over, the message is stored and needs nothing more of you.';
COMMENT ON FUNCTION {{schema}}.refuse(text, text, bytea, text, jsonb, jsonb, text, text) IS
    'Keeps a message that nobody can work on: dead at once, class malformed, for an operator to look at; ack it then. For what has no message id, and for what claim refuses with an SQLSTATE of class 22, 23 or 54. Without a usable message_id it is kept as invalid: and the digest of exchange, routing key and body. Returns refused or, where the message is known already, its state, which is left as it is.';
COMMENT ON FUNCTION {{schema}}.due(text, integer, interval) IS
    'Hands out up to limit stored entries that can be worked on now, already claimed (outcome claimed or taken_over): retries whose time came, waiting ones whose turn came, and those whose owner died. Call it at least every second. Never waits for a lock.';
