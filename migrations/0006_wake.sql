-- What wakes a relay that sleeps. The trigger that calls it comes next and may be left out.

CREATE OR REPLACE FUNCTION {{schema}}.wake() RETURNS trigger
    LANGUAGE plpgsql SECURITY INVOKER
    SET search_path = pg_catalog, pg_temp
AS {{tag}}
BEGIN
    PERFORM pg_catalog.pg_notify('{{wake_channel}}', '');
    RETURN NULL;
END
{{tag}};

REVOKE ALL ON FUNCTION {{schema}}.wake() FROM PUBLIC;
COMMENT ON FUNCTION {{schema}}.wake() IS
    'Wakes a sleeping outbox-relay. The notification is a hint: without it the relay polls.';
