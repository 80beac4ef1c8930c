-- The lanes as they are. The first success of a delivery that nobody is behind writes
-- nothing into its lane: `lanes.head` stays, and counts as none, since it has passed.
-- Its end is then when the lane was used last. So whoever asks for the head of a lane,
-- or whether it is idle, asks here. Versions that ask the table would wait for that
-- head for ever; they refuse the store by its version.
CREATE VIEW lane_heads AS
    SELECT l.endpoint, l.lane, l.last_seq, CASE WHEN d.passed = 0 THEN l.head END AS head, l.head_since,
           l.touched_at AS written_at,
           CASE WHEN d.passed = 1 THEN max(l.touched_at, coalesce(d.finished_at, 0)) ELSE l.touched_at END AS touched_at,
           l.last_event
    FROM lanes l LEFT JOIN deliveries d ON d.no = l.head AND d.endpoint = l.endpoint AND d.lane = l.lane;
