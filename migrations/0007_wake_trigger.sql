-- The wake-up trigger. A relay that sleeps holds an advisory lock exclusively. A statement that
-- inserts tries the same lock, shared, until the end of its transaction, without waiting. It
-- gets it while the relay is awake: then nothing is sent, and the relay cannot fall asleep
-- before this transaction has ended. It does not get it while the relay sleeps: then one
-- NOTIFY wakes it. So a busy system sends no NOTIFY at all, which matters because PostgreSQL
-- lets transactions that notify commit one after the other only.
--
-- The lock is tried in the trigger's WHEN condition: while the relay is awake, no function of a
-- procedural language is entered. Lock key and channel follow from the names of schema and
-- relation, so that they are the same after a dump and restore.

DO {{tag}}
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_trigger
        WHERE tgrelid = {{message_literal}}::pg_catalog.regclass
          AND tgname = 'outbox_wake'
          AND tgenabled IN ('O', 'A')
          AND pg_catalog.strpos(pg_catalog.pg_get_triggerdef(oid), '{{wake_key}}') > 0
    ) THEN
        DROP TRIGGER IF EXISTS outbox_wake ON {{message}};
        CREATE TRIGGER outbox_wake AFTER INSERT ON {{message}} FOR EACH STATEMENT
            WHEN (NOT pg_catalog.pg_try_advisory_xact_lock_shared({{wake_key}}))
            EXECUTE FUNCTION {{schema}}.wake();
    END IF;
END
{{tag}};

COMMENT ON TRIGGER outbox_wake ON {{message}} IS
    'Wakes a sleeping outbox-relay. An application that commits by PREPARE TRANSACTION must do without: outbox-relay migrate --wake none.';
