-- What the relay reads by. Only rows that are pending are indexed, so that the indexes stay
-- small however many sent rows are kept. Each predicate holds one term that is true for every
-- row and that only the queries meant for the index state: the planner cannot take another
-- index by mistake when its statistics are old.
--
-- One statement for each index: on a table in use they are run CONCURRENTLY, one by one.

CREATE INDEX {{concurrently}} {{index_pending}} ON {{message}} (id)
    WHERE sent_at IS NULL AND id > 0;

CREATE INDEX {{concurrently}} {{index_xid}} ON {{message}} (xid)
    WHERE sent_at IS NULL AND xid >= '3';

CREATE INDEX {{concurrently}} {{index_retry}} ON {{message}} (retry_at)
    WHERE sent_at IS NULL AND retry_at IS NOT NULL;

CREATE INDEX {{concurrently}} {{index_available}} ON {{message}} (available_at)
    WHERE sent_at IS NULL AND available_at IS NOT NULL;
