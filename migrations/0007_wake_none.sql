-- No wake-up trigger: the relay finds new rows by polling alone. For applications that commit by
-- PREPARE TRANSACTION, which PostgreSQL refuses after NOTIFY.

DO {{tag}}
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_trigger
        WHERE tgrelid = {{message_literal}}::pg_catalog.regclass AND tgname = 'outbox_wake'
    ) THEN
        DROP TRIGGER outbox_wake ON {{message}};
    END IF;
END
{{tag}};
