-- Every statement of the stores, by name. `-- name --` opens one; comments under it say why.

-- get_session --
SELECT * FROM sessions WHERE id = :session_id AND deleted = 0

-- get_lineage --
-- Also of a deleted session: its forks read through it.
SELECT parent_id, parent_seq, deleted FROM sessions WHERE id = :session_id

-- insert_session --
INSERT INTO sessions (id, agent, agent_digest, tenant, principal, title, parent_id, parent_seq, head_seq, epoch,
                      pinned, runnable_at_ms, updated_ms)
VALUES (:session_id, :agent, :agent_digest, :tenant, :principal, :title, :parent_id, :parent_seq, :head_seq, :epoch,
        :pinned, :runnable_at_ms, :at_ms)
ON CONFLICT DO NOTHING

-- insert_fact --
INSERT INTO facts (session_id, seq, epoch, at_ms, run_id, kind, v, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?)

-- read_facts --
SELECT seq, at_ms, epoch, run_id, kind, v, body FROM facts
 WHERE session_id = :session_id AND seq > :after AND seq <= :upto ORDER BY seq LIMIT :limit

-- advance_session --
UPDATE sessions SET head_seq = :head_seq, updated_ms = :at_ms, takeovers = CASE WHEN :progress THEN 0 ELSE takeovers END
 WHERE id = :session_id

-- release_session --
-- H14: a post between the owner's decision and this statement left an untaken row, and the session stays runnable.
UPDATE sessions
   SET owner = NULL,
       runnable_at_ms = CASE WHEN EXISTS (SELECT 1 FROM inbox i WHERE i.session_id = :session_id AND i.taken_seq IS NULL)
                             THEN :at_ms ELSE :runnable_at_ms END
 WHERE id = :session_id

-- close_session --
UPDATE sessions SET closing = 1 WHERE id = :session_id

-- rename_session --
UPDATE sessions SET title = :title WHERE id = :session_id AND deleted = 0

-- session_info --
SELECT * FROM session_infos WHERE id = :session_id

-- list_sessions --
SELECT * FROM session_infos
 WHERE (:agent IS NULL OR agent = :agent)
   AND (:tenant IS NULL OR tenant = :tenant)
   AND (:principal IS NULL OR principal = :principal)
   AND (:session_id IS NULL OR id = :session_id)
   AND (:after IS NULL OR (updated_ms, id) < (SELECT updated_ms, id FROM sessions WHERE id = :after))
 ORDER BY updated_ms DESC, id DESC LIMIT :limit

-- insert_run --
INSERT INTO runs (session_id, run_id, parent_run_id, first_seq, last_seq, phase)
VALUES (:session_id, :run_id, :parent_run_id, :seq, :seq, 'live')

-- end_run --
UPDATE runs SET phase = 'ended', outcome = :outcome WHERE session_id = :session_id AND run_id = :run_id

-- advance_run --
UPDATE runs SET last_seq = :seq WHERE session_id = :session_id AND run_id = :run_id

-- inherit_live_runs --
-- A run that was live at the fork point is live in the fork, until the fork's own facts end it.
INSERT INTO runs (session_id, run_id, parent_run_id, first_seq, last_seq, phase)
SELECT :session_id, run_id, parent_run_id, first_seq, :upto, 'live' FROM runs
 WHERE session_id = :ancestor_id AND first_seq <= :upto AND (phase = 'live' OR last_seq > :upto)

-- get_run --
-- A fork's inherited rows do not count: the run belongs to the session that holds its first fact.
SELECT r.* FROM runs r JOIN sessions s ON s.id = r.session_id
 WHERE r.run_id = :run_id AND s.deleted = 0 AND r.first_seq > coalesce(s.parent_seq, 0)

-- get_queued_run --
-- A run that has not started is known by the input that carries its id: in the journal, or still in the inbox.
SELECT f.session_id AS session_id FROM facts f JOIN sessions s ON s.id = f.session_id
 WHERE f.run_id = :run_id AND f.kind = 'input_accepted' AND s.deleted = 0
   AND (:session_id IS NULL OR f.session_id = :session_id)
UNION ALL
SELECT i.session_id FROM inbox i JOIN sessions s ON s.id = i.session_id
 WHERE i.taken_seq IS NULL AND i.kind = 'input' AND json_extract(i.body, '$.run_id') = :run_id AND s.deleted = 0
   AND (:session_id IS NULL OR i.session_id = :session_id)
LIMIT 1

-- get_run_of_session --
SELECT * FROM runs WHERE session_id = :session_id AND run_id = :run_id

-- has_live_root_run --
SELECT 1 FROM runs WHERE session_id = :session_id AND phase = 'live' AND parent_run_id IS NULL LIMIT 1

-- insert_request --
INSERT INTO requests (session_id, request_id, seq, run_id, purpose, assignee, expires_at_ms, state)
VALUES (:session_id, :request_id, :seq, :run_id, :purpose, :assignee, :expires_at_ms, 'open')

-- get_request --
SELECT * FROM requests WHERE session_id = :session_id AND request_id = :request_id

-- answer_request --
UPDATE requests SET state = 'answered', answer_digest = :digest, answered_by = :principal
 WHERE session_id = :session_id AND request_id = :request_id AND state = 'open'

-- close_request --
UPDATE requests SET state = 'closed'
 WHERE session_id = :session_id AND request_id = :request_id AND state = :expected

-- list_requests --
SELECT q.* FROM requests q JOIN sessions s ON s.id = q.session_id
 WHERE s.deleted = 0
   AND (:agent IS NULL OR s.agent = :agent)
   AND (:tenant IS NULL OR s.tenant = :tenant)
   AND (:principal IS NULL OR s.principal = :principal)
   AND (:session_id IS NULL OR q.session_id = :session_id)
   AND (:state IS NULL OR q.state = :state)
   AND q.id > :after
 ORDER BY q.id LIMIT :limit

-- put_rule --
INSERT INTO rules (session_id, rule_id, body) VALUES (:session_id, :rule_id, :body)
ON CONFLICT (session_id, rule_id) DO UPDATE SET body = excluded.body

-- drop_rule --
DELETE FROM rules WHERE session_id = :session_id AND rule_id = :rule_id

-- list_rules --
SELECT body FROM rules WHERE session_id = :session_id ORDER BY rule_id

-- insert_item --
INSERT INTO inbox (session_id, principal, idem_key, kind, origin, digest, body, at_ms)
VALUES (:session_id, :principal, :idem_key, :kind, :origin, :digest, :body, :at_ms)

-- find_item --
SELECT kind, digest FROM inbox WHERE session_id = :session_id AND principal = :principal AND idem_key = :idem_key

-- has_untaken_input --
SELECT 1 FROM inbox WHERE session_id = :session_id AND taken_seq IS NULL AND kind = 'input' LIMIT 1

-- wake_session --
-- One that was runnable before keeps its place in the queue, so that many posts do not push it back.
UPDATE sessions SET updated_ms = :at_ms, runnable_at_ms = min(coalesce(runnable_at_ms, :at_ms), :at_ms)
 WHERE id = :session_id

-- list_untaken --
SELECT id, kind, body, at_ms, principal, idem_key, origin FROM inbox
 WHERE session_id = :session_id AND taken_seq IS NULL ORDER BY id

-- get_untaken --
SELECT kind, body FROM inbox WHERE id = :id AND session_id = :session_id AND taken_seq IS NULL

-- take_item --
-- Kept, without its body, as long as its key must tell repeats.
UPDATE inbox SET taken_seq = :seq, body = NULL WHERE id = :id AND idem_key IS NOT NULL

-- drop_item --
DELETE FROM inbox WHERE id = :id AND idem_key IS NULL

-- get_worker --
SELECT pid FROM workers WHERE id = :worker_id

-- list_workers --
SELECT id FROM workers

-- put_worker --
INSERT INTO workers (id, boot_id, pid, address, heartbeat_ms)
VALUES (:worker_id, :boot_id, :pid, :address, :heartbeat_ms)
ON CONFLICT (id) DO UPDATE
   SET boot_id = excluded.boot_id, pid = excluded.pid, address = excluded.address, heartbeat_ms = excluded.heartbeat_ms

-- beat --
UPDATE workers SET heartbeat_ms = :heartbeat_ms, address = :address WHERE id = :worker_id

-- drop_worker --
DELETE FROM workers WHERE id = :worker_id

-- owns_a_session --
SELECT 1 FROM sessions WHERE owner = :worker_id LIMIT 1

-- free_sessions_of --
UPDATE sessions
   SET owner = NULL, takeovers = takeovers + :takeover, runnable_at_ms = coalesce(runnable_at_ms, updated_ms)
 WHERE owner = :worker_id

-- list_owners --
SELECT DISTINCT owner FROM sessions WHERE owner IS NOT NULL

-- list_due --
SELECT id, runnable_at_ms FROM sessions
 WHERE owner IS NULL AND runnable_at_ms IS NOT NULL AND runnable_at_ms <= :now_ms AND deleted = 0
 ORDER BY runnable_at_ms LIMIT :limit

-- list_owned --
SELECT id, runnable_at_ms FROM sessions WHERE owner = :worker_id AND deleted = 0 ORDER BY runnable_at_ms LIMIT :limit

-- own_session --
UPDATE sessions SET owner = :worker_id, epoch = epoch + 1, takeovers = takeovers + :takeover WHERE id = :session_id

-- clear_tails --
DELETE FROM tails WHERE session_id = :session_id

-- insert_tail --
INSERT INTO tails (session_id, stream, units, body) VALUES (:session_id, :stream, :units, :body)

-- list_tails --
SELECT stream, units, body FROM tails WHERE session_id = :session_id ORDER BY stream

-- put_blob --
INSERT INTO blobs (digest, media_type, body) VALUES (:digest, :media_type, :body) ON CONFLICT DO NOTHING

-- put_blob_ref --
INSERT INTO blob_refs (session_id, digest) VALUES (:session_id, :digest) ON CONFLICT DO NOTHING

-- get_blob --
SELECT media_type, body FROM blobs WHERE digest = :digest

-- put_reply --
INSERT INTO idempotency (principal, key, operation, request_digest, status, reply, at_ms)
VALUES (:principal, :key, :operation, :request_digest, :status, :reply, :at_ms) ON CONFLICT DO NOTHING

-- get_reply --
SELECT operation, request_digest, status, reply FROM idempotency WHERE principal = :principal AND key = :key

-- bury_session --
-- The epoch moves on, so that an owner that still works is fenced.
UPDATE sessions SET deleted = 1, owner = NULL, runnable_at_ms = NULL, epoch = epoch + 1 WHERE id = :session_id

-- delete_inbox --
DELETE FROM inbox WHERE session_id = :session_id

-- delete_requests --
DELETE FROM requests WHERE session_id = :session_id

-- delete_rules --
DELETE FROM rules WHERE session_id = :session_id

-- shared_prefix --
SELECT max(parent_seq) FROM sessions WHERE parent_id = :session_id

-- delete_facts --
DELETE FROM facts WHERE session_id = :session_id AND seq > :after

-- delete_runs --
DELETE FROM runs WHERE session_id = :session_id

-- delete_own_blobs --
DELETE FROM blobs
 WHERE digest IN (SELECT digest FROM blob_refs WHERE session_id = :session_id)
   AND NOT EXISTS (SELECT 1 FROM blob_refs r WHERE r.digest = blobs.digest AND r.session_id <> :session_id)

-- delete_blob_refs --
DELETE FROM blob_refs WHERE session_id = :session_id

-- delete_session --
DELETE FROM sessions WHERE id = :session_id

-- mark_schema --
INSERT INTO meta (id, schema, min_reader) VALUES (1, :schema, :min_reader)
ON CONFLICT (id) DO UPDATE SET schema = excluded.schema, min_reader = excluded.min_reader
