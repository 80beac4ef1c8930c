//! The invariants between the tables of a store, each with the queries that find
//! what breaks it.

use crate::store::store_rule::StoreRule;

/// All invariants, in the order in which they are checked.
pub const RULES: &[StoreRule] = &[
    StoreRule {
        name: "tenants and endpoints",
        rule: "endpoints, secrets, tokens and lanes belong to what is there",
        broken_by: &[
            "SELECT format('endpoint number %d belongs to tenant number %d, which is not there', p.no, p.tenant)
             FROM endpoints p LEFT JOIN tenants t ON t.no = p.tenant WHERE t.no IS NULL",
            "SELECT format('a secret belongs to endpoint number %d, which is not there', s.endpoint)
             FROM secrets s LEFT JOIN endpoints p ON p.no = s.endpoint WHERE p.no IS NULL",
            "SELECT format('token %s belongs to tenant number %d, which is not there', k.name, k.tenant)
             FROM tokens k LEFT JOIN tenants t ON t.no = k.tenant WHERE k.tenant IS NOT NULL AND t.no IS NULL",
            "SELECT format('lane %s belongs to endpoint number %d, which is not there', l.lane, l.endpoint)
             FROM lanes l LEFT JOIN endpoints p ON p.no = l.endpoint WHERE p.no IS NULL",
        ],
    },
    StoreRule {
        name: "deliveries and events",
        rule: "each delivery has its event and its endpoint, and the numbers of an event's deliveries are its own",
        broken_by: &[
            "SELECT format('delivery number %d has no event (number %d)', d.no, d.event)
             FROM deliveries d LEFT JOIN events e ON e.no = d.event WHERE e.no IS NULL",
            "SELECT format('delivery number %d is of another tenant than event %s', d.no, e.id)
             FROM deliveries d JOIN events e ON e.no = d.event WHERE e.tenant <> d.tenant",
            "SELECT format('delivery number %d has no endpoint (number %d)', d.no, d.endpoint)
             FROM deliveries d LEFT JOIN endpoints p ON p.no = d.endpoint WHERE p.no IS NULL",
            "SELECT format('delivery number %d is not among those of event %s', d.no, e.id)
             FROM deliveries d JOIN events e ON e.no = d.event
             WHERE NOT (d.no >= e.first_delivery AND d.no < e.first_delivery + e.deliveries)
               AND NOT EXISTS (SELECT 1 FROM backfilled b
                               WHERE b.event = d.event AND b.endpoint = d.endpoint AND b.delivery = d.no)",
            "SELECT format('deliveries of event %s have numbers of another event', id)
             FROM (SELECT id, first_delivery,
                          max(first_delivery + deliveries) OVER (ORDER BY no ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                              AS free_from
                   FROM events WHERE deliveries > 0)
             WHERE first_delivery < free_from",
            "SELECT format('a backfill of event number %d names delivery number %d, which is another one', b.event, b.delivery)
             FROM backfilled b JOIN deliveries d ON d.no = b.delivery WHERE d.event <> b.event OR d.endpoint <> b.endpoint",
        ],
    },
    StoreRule {
        name: "states",
        rule: "what waits has no end, what is finished holds nobody back, and what is dead has a cause",
        broken_by: &[
            "SELECT format('delivery number %d has the state %d and %s', no, state,
                           CASE WHEN finished_at IS NULL THEN 'no time of its end' ELSE 'a time of its end' END)
             FROM deliveries WHERE state NOT BETWEEN 0 AND 3 OR (state = 0) <> (finished_at IS NULL)",
            "SELECT format('delivery number %d is dead without a cause', no) FROM deliveries WHERE state = 2 AND cause IS NULL",
            "SELECT format('delivery number %d waits behind others in no lane', no)
             FROM deliveries WHERE state = 0 AND behind <> 0 AND (lane IS NULL OR passed = 1)",
            "SELECT format('delivery number %d has %s', no, CASE WHEN lane IS NULL THEN 'a place in no lane' ELSE 'no place in its lane' END)
             FROM deliveries WHERE (lane IS NULL) <> (seq IS NULL)",
        ],
    },
    StoreRule {
        name: "lanes",
        rule: "the head of a lane is its first member that is not passed, and it alone may go",
        broken_by: &[
            "SELECT format('lane %s of endpoint number %d has the head %s and should have %s',
                           lane, endpoint, coalesce(head, 'none'), coalesce(first, 'none'))
             FROM (SELECT l.lane, l.endpoint, l.head, f.no AS first
                   FROM lane_heads l JOIN endpoints p ON p.no = l.endpoint
                        LEFT JOIN (SELECT endpoint, lane, no, min(seq) FROM deliveries
                                   WHERE lane IS NOT NULL AND passed = 0 GROUP BY endpoint, lane) f
                            ON f.endpoint = l.endpoint AND f.lane = l.lane
                   WHERE p.deleted_at IS NULL)
             WHERE head IS NOT first",
            "SELECT format('delivery number %d is in lane %s, which is not there', d.no, d.lane)
             FROM deliveries d JOIN endpoints p ON p.no = d.endpoint
             WHERE d.lane IS NOT NULL AND d.passed = 0 AND p.deleted_at IS NULL
               AND NOT EXISTS (SELECT 1 FROM lanes l WHERE l.endpoint = d.endpoint AND l.lane = d.lane)",
            "SELECT format('delivery number %d %s', d.no,
                           CASE WHEN d.behind = 0 THEN 'may go before the head of its lane' ELSE 'is held back, and is the head of its lane' END)
             FROM deliveries d JOIN lane_heads l ON l.endpoint = d.endpoint AND l.lane = d.lane
                  JOIN endpoints p ON p.no = d.endpoint
             WHERE d.state = 0 AND d.passed = 0 AND p.deleted_at IS NULL AND d.behind = (l.head IS d.no)",
            "SELECT format('delivery number %d has the place %d in lane %s, which counts to %d', d.no, d.seq, d.lane, l.last_seq)
             FROM deliveries d JOIN lanes l ON l.endpoint = d.endpoint AND l.lane = d.lane WHERE d.seq > l.last_seq",
            "SELECT format('delivery number %d is finished, and its lane has not passed it', d.no)
             FROM deliveries d JOIN endpoints p ON p.no = d.endpoint
             WHERE d.state IN (1, 3) AND d.lane IS NOT NULL AND d.passed = 0 AND p.deleted_at IS NULL",
        ],
    },
    StoreRule {
        name: "dead letters",
        rule: "the list of dead letters has exactly the dead deliveries",
        broken_by: &[
            "SELECT format('delivery number %d is dead and not in the list', d.no)
             FROM deliveries d LEFT JOIN dead_letters l ON l.no = d.no WHERE d.state = 2 AND l.no IS NULL",
            "SELECT format('delivery number %d is in the list and not dead', l.no)
             FROM dead_letters l LEFT JOIN deliveries d ON d.no = l.no WHERE d.no IS NULL OR d.state <> 2",
            "SELECT format('delivery number %d differs from its entry in the list', d.no)
             FROM dead_letters l JOIN deliveries d ON d.no = l.no
             WHERE d.state = 2 AND (d.tenant, d.endpoint, d.cause, d.finished_at) <> (l.tenant, l.endpoint, l.cause, l.finished_at)",
        ],
    },
    StoreRule {
        name: "counts of dead letters",
        rule: "each group of dead letters is counted as it is",
        broken_by: &["SELECT format('tenant number %d, endpoint number %d, cause %d, day %d: counted %d, there are %d',
                           tenant, endpoint, cause, day, coalesce(c.count, 0), coalesce(n, 0))
             FROM (SELECT tenant, endpoint, cause, answer, finished_at / 86400000 AS day, count(*) AS n
                   FROM dead_letters GROUP BY 1, 2, 3, 4, 5) g
             FULL JOIN dead_letter_counts c USING (tenant, endpoint, cause, answer, day)
             WHERE c.count IS NOT n"],
    },
    StoreRule {
        name: "stored bytes",
        rule: "what a tenant's events of a day take up is what is counted",
        broken_by: &["SELECT format('tenant number %d, day %d: counted %d bytes, there are %d', tenant, day, coalesce(s.bytes, 0), coalesce(n, 0))
             FROM (SELECT tenant, accepted_at / 86400000 AS day, sum(length(data) + 512 * (1 + deliveries)) AS n
                   FROM events GROUP BY 1, 2) e
             FULL JOIN stored_bytes s USING (tenant, day)
             WHERE coalesce(s.bytes, 0) <> coalesce(n, 0)"],
    },
    StoreRule {
        name: "attempts",
        rule: "each attempt belongs to a delivery that has counted it",
        broken_by: &[
            "SELECT format('attempt %d of delivery number %d, which is not there', a.no & 1048575, a.no >> 20)
             FROM attempts a LEFT JOIN deliveries d ON d.no = a.no >> 20 WHERE d.no IS NULL",
            "SELECT format('attempt %d of delivery number %d, which counts %d', a.no & 1048575, d.no, d.attempts)
             FROM attempts a JOIN deliveries d ON d.no = a.no >> 20 WHERE a.no & 1048575 > d.attempts",
        ],
    },
    StoreRule {
        name: "jobs",
        rule: "what jobs hold and follow belongs to jobs that are there",
        broken_by: &[
            "SELECT format('a part of job %s, which is not there', hex(r.job))
             FROM job_parts r LEFT JOIN jobs j ON j.id = r.job WHERE j.id IS NULL",
            "SELECT format('a delivery of job %s, which is not there', hex(w.job))
             FROM job_waiting w LEFT JOIN jobs j ON j.id = w.job WHERE j.id IS NULL",
            "SELECT format('a held delivery of job %s, which is not there', hex(h.job))
             FROM job_held h LEFT JOIN jobs j ON j.id = h.job WHERE j.id IS NULL",
        ],
    },
];
