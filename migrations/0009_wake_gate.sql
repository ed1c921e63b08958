-- What wakes a relay that sleeps: a gate in the default of xid. A relay that sleeps holds an
-- advisory lock exclusively. A row that is written tries the same lock, shared, until the end of its
-- transaction, without waiting. It gets it while the relay is awake: then nothing is sent, and
-- the relay cannot fall asleep before this transaction has ended. It does not get it while the
-- relay sleeps: then NOTIFY wakes it, once per transaction, however many rows it writes. So a busy
-- system sends no NOTIFY at all, which matters because PostgreSQL lets transactions that notify commit
-- one after the other only.
--
-- In a default, because a default is planned with the statement, while PostgreSQL reads the
-- condition of a trigger anew each time a statement is executed. CASE settles what comes first;
-- pg_notify never returns null. Lock key and channel follow from the names of schema and
-- relation, so that they are the same after a dump and restore.

DO {{tag}}
DECLARE
    gate text := (
        SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attrdef d
        JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE a.attrelid = {{message_literal}}::pg_catalog.regclass AND a.attname = 'xid'
    );
    -- Whoever chose polling (--wake none) before is asked again only by name. Version 9 brought the
    -- choice here; until then the function wake() without a trigger was its sign.
    polls boolean := {{keeps_polling}} AND pg_catalog.strpos(gate, 'pg_notify') = 0 AND (
        EXISTS (SELECT FROM {{schema}}.schema_version WHERE version >= 9)
        OR (pg_catalog.to_regprocedure({{wake_literal}}) IS NOT NULL AND NOT EXISTS (
            SELECT FROM pg_catalog.pg_trigger
            WHERE tgrelid = {{message_literal}}::pg_catalog.regclass
              AND tgfoid = pg_catalog.to_regprocedure({{wake_literal}})))
    );
BEGIN
    IF polls OR (pg_catalog.strpos(gate, '{{wake_key}}') > 0
                 AND pg_catalog.strpos(gate, '{{wake_channel}}') > 0) THEN
        RETURN;
    END IF;
    ALTER TABLE {{message}} ALTER COLUMN xid SET DEFAULT
        CASE
            WHEN pg_catalog.pg_try_advisory_xact_lock_shared({{wake_key}})
                THEN pg_catalog.pg_current_xact_id()
            WHEN pg_catalog.pg_notify('{{wake_channel}}', '') IS NULL
                THEN pg_catalog.pg_current_xact_id()
            ELSE pg_catalog.pg_current_xact_id()
        END;
    COMMENT ON COLUMN {{message}}.xid IS
        'Transaction that made the row pending: lets the relay read what has become visible since its last read. Its default wakes a sleeping relay. An application that commits by PREPARE TRANSACTION must do without: outbox-relay migrate --wake none.';
END
{{tag}};
