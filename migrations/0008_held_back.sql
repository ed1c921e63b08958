-- What a relay holds back on purpose, for those who ask why a row is not sent.

ALTER TABLE {{schema}}.instance ADD COLUMN IF NOT EXISTS held_back jsonb;

COMMENT ON COLUMN {{schema}}.instance.held_back IS
    'What it holds back and why, at its last sign of life: destinations, and rows it cannot mark. Null: nothing.';
