-- No gate in the default of xid: the relay finds new rows by polling alone. For applications that
-- commit by PREPARE TRANSACTION, which PostgreSQL refuses after NOTIFY.

DO {{tag}}
DECLARE
    gate text := (
        SELECT pg_catalog.pg_get_expr(d.adbin, d.adrelid) FROM pg_catalog.pg_attrdef d
        JOIN pg_catalog.pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE a.attrelid = {{message_literal}}::pg_catalog.regclass AND a.attname = 'xid'
    );
BEGIN
    IF gate IS NULL OR pg_catalog.strpos(gate, 'pg_notify') > 0 THEN
        ALTER TABLE {{message}} ALTER COLUMN xid SET DEFAULT pg_catalog.pg_current_xact_id();
        COMMENT ON COLUMN {{message}}.xid IS
            'Transaction that made the row pending: lets the relay read what has become visible since its last read.';
    END IF;
END
{{tag}};
