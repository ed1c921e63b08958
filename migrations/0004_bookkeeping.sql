-- What relays and operators write down: rows given up, acts, leases, instances, pauses.

CREATE TABLE IF NOT EXISTS {{schema}}.quarantine (
    quarantine_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id              bigint NOT NULL,
    message_id      text NOT NULL,
    exchange        text NOT NULL,
    routing_key     text NOT NULL,
    ordering_key    text,
    payload         {{payload}},
    headers         jsonb,
    type            text,
    correlation_id  text,
    content_type    text,
    properties      jsonb,
    available_at    timestamptz,
    created_at      timestamptz NOT NULL,
    attempts        integer NOT NULL,
    retry_at        timestamptz,
    last_error      text,
    sent_at         timestamptz,
    xid             xid8,
    reason_class    text NOT NULL,
    reason          text NOT NULL,
    first_failed_at timestamptz NOT NULL,
    last_failed_at  timestamptz NOT NULL,
    quarantined_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX IF NOT EXISTS quarantine_reason ON {{schema}}.quarantine (reason_class, quarantined_at);
CREATE INDEX IF NOT EXISTS quarantine_row ON {{schema}}.quarantine (id);
-- By the key's hash: a key may be longer than an index entry.
CREATE INDEX IF NOT EXISTS quarantine_key ON {{schema}}.quarantine (pg_catalog.hashtextextended(ordering_key, 0), id);

COMMENT ON TABLE {{schema}}.quarantine IS
    'Messages that were given up, whole and with the reason. They stay until an operator replays or discards them.';
COMMENT ON COLUMN {{schema}}.quarantine.quarantine_id IS
    'This entry: one message may be quarantined, replayed and quarantined again.';
COMMENT ON COLUMN {{schema}}.quarantine.id IS
    'id the message had in the outbox, kept on replay.';
COMMENT ON COLUMN {{schema}}.quarantine.payload IS
    'Body as it was; null only where the application''s own relation held null.';
COMMENT ON COLUMN {{schema}}.quarantine.reason_class IS
    'One word of a fixed set, for counting and filtering.';
COMMENT ON COLUMN {{schema}}.quarantine.reason IS
    'The reason in a sentence: value, size and limit, or the broker''s words.';
COMMENT ON COLUMN {{schema}}.quarantine.first_failed_at IS
    'First failure known.';
COMMENT ON COLUMN {{schema}}.quarantine.last_failed_at IS
    'Failure that led here.';

CREATE TABLE IF NOT EXISTS {{schema}}.audit (
    audit_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at             timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    act            text NOT NULL,
    by_whom        text NOT NULL,
    reason         text NOT NULL,
    row_id         bigint,
    message_id     text,
    detail         jsonb,
    old_sha256     bytea,
    new_sha256     bytea,
    version        text NOT NULL,
    login          text NOT NULL DEFAULT session_user,
    client_address inet DEFAULT pg_catalog.inet_client_addr()
);
CREATE INDEX IF NOT EXISTS audit_row ON {{schema}}.audit (row_id);

COMMENT ON TABLE {{schema}}.audit IS
    'Operators'' acts: who did what to which message, when and why. Only ever inserted into.';
COMMENT ON COLUMN {{schema}}.audit.act IS
    'replay, discard, resend, pause, resume …';
COMMENT ON COLUMN {{schema}}.audit.by_whom IS
    'Who acted, as they said.';
COMMENT ON COLUMN {{schema}}.audit.login IS
    'session_user: who acted, as the database knows it. Operators have no right to write it.';
COMMENT ON COLUMN {{schema}}.audit.client_address IS
    'Where the connection came from; null for a Unix socket.';
COMMENT ON COLUMN {{schema}}.audit.version IS
    'Version of the program that acted.';
COMMENT ON COLUMN {{schema}}.audit.old_sha256 IS
    'Digest of the payload before the act, of the bytes that would have been published.';
COMMENT ON COLUMN {{schema}}.audit.new_sha256 IS
    'Digest of an edited payload.';

CREATE TABLE IF NOT EXISTS {{schema}}.instance (
    instance        uuid NOT NULL PRIMARY KEY,
    relation        text NOT NULL,
    name            text NOT NULL,
    version         text NOT NULL,
    started_at      timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    heartbeat_at    timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    lease_for       interval NOT NULL DEFAULT '15 s',
    ready           boolean NOT NULL DEFAULT false,
    waits_for       text,
    database_state  text,
    database_reason text,
    broker_state    text,
    broker_reason   text,
    last_confirm_at timestamptz,
    partitions      smallint NOT NULL DEFAULT 0
) WITH (
    fillfactor = 20,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);

COMMENT ON TABLE {{schema}}.instance IS
    'Relays that are, or lately were, alive.';
COMMENT ON COLUMN {{schema}}.instance.instance IS
    'Token of the process, as in lease.owner.';
COMMENT ON COLUMN {{schema}}.instance.relation IS
    'The outbox it works on, as named in its configuration.';
COMMENT ON COLUMN {{schema}}.instance.name IS
    'Host or pod, for people.';
COMMENT ON COLUMN {{schema}}.instance.heartbeat_at IS
    'Last sign of life (database clock). It renews the lease on every partition of this relay.';
COMMENT ON COLUMN {{schema}}.instance.lease_for IS
    'Without another sign of life others may take its partitions so much later.';
COMMENT ON COLUMN {{schema}}.instance.waits_for IS
    'Why it is not ready.';

CREATE TABLE IF NOT EXISTS {{schema}}.lease (
    relation  text NOT NULL,
    partition smallint NOT NULL CHECK (partition BETWEEN 0 AND 255),
    owner     uuid,
    epoch     bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (relation, partition)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000
);
-- Whoever is not known to be alive owns nothing.
DO {{tag}}
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_constraint
        WHERE conrelid = {{lease_literal}}::pg_catalog.regclass
          AND confrelid = {{instance_literal}}::pg_catalog.regclass AND confdeltype = 'n'
    ) THEN
        UPDATE {{schema}}.lease SET owner = NULL
        WHERE owner NOT IN (SELECT instance FROM {{schema}}.instance);
        ALTER TABLE {{schema}}.lease
            ADD FOREIGN KEY (owner) REFERENCES {{schema}}.instance ON DELETE SET NULL;
    END IF;
END
{{tag}};
CREATE INDEX IF NOT EXISTS lease_free ON {{schema}}.lease (relation) WHERE owner IS NULL;
INSERT INTO {{schema}}.lease (relation, partition)
SELECT {{relation_literal}}, n FROM pg_catalog.generate_series(0, 255) AS n ON CONFLICT DO NOTHING;

COMMENT ON TABLE {{schema}}.lease IS
    'Which relay may publish which of the 256 partitions of an outbox. The rows are fixed. A lease is valid as long as its owner gives signs of life; see instance.';
COMMENT ON COLUMN {{schema}}.lease.relation IS
    'The outbox, as named in the configuration of its relays.';
COMMENT ON COLUMN {{schema}}.lease.partition IS
    'Hash of ordering_key (of id where there is none), modulo 256.';
COMMENT ON COLUMN {{schema}}.lease.owner IS
    'Token of the process that holds it; null if nobody does.';
COMMENT ON COLUMN {{schema}}.lease.epoch IS
    'Grows whenever it is taken.';

CREATE TABLE IF NOT EXISTS {{schema}}.pause (
    pause_id  bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    exchange  text,
    by_whom   text NOT NULL,
    reason    text NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    until     timestamptz
);
CREATE UNIQUE INDEX IF NOT EXISTS pause_exchange ON {{schema}}.pause (exchange) WHERE exchange IS NOT NULL;
CREATE UNIQUE INDEX IF NOT EXISTS pause_everything ON {{schema}}.pause ((exchange IS NULL)) WHERE exchange IS NULL;

COMMENT ON TABLE {{schema}}.pause IS
    'What must not be published for now; every relay obeys. Who paused and resumed is in audit, too.';
COMMENT ON COLUMN {{schema}}.pause.exchange IS
    'Paused exchange (empty: the default exchange); null for everything.';
COMMENT ON COLUMN {{schema}}.pause.until IS
    'When the pause ends by itself; null for not at all.';
