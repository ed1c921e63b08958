-- What a consumer writes down: one entry for each message, its own limits, operators' acts.

CREATE TABLE IF NOT EXISTS {{schema}}.consumer (
    consumer         text NOT NULL PRIMARY KEY CHECK (consumer <> ''),
    max_attempts     integer NOT NULL DEFAULT 5 CHECK (max_attempts > 0),
    retry_initial    interval NOT NULL DEFAULT '1s' CHECK (retry_initial > '0'),
    retry_multiplier double precision NOT NULL DEFAULT 2 CHECK (retry_multiplier BETWEEN 1 AND 100),
    retry_max_delay  interval NOT NULL DEFAULT '5m',
    retry_jitter     double precision NOT NULL DEFAULT 0.2 CHECK (retry_jitter BETWEEN 0 AND 1),
    done_retention   interval NOT NULL DEFAULT '35d',
    replay_window    interval NOT NULL DEFAULT '30d',
    CONSTRAINT retry_max_delay_not_below_initial CHECK (retry_max_delay >= retry_initial),
    CONSTRAINT done_retention_not_below_replay_window CHECK (done_retention >= replay_window),
    CONSTRAINT replay_window_not_negative CHECK (replay_window >= '0')
);

COMMENT ON TABLE {{schema}}.consumer IS
    'Limits of each consumer. A row appears with the first claim; inbox.configure changes it.';
COMMENT ON COLUMN {{schema}}.consumer.max_attempts IS
    'Attempts before an entry is dead. A claim that names another number changes it.';
COMMENT ON COLUMN {{schema}}.consumer.retry_initial IS
    'Pause after the first failed attempt; each further one is longer by retry_multiplier, up to retry_max_delay.';
COMMENT ON COLUMN {{schema}}.consumer.retry_jitter IS
    'Share of a pause by which it may differ, so that many do not come back together.';
COMMENT ON COLUMN {{schema}}.consumer.done_retention IS
    'How long a finished entry is remembered. A copy that arrives later would run again.';
COMMENT ON COLUMN {{schema}}.consumer.replay_window IS
    'How old a message may be when somebody publishes it again. An entry is never forgotten before.';

-- Half of each page is left free, because each row is updated once or twice soon after it was
-- written. Entries are removed by retention, so vacuum must come by number of rows.
CREATE TABLE IF NOT EXISTS {{message}} (
    consumer        text NOT NULL CHECK (consumer <> ''),
    message_id      text NOT NULL CHECK (message_id <> ''),
    ordering_key    text,
    state           text NOT NULL CHECK (state IN ('processing', 'waiting', 'retry', 'done', 'dead')),
    owner           uuid,
    lease_until     timestamptz,
    attempt         integer NOT NULL DEFAULT 0,
    due_at          timestamptz,
    payload         bytea,
    headers         jsonb,
    properties      jsonb,
    exchange        text NOT NULL DEFAULT '',
    routing_key     text NOT NULL DEFAULT '',
    schema_version  text,
    result          jsonb,
    reason_class    text,
    reason          text,
    received_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    first_failed_at timestamptz,
    done_at         timestamptz,
    PRIMARY KEY (consumer, message_id),
    CONSTRAINT message_finished CHECK ((done_at IS NOT NULL) = (state IN ('done', 'dead'))),
    CONSTRAINT message_owned CHECK (
        state <> 'processing'
        OR (owner IS NOT NULL AND lease_until IS NOT NULL AND due_at IS NOT NULL AND attempt > 0)
    ),
    CONSTRAINT message_payload CHECK (payload IS NOT NULL OR state = 'done')
) WITH (
    fillfactor = 50,
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

-- What the functions read by. Only unfinished entries are in the first two, so that they stay
-- small however many finished ones are kept; each predicate holds a term that only the queries
-- meant for the index state, so that the planner cannot take another one by mistake. A key is
-- indexed by its hash: a B-tree takes entries of 2,704 bytes at most, and keys may be longer.
CREATE INDEX IF NOT EXISTS message_due ON {{message}} (consumer, due_at)
    WHERE done_at IS NULL AND due_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS message_turn ON {{message}} (
    consumer, hashtextextended(ordering_key, 0), state, received_at, message_id
) WHERE done_at IS NULL AND ordering_key IS NOT NULL;
CREATE INDEX IF NOT EXISTS message_dead ON {{message}} (consumer, done_at) WHERE state = 'dead';
CREATE INDEX IF NOT EXISTS message_done ON {{message}} (consumer, done_at) WHERE state = 'done';

COMMENT ON TABLE {{message}} IS
    'Inbox: what became of each message that a consumer received. Changed by the functions of this schema only.';
COMMENT ON COLUMN {{message}}.message_id IS
    'AMQP message-id: the idempotency key. A message without a usable one is kept as invalid: and a digest.';
COMMENT ON COLUMN {{message}}.ordering_key IS
    'Entries of one key are worked on one at a time, in the order of received_at. From header x-outbox-key.';
COMMENT ON COLUMN {{message}}.state IS
    'processing (owner, lease) | waiting (for its turn or a free hand) | retry (at due_at) | done | dead.';
COMMENT ON COLUMN {{message}}.owner IS
    'Token of the claim that works, or worked last, on it.';
COMMENT ON COLUMN {{message}}.lease_until IS
    'When another may take it over, unless renewed (database clock).';
COMMENT ON COLUMN {{message}}.attempt IS
    'Attempts begun.';
COMMENT ON COLUMN {{message}}.due_at IS
    'When inbox.due may hand it out: a retry''s time, the end of a lease; null while an earlier entry of the key is unfinished, and when finished.';
COMMENT ON COLUMN {{message}}.payload IS
    'Body as received; removed when done.';
COMMENT ON COLUMN {{message}}.schema_version IS
    'Header schema-version, where the application sets it.';
COMMENT ON COLUMN {{message}}.result IS
    'What the handler returned; what a duplicate''s claim returns.';
COMMENT ON COLUMN {{message}}.reason_class IS
    'Of the last failure, for counting: temporary, attempts_exhausted, abandoned, malformed, discarded, or the handler''s own word.';
COMMENT ON COLUMN {{message}}.reason IS
    'Of the last failure, in a sentence.';
COMMENT ON COLUMN {{message}}.done_at IS
    'When it became done or dead.';

CREATE TABLE IF NOT EXISTS {{schema}}.audit (
    audit_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    act            text NOT NULL,
    by_whom        text NOT NULL,
    reason         text NOT NULL,
    consumer       text NOT NULL,
    message_id     text,
    detail         jsonb,
    version        text NOT NULL,
    login          text NOT NULL DEFAULT session_user,
    client_address inet DEFAULT pg_catalog.inet_client_addr()
);
CREATE INDEX IF NOT EXISTS audit_message ON {{schema}}.audit (consumer, message_id);

COMMENT ON TABLE {{schema}}.audit IS
    'Operators'' acts on entries: who did what, when and why. Only ever inserted into.';
COMMENT ON COLUMN {{schema}}.audit.act IS
    'replay or discard.';
COMMENT ON COLUMN {{schema}}.audit.by_whom IS
    'Who acted, as they said.';
COMMENT ON COLUMN {{schema}}.audit.login IS
    'session_user: who acted, as the database knows it. Operators have no right to write it.';
COMMENT ON COLUMN {{schema}}.audit.version IS
    'Version of the program that acted.';
