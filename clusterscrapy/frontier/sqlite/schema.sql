-- One crawl in one SQLite file (WAL). Every change is one IMMEDIATE transaction.
-- state   small facts and counters by name: run, scheme, filter, order, start, start_position, paused,
--         waiting, leased, done, dead, seen, late, started_at, over_at, finished_at, keep, forgotten, generation
-- queue   what waits; taken by priority (high first), then seq (low first, high first when order = lifo).
--         A returned lease goes back under its old seq, so to its old place.
-- lease   what workers hold. entered = 1 once the request left the buffer for the engine.
-- seen    every key ever queued through the filter: exact.
-- dead    dead letters of every run; payload is what the codec wrote.
-- failed_before   what is known of replayed dead letters, should they fail again.
-- worker  who joined; alive while the file lock of its epoch is held.
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS queue (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    priority INTEGER NOT NULL,
    key BLOB NOT NULL,
    deaths INTEGER NOT NULL,
    payload BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS queue_order ON queue (priority, seq);
CREATE TABLE IF NOT EXISTS lease (
    key BLOB PRIMARY KEY,
    epoch TEXT NOT NULL,
    since REAL NOT NULL,
    entered INTEGER NOT NULL DEFAULT 0,
    seq INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    deaths INTEGER NOT NULL,
    payload BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS lease_epoch ON lease (epoch);
CREATE TABLE IF NOT EXISTS seen (key BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS dead (
    key BLOB NOT NULL,
    run INTEGER NOT NULL,
    reason TEXT NOT NULL,
    detail TEXT NOT NULL,
    died_at REAL NOT NULL,
    deaths INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    worker TEXT NOT NULL,
    payload BLOB NOT NULL,
    first_at REAL NOT NULL,
    first_reason TEXT NOT NULL,
    failures INTEGER NOT NULL,
    PRIMARY KEY (key, run)
);
CREATE TABLE IF NOT EXISTS failed_before (
    key BLOB NOT NULL,
    run INTEGER NOT NULL,
    first_at REAL NOT NULL,
    first_reason TEXT NOT NULL,
    failures INTEGER NOT NULL,
    PRIMARY KEY (key, run)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS worker (epoch TEXT PRIMARY KEY, name TEXT NOT NULL, info TEXT NOT NULL, joined_at REAL NOT NULL, hungry_at REAL NOT NULL DEFAULT 0);
