-- The outbox itself. The application inserts; the relay publishes and marks.

CREATE TABLE IF NOT EXISTS {{message}} (
    id             bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    message_id     text NOT NULL DEFAULT pg_catalog.gen_random_uuid()::text,
    exchange       text NOT NULL DEFAULT '',
    routing_key    text NOT NULL DEFAULT '',
    ordering_key   text,
    payload        {{payload}} NOT NULL,
    headers        jsonb,
    type           text,
    correlation_id text,
    content_type   text,
    properties     jsonb,
    available_at   timestamptz,
    created_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    attempts       integer NOT NULL DEFAULT 0,
    retry_at       timestamptz,
    last_error     text,
    sent_at        timestamptz,
    xid            xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id()
) WITH (
    -- Every row is updated once (marked) and deleted once (retention). Until vacuum has run,
    -- reads walk over the index entries of rows already sent, so it must come by number of
    -- rows, not by share of a table that keeps a week of them.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_cost_limit = 2000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 100000,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_threshold = 20000
);

DO {{tag}}
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_attribute
        WHERE attrelid = {{message_literal}}::pg_catalog.regclass
          AND attname = 'payload' AND atttypid <> '{{payload}}'::pg_catalog.regtype
    ) THEN
        RAISE EXCEPTION 'the column payload exists with another type than {{payload}}: it cannot be changed by a migration';
    END IF;
END
{{tag}};

COMMENT ON TABLE {{message}} IS
    'Transactional outbox: messages written in the transaction that changed the data, published to RabbitMQ after its commit by outbox-relay.';
COMMENT ON COLUMN {{message}}.id IS
    'Insertion order, and the order of delivery within an ordering_key. Always positive; the identity must keep CACHE 1, or sessions would draw their numbers in advance and out of order.';
COMMENT ON COLUMN {{message}}.message_id IS
    'AMQP message-id, the same on every attempt: the consumer''s idempotency key. May be a business key. Not unique: written twice it is published twice. At most 255 bytes.';
COMMENT ON COLUMN {{message}}.exchange IS
    'Exchange to publish to; empty for the default exchange, which routes to the queue that routing_key names. At most 255 bytes.';
COMMENT ON COLUMN {{message}}.routing_key IS
    'AMQP routing key. At most 255 bytes.';
COMMENT ON COLUMN {{message}}.ordering_key IS
    'Messages of one key are delivered in the order of id, e.g. the aggregate''s id; null for no order. Insert after taking the lock that serialises the key''s writers. Sent as header x-outbox-key.';
COMMENT ON COLUMN {{message}}.payload IS
    'Body, published byte for byte as stored.';
COMMENT ON COLUMN {{message}}.headers IS
    'AMQP headers, a JSON object; strings, integers, floats, booleans, nulls, nested objects and lists keep their types. Names that begin with x-outbox- are the relay''s own.';
COMMENT ON COLUMN {{message}}.type IS
    'AMQP property type. At most 255 bytes.';
COMMENT ON COLUMN {{message}}.correlation_id IS
    'AMQP property correlation-id. At most 255 bytes.';
COMMENT ON COLUMN {{message}}.content_type IS
    'AMQP property content-type; null for the one that follows from the type of payload. At most 255 bytes.';
COMMENT ON COLUMN {{message}}.properties IS
    'The rarer AMQP properties as a JSON object: priority, expiration, app_id, reply_to, content_encoding, delivery_mode, user_id.';
COMMENT ON COLUMN {{message}}.available_at IS
    'Not to be published before this time (database clock); null for at once.';
COMMENT ON COLUMN {{message}}.created_at IS
    'When the row was written. Sent as AMQP property timestamp.';
COMMENT ON COLUMN {{message}}.attempts IS
    'Failed attempts that this row itself was to blame for. Written by the relay.';
COMMENT ON COLUMN {{message}}.retry_at IS
    'Next attempt after a failure; null if none is waiting. Written by the relay.';
COMMENT ON COLUMN {{message}}.last_error IS
    'Why the last attempt failed. Written by the relay.';
COMMENT ON COLUMN {{message}}.sent_at IS
    'When the broker had routed and confirmed the message; null while it is pending. Written by the relay.';
COMMENT ON COLUMN {{message}}.xid IS
    'Transaction that made the row pending: lets the relay read what has become visible since its last read.';
