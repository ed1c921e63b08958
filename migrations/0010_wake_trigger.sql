-- Versions 6 and 7 woke a sleeping relay by a statement trigger, whose condition PostgreSQL reads
-- anew each time a statement is executed. The gate in the default of xid has taken its place. The
-- function stays where a trigger of the user's own calls it.

DO {{tag}}
DECLARE
    trigger_name name;
BEGIN
    FOR trigger_name IN
        SELECT t.tgname FROM pg_catalog.pg_trigger t
        JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
        JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
        WHERE t.tgrelid = {{message_literal}}::pg_catalog.regclass AND NOT t.tgisinternal
          AND n.nspname = {{schema_literal}} AND p.proname = 'wake'
          AND pg_catalog.strpos(pg_catalog.pg_get_triggerdef(t.oid), 'pg_try_advisory_xact_lock_shared') > 0
    LOOP
        EXECUTE 'DROP TRIGGER ' || pg_catalog.quote_ident(trigger_name) || ' ON ' || {{message_literal}};
    END LOOP;
    IF NOT EXISTS (
        SELECT FROM pg_catalog.pg_trigger t
        JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
        JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = {{schema_literal}} AND p.proname = 'wake'
    ) THEN
        DROP FUNCTION IF EXISTS {{schema}}.wake();
    END IF;
END
{{tag}};
