-- outbox.enqueue: writes a message, and refuses at once, in the application's own transaction,
-- what no broker could ever be sent. A plain INSERT does without these checks; the relay then
-- finds the fault and puts the row into quarantine.
--
-- Needs EXECUTE on the function and INSERT on the columns it writes. It does not read the table,
-- hence no RETURNING. The checks follow AMQP 0-9-1 and RabbitMQ: a short string holds 255 bytes.

CREATE OR REPLACE FUNCTION {{schema}}.enqueue(
    payload        {{payload}},
    exchange       text DEFAULT '',
    routing_key    text DEFAULT '',
    ordering_key   text DEFAULT NULL,
    headers        jsonb DEFAULT NULL,
    type           text DEFAULT NULL,
    correlation_id text DEFAULT NULL,
    content_type   text DEFAULT NULL,
    properties     jsonb DEFAULT NULL,
    available_at   timestamptz DEFAULT NULL,
    message_id     text DEFAULT NULL
) RETURNS text
    LANGUAGE plpgsql VOLATILE SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
#variable_conflict use_variable
DECLARE
    fault  text;
    new_id text := coalesce(message_id, gen_random_uuid()::text);
BEGIN
    IF payload IS NULL THEN
        fault := 'payload is NULL; write an empty one if that is what is meant';
    ELSIF NOT isfinite(available_at) THEN
        fault := 'available_at is infinite; it must be a time that comes';
    ELSIF new_id = '' THEN
        fault := 'message_id is empty, so that no consumer could recognise a copy; leave it out for a random one';
    ELSIF exchange = 'amq.rabbitmq.trace' THEN
        fault := 'exchange amq.rabbitmq.trace is the broker''s own; nobody may publish to it';
    ELSIF coalesce(exchange, '') = '' AND routing_key ~ '^amq[.]rabbitmq[.]reply-to([.]|$)' THEN
        fault := 'routing_key is a direct reply: its receiver may be gone, and the broker does not tell; name a queue of its own for replies';
    -- 85 bytes in any encoding are at most 255 in UTF-8, which AMQP wants.
    ELSIF greatest(octet_length(exchange), octet_length(routing_key), octet_length(new_id),
                   octet_length(type), octet_length(correlation_id),
                   octet_length(content_type)) > 85 THEN
        SELECT format('%s has %s bytes, and an AMQP short string holds at most 255', name, size)
        INTO fault
        FROM (VALUES ('exchange', exchange), ('routing_key', routing_key),
                     ('message_id', new_id), ('type', type),
                     ('correlation_id', correlation_id), ('content_type', content_type)
             ) AS texts (name, value),
             LATERAL octet_length(convert_to(value, 'UTF8')) AS size
        WHERE size > 255
        LIMIT 1;
    END IF;

    IF fault IS NULL AND jsonb_typeof(headers) <> 'null' THEN
        IF jsonb_typeof(headers) <> 'object' THEN
            fault := format('headers are a JSON %s, not an object', jsonb_typeof(headers));
        ELSE
            SELECT CASE
                WHEN left(lower(name), 9) = 'x-outbox-' THEN
                    format('header %s belongs to the relay', shown)
                WHEN name IN ('CC', 'BCC')
                     AND (jsonb_typeof(value) <> 'array' OR value @? 'strict $[*] ? (@.type() != "string")') THEN
                    format('header %s holds further routing keys and must be a list of strings', shown)
                WHEN name IN ('CC', 'BCC') AND coalesce(exchange, '') = ''
                     AND value @? 'strict $[*] ? (@ like_regex "^amq[.]rabbitmq[.]reply-to([.]|$)")' THEN
                    format('header %s names a direct reply; name a queue of its own for replies', shown)
            END
            INTO fault
            FROM jsonb_each(headers) AS entries (name, value),
                 LATERAL to_json(left(name, 64)) AS shown
            ORDER BY 1
            LIMIT 1;
        END IF;
        IF fault IS NULL AND jsonb_typeof(headers) = 'object' THEN
            SELECT format('headers: the name %s has %s bytes, and an AMQP short string holds at most 255',
                          to_json(left(name, 64)), size)
            INTO fault
            FROM jsonb_path_query(headers, 'strict $.** ? (@.type() == "object")') AS objects (object),
                 LATERAL jsonb_object_keys(object) AS names (name),
                 LATERAL octet_length(convert_to(name, 'UTF8')) AS size
            WHERE size > 255
            LIMIT 1;
        END IF;
        IF fault IS NULL AND headers @? 'strict $.**{32 to last} ? (@.type() == "object" || @.type() == "array")' THEN
            fault := 'headers are nested more than 32 levels deep';
        END IF;
        IF fault IS NULL THEN
            SELECT CASE
                WHEN scale(number) = 0 AND number NOT BETWEEN -9223372036854775808 AND 9223372036854775807 THEN
                    'headers: AMQP integers are signed 64 bit; send a larger one as a string'
                WHEN abs(number) > 1.7976931348623158e308 OR (abs(number) < 2.4e-324 AND number <> 0) THEN
                    'headers: a number is beyond a 64-bit float; send it as a string'
            END
            INTO fault
            FROM jsonb_path_query(headers, 'strict $.** ? (@.type() == "number")') AS numbers (value),
                 LATERAL (SELECT value::numeric) AS n (number)
            ORDER BY 1
            LIMIT 1;
        END IF;
    END IF;

    IF fault IS NULL AND jsonb_typeof(properties) <> 'null' THEN
        IF jsonb_typeof(properties) <> 'object' THEN
            fault := format('properties are a JSON %s, not an object', jsonb_typeof(properties));
        ELSE
            SELECT CASE
                WHEN name IN ('message_id', 'headers') THEN
                    format('property %s comes from the column %s', name, name)
                WHEN name = 'timestamp' THEN
                    'property timestamp comes from the column created_at'
                WHEN name NOT IN ('app_id', 'cluster_id', 'content_encoding', 'content_type',
                                  'correlation_id', 'delivery_mode', 'expiration', 'priority',
                                  'reply_to', 'type', 'user_id') THEN
                    format('property %s is unknown; known are app_id, cluster_id, content_encoding, content_type, correlation_id, delivery_mode, expiration, priority, reply_to, type, user_id',
                           to_json(left(name, 64)))
                WHEN jsonb_typeof(value) = 'null' THEN
                    NULL
                WHEN name = 'priority' THEN
                    CASE WHEN jsonb_typeof(value) = 'number' AND value::text ~ '^([0-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5])$'
                         THEN NULL
                         ELSE 'property priority must be an integer from 0 to 255'
                    END
                WHEN name = 'delivery_mode' THEN
                    CASE WHEN value IN ('1', '2') AND value::text IN ('1', '2')
                         THEN NULL
                         ELSE 'property delivery_mode must be 1 (transient) or 2 (persistent)'
                    END
                WHEN name = 'expiration' THEN
                    CASE WHEN jsonb_typeof(value) NOT IN ('number', 'string') OR content !~ '^[0-9]+$'
                         THEN 'property expiration must be milliseconds in digits, at most 4294967295'
                         WHEN length(ltrim(content, '0')) > 10 OR content::numeric > 4294967295
                         THEN 'property expiration must be milliseconds in digits, at most 4294967295'
                    END
                WHEN jsonb_typeof(value) <> 'string' THEN
                    format('property %s must be a string', name)
                WHEN name = 'reply_to' AND content = 'amq.rabbitmq.reply-to' THEN
                    'property reply_to is amq.rabbitmq.reply-to: direct replies go to a consumer on the channel that asks, and the relay consumes nothing; name a queue of its own for replies'
                WHEN octet_length(convert_to(content, 'UTF8')) > 255 THEN
                    format('property %s has %s bytes, and an AMQP short string holds at most 255',
                           name, octet_length(convert_to(content, 'UTF8')))
                WHEN (name = 'type' AND type IS NOT NULL)
                     OR (name = 'correlation_id' AND correlation_id IS NOT NULL)
                     OR (name = 'content_type' AND content_type IS NOT NULL) THEN
                    format('property %s is set by the column %s too', name, name)
            END
            INTO fault
            FROM jsonb_each(properties) AS entries (name, value),
                 LATERAL (SELECT value #>> '{}') AS c (content)
            ORDER BY 1
            LIMIT 1;
        END IF;
    END IF;

    IF fault IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_parameter_value',
            MESSAGE = 'this message can never be sent: ' || fault;
    END IF;

    INSERT INTO {{message}} (
        message_id, exchange, routing_key, ordering_key, payload, headers, type,
        correlation_id, content_type, properties, available_at
    ) VALUES (
        new_id, coalesce(exchange, ''), coalesce(routing_key, ''), ordering_key, payload, headers,
        type, correlation_id, content_type, properties, available_at
    );
    RETURN new_id;
END
{{tag}};

REVOKE ALL ON FUNCTION {{schema}}.enqueue({{payload}}, text, text, text, jsonb, text, text, text, jsonb, timestamptz, text) FROM PUBLIC;
COMMENT ON FUNCTION {{schema}}.enqueue({{payload}}, text, text, text, jsonb, text, text, text, jsonb, timestamptz, text) IS
    'Writes a message into the outbox, in the caller''s transaction, and returns its message_id. Refuses with SQLSTATE 22023 what can never be sent. Use named arguments: enqueue(payload => …, exchange => …).';
