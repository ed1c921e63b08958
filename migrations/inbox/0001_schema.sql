-- The schema and the record of what was applied to it.
--
-- All migrations can be run again without harm. CREATE SCHEMA IF NOT EXISTS would demand the
-- right to create schemas even where the schema is there, so existence is asked first.

DO {{tag}}
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = {{schema_literal}}) THEN
        CREATE SCHEMA {{schema}};
    END IF;
END
{{tag}};

CREATE TABLE IF NOT EXISTS {{schema}}.schema_version (
    version    integer NOT NULL PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    applied_by text NOT NULL DEFAULT session_user
);

COMMENT ON TABLE {{schema}}.schema_version IS
    'Migrations applied to this inbox. For people: programs look at the catalog.';
