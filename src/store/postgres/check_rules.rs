//! The invariants between the tables of a shared store, each with the queries that
//! find what breaks it.
//!
//! They are read in one snapshot, so nodes may go on meanwhile: whatever belongs
//! together is changed in one commit. What events take up is not compared: operational
//! events are not counted here when they are written, and days that are dropped are
//! counted anew.

use crate::store::store_rule::StoreRule;

/// All invariants, in the order in which they are checked.
pub const RULES: &[StoreRule] = &[
    StoreRule {
        name: "tenants and endpoints",
        rule: "endpoints, secrets, tokens and lanes belong to what is there",
        broken_by: &[
            "SELECT format('endpoint number %s belongs to tenant number %s, which is not there', p.no, p.tenant)
             FROM posthaste.endpoints p LEFT JOIN posthaste.tenants t ON t.no = p.tenant WHERE t.no IS NULL",
            "SELECT format('a secret belongs to endpoint number %s, which is not there', s.endpoint)
             FROM posthaste.secrets s LEFT JOIN posthaste.endpoints p ON p.no = s.endpoint WHERE p.no IS NULL",
            "SELECT format('token %s belongs to tenant number %s, which is not there', k.name, k.tenant)
             FROM posthaste.tokens k LEFT JOIN posthaste.tenants t ON t.no = k.tenant
             WHERE k.tenant IS NOT NULL AND k.deleted_at IS NULL AND t.no IS NULL",
            "SELECT format('lane %s belongs to endpoint number %s, which is not there', l.lane, l.endpoint)
             FROM posthaste.lanes l LEFT JOIN posthaste.endpoints p ON p.no = l.endpoint WHERE p.no IS NULL",
        ],
    },
    StoreRule {
        name: "queue and events",
        rule: "each delivery that waits or is dead has its event and its endpoint, and is in one table alone",
        broken_by: &[
            "SELECT format('delivery number %s has no event (number %s)', d.no, d.event)
             FROM (SELECT no, event FROM posthaste.queue UNION ALL SELECT no, event FROM posthaste.dead) d
                  LEFT JOIN posthaste.events e ON e.no = d.event WHERE e.no IS NULL",
            "SELECT format('delivery number %s is of another tenant than event %s', d.no, e.id)
             FROM (SELECT no, event, tenant FROM posthaste.queue UNION ALL SELECT no, event, tenant FROM posthaste.dead) d
                  JOIN posthaste.events e ON e.no = d.event WHERE e.tenant <> d.tenant",
            "SELECT format('delivery number %s has no endpoint (number %s), or another shard than it', d.no, d.endpoint)
             FROM (SELECT no, endpoint, shard FROM posthaste.queue UNION ALL SELECT no, endpoint, shard FROM posthaste.dead) d
                  LEFT JOIN posthaste.endpoints p ON p.no = d.endpoint WHERE p.no IS NULL OR p.shard <> d.shard",
            "SELECT format('delivery number %s is there %s times', no, count(*))
             FROM posthaste.deliveries GROUP BY no HAVING count(*) > 1",
            "SELECT format('delivery number %s is not among those of event %s', d.no, e.id)
             FROM (SELECT no, event, endpoint FROM posthaste.queue UNION ALL SELECT no, event, endpoint FROM posthaste.dead) d
                  JOIN posthaste.events e ON e.no = d.event
             WHERE NOT (d.no >= e.first_delivery AND d.no < e.first_delivery + e.deliveries)
               AND NOT EXISTS (SELECT FROM posthaste.backfilled b
                               WHERE b.event = d.event AND b.endpoint = d.endpoint AND b.delivery = d.no)",
        ],
    },
    StoreRule {
        name: "lanes",
        rule: "the head of a lane is its first member that is not passed, and it alone may go",
        broken_by: &[
            "WITH members AS (
                 SELECT endpoint, lane, seq, no FROM posthaste.queue WHERE lane IS NOT NULL AND NOT passed
                 UNION ALL
                 SELECT endpoint, lane, seq, no FROM posthaste.dead WHERE lane IS NOT NULL AND NOT passed),
             heads AS (SELECT DISTINCT ON (endpoint, lane) endpoint, lane, no FROM members ORDER BY endpoint, lane, seq)
             SELECT format('lane %s of endpoint number %s has the head %s and should have %s',
                           lane, endpoint, coalesce(l.head::text, 'none'), coalesce(h.no::text, 'none'))
             FROM posthaste.lanes l FULL JOIN heads h USING (endpoint, lane)
                  JOIN posthaste.endpoints p ON p.no = endpoint
             WHERE p.deleted_at IS NULL AND l.head IS DISTINCT FROM h.no",
            "SELECT format('delivery number %s %s', q.no,
                           CASE WHEN q.behind THEN 'is held back, and is the head of its lane' ELSE 'may go before the head of its lane' END)
             FROM posthaste.queue q JOIN posthaste.lanes l ON l.endpoint = q.endpoint AND l.lane = q.lane
                  JOIN posthaste.endpoints p ON p.no = q.endpoint
             WHERE NOT q.passed AND p.deleted_at IS NULL AND q.behind = (l.head IS NOT DISTINCT FROM q.no)",
            "SELECT format('delivery number %s waits behind others in no lane', no)
             FROM posthaste.queue WHERE behind AND (lane IS NULL OR passed)",
            "SELECT format('delivery number %s has the place %s in lane %s, which counts to %s', q.no, q.seq, q.lane, l.last_seq)
             FROM posthaste.deliveries q JOIN posthaste.lanes l ON l.endpoint = q.endpoint AND l.lane = q.lane
             WHERE q.seq > l.last_seq",
        ],
    },
    StoreRule {
        name: "counts of dead letters",
        rule: "each group of dead letters is counted as it is",
        broken_by: &[
            "SELECT format('delivery number %s is dead without a cause', no) FROM posthaste.dead WHERE cause IS NULL",
            "SELECT format('tenant number %s, endpoint number %s, cause %s, day %s: counted %s, there are %s',
                           tenant, endpoint, cause, day, coalesce(c.n, 0), coalesce(d.n, 0))
             FROM (SELECT tenant, endpoint, cause, answer, day, sum(count)::bigint AS n
                   FROM (SELECT tenant, endpoint, cause, answer, day, count FROM posthaste.dead_letter_counts
                         UNION ALL
                         SELECT tenant, endpoint, cause, answer, day, count FROM posthaste.dead_letter_count_changes) both_tables
                   GROUP BY 1, 2, 3, 4, 5) c
             FULL JOIN (SELECT tenant, endpoint, coalesce(cause, -1) AS cause, answer, finished_at / 86400000 AS day, count(*) AS n
                        FROM posthaste.dead GROUP BY 1, 2, 3, 4, 5) d USING (tenant, endpoint, cause, answer, day)
             WHERE coalesce(c.n, 0) <> coalesce(d.n, 0)",
        ],
    },
    StoreRule {
        name: "attempts",
        rule: "no delivery has more attempts than it has counted",
        broken_by: &["SELECT format('attempt %s of delivery number %s, which counts %s', a.number, a.delivery, d.attempts)
             FROM posthaste.attempts a JOIN posthaste.deliveries d ON d.no = a.delivery WHERE a.number > d.attempts"],
    },
    StoreRule {
        name: "jobs",
        rule: "what jobs hold and follow belongs to jobs that are there",
        broken_by: &[
            "SELECT format('a part of job %s, which is not there', r.job)
             FROM posthaste.job_parts r LEFT JOIN posthaste.jobs j ON j.id = r.job WHERE j.id IS NULL",
            "SELECT format('a delivery of job %s, which is not there', w.job)
             FROM posthaste.job_waiting w LEFT JOIN posthaste.jobs j ON j.id = w.job WHERE j.id IS NULL",
            "SELECT format('a held delivery of job %s, which is not there', h.job)
             FROM posthaste.job_held h LEFT JOIN posthaste.jobs j ON j.id = h.job WHERE j.id IS NULL",
        ],
    },
];
