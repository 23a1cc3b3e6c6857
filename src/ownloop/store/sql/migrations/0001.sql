-- The first schema.
CREATE TABLE meta (
    id         INTEGER PRIMARY KEY CHECK (id = 1), -- one row
    schema     INTEGER NOT NULL,                   -- the number of this file's schema
    min_reader INTEGER NOT NULL                    -- the oldest schema number whose code may use it
);

CREATE TABLE sessions (
    id             TEXT PRIMARY KEY,
    agent          TEXT NOT NULL,
    agent_digest   TEXT NOT NULL,
    tenant         TEXT NOT NULL,
    principal      TEXT NOT NULL,
    title          TEXT,
    parent_id      TEXT,
    parent_seq     INTEGER,                        -- own facts begin after it
    head_seq       INTEGER NOT NULL,
    epoch          INTEGER NOT NULL DEFAULT 0,
    owner          TEXT,                           -- a worker's id
    takeovers      INTEGER NOT NULL DEFAULT 0,
    closing        INTEGER NOT NULL DEFAULT 0,     -- a stop was posted, or the session is closed: no more posts
    pinned         INTEGER NOT NULL DEFAULT 0,
    runnable_at_ms INTEGER,                        -- meant for when nobody owns it
    updated_ms     INTEGER NOT NULL,
    deleted        INTEGER NOT NULL DEFAULT 0      -- only its prefix is left, for its forks
) WITHOUT ROWID;
CREATE INDEX sessions_by_update ON sessions (updated_ms, id) WHERE deleted = 0;
CREATE INDEX sessions_due ON sessions (runnable_at_ms) WHERE owner IS NULL AND runnable_at_ms IS NOT NULL;
CREATE INDEX sessions_by_owner ON sessions (owner) WHERE owner IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (parent_id) WHERE parent_id IS NOT NULL;

CREATE TABLE facts (
    session_id TEXT NOT NULL,
    seq        INTEGER NOT NULL,
    epoch      INTEGER NOT NULL,
    at_ms      INTEGER NOT NULL,
    run_id     TEXT,
    kind       TEXT NOT NULL,
    v          INTEGER NOT NULL,
    body       TEXT NOT NULL,                      -- JSON
    PRIMARY KEY (session_id, seq)
) WITHOUT ROWID;

-- By the run that an input will start: a run is known from its 202 on.
CREATE INDEX facts_inputs ON facts (run_id) WHERE kind = 'input_accepted';

CREATE TABLE inbox (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,  -- order of arrival; an id never comes twice
    session_id TEXT NOT NULL,
    principal  TEXT NOT NULL,
    idem_key   TEXT,
    kind       TEXT NOT NULL,
    origin     TEXT NOT NULL,
    digest     TEXT NOT NULL,                      -- of kind and body: tells a repeat from a conflict
    body       TEXT,                               -- JSON; NULL once taken, for the facts hold it then
    at_ms      INTEGER NOT NULL,
    taken_seq  INTEGER,                            -- the head after the append that took it
    UNIQUE (session_id, principal, idem_key)
);
CREATE INDEX inbox_untaken ON inbox (session_id, id) WHERE taken_seq IS NULL;
CREATE INDEX inbox_inputs ON inbox (json_extract(body, '$.run_id')) WHERE taken_seq IS NULL AND kind = 'input';

CREATE TABLE requests (
    id            INTEGER PRIMARY KEY,             -- order of asking, over all sessions
    session_id    TEXT NOT NULL,
    request_id    TEXT NOT NULL,
    seq           INTEGER NOT NULL,
    run_id        TEXT,
    purpose       TEXT NOT NULL,
    assignee      TEXT,
    expires_at_ms INTEGER,
    state         TEXT NOT NULL,                   -- open | answered | closed, and never back
    answer_digest TEXT,
    answered_by   TEXT,
    UNIQUE (session_id, request_id)
);
CREATE INDEX requests_open ON requests (session_id) WHERE state = 'open';

CREATE TABLE runs (
    session_id    TEXT NOT NULL,
    run_id        TEXT NOT NULL,
    parent_run_id TEXT,
    first_seq     INTEGER NOT NULL,
    last_seq      INTEGER NOT NULL,
    phase         TEXT NOT NULL,                   -- live | ended
    outcome       TEXT,
    PRIMARY KEY (session_id, run_id)
) WITHOUT ROWID;
CREATE INDEX runs_by_id ON runs (run_id);
CREATE INDEX runs_live ON runs (session_id) WHERE phase = 'live';

CREATE TABLE rules (
    session_id TEXT NOT NULL,
    rule_id    TEXT NOT NULL,
    body       TEXT NOT NULL,                      -- JSON
    PRIMARY KEY (session_id, rule_id)
) WITHOUT ROWID;

CREATE TABLE tails (
    session_id TEXT NOT NULL,
    stream     INTEGER NOT NULL,
    units      INTEGER NOT NULL,
    body       TEXT NOT NULL,                      -- JSON
    PRIMARY KEY (session_id, stream)
);

CREATE TABLE workers (
    id           TEXT PRIMARY KEY,
    boot_id      TEXT NOT NULL,
    pid          INTEGER NOT NULL,
    address      TEXT NOT NULL,
    heartbeat_ms INTEGER NOT NULL                  -- a monotonic clock; comparable only within one boot
) WITHOUT ROWID;

CREATE TABLE blobs (
    digest     TEXT PRIMARY KEY,                   -- SHA-256 of body, hex
    media_type TEXT NOT NULL,
    body       BLOB NOT NULL
);

CREATE TABLE blob_refs (
    session_id TEXT NOT NULL,
    digest     TEXT NOT NULL,
    PRIMARY KEY (session_id, digest)
) WITHOUT ROWID;
CREATE INDEX blob_refs_by_digest ON blob_refs (digest);

CREATE TABLE idempotency (
    principal      TEXT NOT NULL,
    key            TEXT NOT NULL,
    operation      TEXT NOT NULL,
    request_digest TEXT NOT NULL,
    status         INTEGER NOT NULL,
    reply          TEXT NOT NULL,                  -- JSON
    at_ms          INTEGER NOT NULL,
    PRIMARY KEY (principal, key)
) WITHOUT ROWID;

CREATE VIEW session_infos AS
SELECT s.*,
       (SELECT r.run_id FROM runs r
         WHERE r.session_id = s.id AND r.phase = 'live' AND r.parent_run_id IS NULL LIMIT 1) AS live_run_id,
       (SELECT count(*) FROM requests q WHERE q.session_id = s.id AND q.state = 'open') AS open_requests
  FROM sessions s
 WHERE s.deleted = 0;
