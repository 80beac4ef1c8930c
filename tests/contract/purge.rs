//! Purging a tenant: nothing of it stays, everything of others does; and tenants that
//! keep records for a time of their own.

use std::sync::Arc;

use jiff::Timestamp;
use posthaste::model::audit::{Caller, CallerIdentity, Initiator};
use posthaste::model::delivery::DeadCause;
use posthaste::model::endpoint::Endpoint;
use posthaste::model::failing_endpoints::FailingEndpoints;
use posthaste::model::figure_time::{FigureSpan, HOUR_MS};
use posthaste::model::figures::WindowFigures;
use posthaste::model::id::{DeliveryId, EndpointId, JobId, TenantId};
use posthaste::model::job::{Job, JobChange, JobFilter, JobKind, JobPart, JobSpec, JobState};
use posthaste::model::next_state::NextState;
use posthaste::model::span::Span;
use posthaste::model::tenant::{Tenant, TenantRetention};
use posthaste::model::type_figures::{TypeCounts, TypeFigures};
use posthaste::store::figures::{FigureHorizon, FigureRow, FigureScope, FigureWriter};
use posthaste::store::{
    AuditQuery, BatchMode, Error, EventQuery, ForgottenCounts, MissingResource, PageRequest, PurgeStep, RetentionScope,
};
use serde_json::json;

use crate::fixture::{StoreFixture, at, event, ours, tenant};

for_every_store! {
    a_purged_tenant_leaves_no_row_in_any_table,
    every_table_that_names_a_tenant_is_known_to_the_purge,
    the_figures_of_the_gateway_keep_what_a_purged_tenant_counted_and_none_of_its_names,
    a_tenant_is_gone_from_the_first_commit_on_and_its_id_is_free_after_the_last,
    a_purge_goes_on_where_it_was_when_the_store_is_opened_again,
    a_step_from_an_outdated_part_or_a_stale_lease_is_refused,
    jobs_over_all_tenants_that_have_ended_keep_no_name_of_a_purged_one,
    the_audit_log_keeps_that_it_happened_and_nothing_else,
    operational_events_about_the_tenant_go_and_lanes_of_others_move_on,
    a_deleted_tenant_can_be_purged_and_one_that_never_was_cannot,
    a_tenant_keeps_its_records_for_a_shorter_time_than_the_rest,
    a_tenant_keeps_its_records_for_a_longer_time_than_the_rest,
    the_retention_of_a_tenant_survives_that_the_store_is_closed,
}

fn acme() -> TenantId {
    tenant("acme")
}

fn purge_of(fixture: &StoreFixture, tenant: TenantId) -> Job {
    let spec = JobSpec {
        kind: JobKind::Purge,
        filter: JobFilter::default(),
        per_second: None,
        not_older_than: None,
        even_overtaken: false,
        note: None,
        by: "admin".into(),
    };
    Job {
        id: JobId::mint(at(100), fixture.mint()),
        tenant: TenantId::system(),
        spec,
        state: JobState::Running,
        created_at: at(100),
        finished_at: None,
        error: None,
        parts: vec![JobPart::new(tenant, EndpointId::mint(at(100), fixture.mint()))],
    }
}

fn admin() -> Initiator {
    let by = CallerIdentity::Admin;
    Initiator::Caller(Arc::new(Caller { by, from: None, request_id: "req_1".into(), at: at(90) }))
}

async fn begun(fixture: &StoreFixture) -> Job {
    let job = purge_of(fixture, acme());
    fixture.store.purge_tenant(&admin(), &acme(), job.clone()).await.unwrap();
    job
}

/// Makes one step. Returns whether the purge is finished.
async fn stepped(fixture: &StoreFixture, job: &Job) -> bool {
    let part = fixture.store.job(&TenantId::system(), job.id).await.unwrap().unwrap().parts.remove(0);
    let lease = fixture.store.lease(&part.tenant, part.endpoint);
    let step = PurgeStep { job: job.id, before: part, now: at(200), wall: at(200) };
    fixture.store.advance_purge(lease, step).await.unwrap().is_finished
}

async fn finished(fixture: &StoreFixture, job: &Job) {
    while !stepped(fixture, job).await {}
}

/// Gives a tenant something in every place: deliveries that wait, arrived and died, in a
/// lane and not, tokens, a portal, jobs, figures, audit entries.
async fn furnished(fixture: &StoreFixture, id: &TenantId) -> Arc<Endpoint> {
    fixture.put_tenant(TenantId::SYSTEM).await;
    fixture.put_tenant(id.as_str()).await;
    let endpoint = fixture.endpoint_of(id, json!({"description": "MARKER"})).await;
    let of = |name: &str| event(&format!("{name}-{id}")).of(id).to(&endpoint);
    let delivered = fixture.claim(of("MARKER-delivered")).await;
    fixture.deliver(&delivered, at(1)).await;
    let retried = fixture.claim(of("MARKER-retried")).await;
    fixture.attempted(&retried, NextState::Waiting { due_at: at(900) }, at(1)).await;
    let dead = fixture.claim(of("MARKER-dead").key("MARKER-key")).await;
    fixture.die(&dead, DeadCause::Refused, at(2)).await;
    fixture.accept_all(vec![of("MARKER-behind").key("MARKER-key")], BatchMode::All).await;
    fixture.accept(event(&format!("MARKER-unwanted-{id}")).of(id)).await;
    let named = Tenant { name: "MARKER".into(), ..Tenant::clone(&fixture.store.tenant(id).unwrap()) };
    fixture.store.put_tenant(&admin(), named).await.unwrap();
    endpoint
}

/// Counts the rows of a table in which a tenant, an endpoint or an event is named that
/// does not exist any more, by what the table's columns are called.
async fn rows_of(fixture: &StoreFixture, table: &str, column: &str) -> i64 {
    let of = match column {
        "tenant" => "IN (SELECT no FROM purged_tenants)",
        "endpoint" => "IN (SELECT no FROM purged_endpoints)",
        other => panic!("{other} is not looked for"),
    };
    fixture.number(&format!("SELECT count(*) FROM {table} WHERE {column} {of}")).await
}

/// Tables with a column that names a tenant or an endpoint by its number.
const NUMBERED: &[(&str, &str)] = &[
    ("events", "tenant"),
    ("stored_bytes", "tenant"),
    ("dead_letter_counts", "tenant"),
    ("jobs", "tenant"),
    ("figures", "tenant"),
    ("portals", "tenant"),
    ("tokens", "tenant"),
    ("endpoints", "tenant"),
    ("secrets", "endpoint"),
    ("endpoint_events", "endpoint"),
    ("lanes", "endpoint"),
    ("seq_floors", "endpoint"),
    ("forgotten_dead", "endpoint"),
    ("backfilled", "endpoint"),
];

async fn remember_numbers(fixture: &StoreFixture) {
    fixture.execute("CREATE TABLE purged_tenants AS SELECT no FROM tenants WHERE id = 'acme'").await;
    let sql = "CREATE TABLE purged_endpoints AS SELECT p.no FROM endpoints p JOIN tenants t ON t.no = p.tenant
               WHERE t.id = 'acme'";
    fixture.execute(sql).await;
}

async fn a_purged_tenant_leaves_no_row_in_any_table(fixture: StoreFixture) {
    let endpoint = furnished(&fixture, &acme()).await;
    furnished(&fixture, &tenant("other")).await;
    remember_numbers(&fixture).await;
    let sql = format!(
        "INSERT INTO figures (span, part, at, tenant, endpoint, writer, counts)
             SELECT s.span, 200, 5, no, 0, 1, {0} FROM purged_tenants, (SELECT 0 AS span UNION SELECT 1) s;
         INSERT INTO portals (tenant, theme) SELECT no, 'MARKER' FROM purged_tenants;
         INSERT INTO seq_floors (endpoint, floor) SELECT no, 5 FROM purged_endpoints;
         INSERT INTO forgotten_dead (endpoint, cause, count, oldest_at, newest_at)
             SELECT no, 1, 1, 1, 1 FROM purged_endpoints;
         INSERT INTO backfilled (event, endpoint, delivery)
             SELECT e.no, p.no, 1 FROM events e, purged_endpoints p WHERE e.id = 'MARKER-dead-acme'",
        if fixture.is_shared() { "''::bytea" } else { "x''" }
    );
    fixture.execute(&sql).await;
    assert_eq!(rows_of(&fixture, "figures", "tenant").await, 2);
    assert!(rows_of(&fixture, "lanes", "endpoint").await > 0 && rows_of(&fixture, "events", "tenant").await == 5);
    let attempts = fixture.number("SELECT count(*) FROM attempts").await;
    let job = begun(&fixture).await;
    finished(&fixture, &job).await;
    for (table, column) in NUMBERED {
        assert_eq!(rows_of(&fixture, table, column).await, 0, "{table}.{column}");
    }
    assert_eq!(rows_of(&fixture, "deliveries", "tenant").await, 0);
    assert_eq!(fixture.number("SELECT count(*) FROM audit WHERE tenant_id = 'acme'").await, 0);
    assert!(fixture.number("SELECT count(*) FROM attempts").await < attempts);
    assert_eq!(fixture.number("SELECT count(*) FROM tenants WHERE id = 'acme' AND name <> ''").await, 0);
    assert!(fixture.store.any_endpoint(endpoint.id).is_none());
    fixture.execute("DROP TABLE purged_tenants; DROP TABLE purged_endpoints").await;
    assert_eq!(fixture.findings().await, Vec::<String>::new(), "the rest of the store is as it should be");
    let others = fixture.store.events(&tenant("other"), EventQuery::default(), page()).await.unwrap();
    assert_eq!(others.data.len(), 5, "another tenant has all it had");
}

fn page() -> PageRequest {
    PageRequest { cursor: None, limit: 100 }
}

/// Columns by which a row belongs to a tenant, in whichever way.
const OWNING: &str = "'tenant', 'tenant_id', 'endpoint', 'event', 'delivery'";

async fn every_table_that_names_a_tenant_is_known_to_the_purge(fixture: StoreFixture) {
    let sql = if fixture.is_shared() {
        format!(
            "SELECT DISTINCT c.relname::text FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
             WHERE c.relnamespace = 'posthaste'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
               AND a.attname IN ({OWNING}) ORDER BY 1"
        )
    } else {
        format!(
            "SELECT DISTINCT m.name FROM sqlite_schema m JOIN pragma_table_info(m.name) c
             WHERE m.type = 'table' AND c.name IN ({OWNING}) ORDER BY 1"
        )
    };
    let found = fixture.texts(&sql).await;
    // Whoever adds a table to this list makes the purge delete its rows, and looks for
    // them in the test above.
    let both = [
        "audit",
        "backfilled",
        "dead_letter_counts",
        "endpoint_events",
        "endpoints",
        "events",
        "figures",
        "forgotten_dead",
        "job_held",
        "job_parts",
        "job_waiting",
        "jobs",
        "lanes",
        "portals",
        "secrets",
        "seq_floors",
        "stored_bytes",
        "tokens",
    ];
    let own: &[&str] = match fixture.is_shared() {
        true => &[
            "accept_delays",
            "attempts",
            "backlog",
            "dead",
            "dead_letter_count_changes",
            "finished",
            "health",
            "live_status",
            "producer_ids",
            "queue",
        ],
        false => &["dead_letters", "deliveries"],
    };
    let mut known: Vec<&str> = both.iter().chain(own).copied().collect();
    known.sort_unstable();
    assert_eq!(found, known);
}

/// Figures of a scope with attempts by event type, and failures at endpoints.
fn figures_of(scope: FigureScope, by_type: &[(&str, u64)], endpoints: &[EndpointId]) -> FigureRow {
    let (mut types, mut failing) = (TypeFigures::default(), FailingEndpoints::default());
    for (name, attempts) in by_type {
        types.count(&name.parse().unwrap(), TypeCounts { attempts: *attempts, delivered: 0, dead: 0 });
    }
    endpoints.iter().for_each(|endpoint| failing.count(*endpoint, 9));
    FigureRow { scope, figures: WindowFigures { accepted: 10, ..WindowFigures::default() }, types, failing }
}

async fn the_figures_of_the_gateway_keep_what_a_purged_tenant_counted_and_none_of_its_names(fixture: StoreFixture) {
    let theirs = furnished(&fixture, &acme()).await.id;
    let others = furnished(&fixture, &tenant("other")).await.id;
    let hour = |n: i64| Timestamp::from_millisecond((19_700 * 24 + n) * HOUR_MS).unwrap();
    let scopes = [FigureScope::Tenant(acme()), FigureScope::Tenant(tenant("other")), FigureScope::Gateway];
    for n in 0..3 {
        let rows = [
            figures_of(scopes[0].clone(), &[("shared", 2), ("MARKER.theirs", 3)], &[theirs]),
            figures_of(scopes[1].clone(), &[("shared", 5)], &[others]),
            figures_of(scopes[2].clone(), &[("shared", 7), ("MARKER.theirs", 3)], &[theirs, others]),
        ];
        for row in rows {
            fixture.store.write_figures(FigureWriter(11), row.scope.part(), hour(n), vec![row]).await.unwrap();
        }
    }
    // One hour is rolled up for all, one for the gateway alone, and one for nobody.
    for (scope, until) in scopes.iter().zip([1, 1, 2]) {
        let horizon = FigureHorizon { roll_up_until: hour(until), windows_before: hour(0), hours_before: hour(0) };
        while fixture.store.maintain_figures(scope.part(), horizon).await.unwrap() {}
    }
    let read = async |span| fixture.store.figures(&FigureScope::Gateway, span, hour(0), hour(3)).await.unwrap();
    for span in [FigureSpan::Window, FigureSpan::Hour] {
        assert!(read(span).await.iter().all(|row| row.types.by_type.len() == 2 && row.failing.worst(9).len() == 2));
    }
    let job = begun(&fixture).await;
    finished(&fixture, &job).await;
    for span in [FigureSpan::Window, FigureSpan::Hour] {
        let rows = read(span).await;
        assert_eq!(rows.len(), 3);
        for row in rows {
            let busiest = row.types.busiest(9).into_iter();
            let left: Vec<(String, u64)> =
                busiest.map(|(name, counts)| (name.as_str().to_owned(), counts.attempts)).collect();
            assert_eq!(left, [("shared".to_owned(), 5)], "{span:?} {}", row.at);
            assert_eq!((row.types.other.attempts, row.figures.accepted), (5, 10), "{span:?} {}", row.at);
            assert_eq!(row.failing.worst(9), [(others, 9)], "{span:?} {}", row.at);
        }
    }
}

async fn a_tenant_is_gone_from_the_first_commit_on_and_its_id_is_free_after_the_last(fixture: StoreFixture) {
    let endpoint = furnished(&fixture, &acme()).await;
    let job = begun(&fixture).await;
    assert!(fixture.store.tenant(&acme()).is_none() && fixture.store.endpoints(&acme()).is_empty());
    assert!(fixture.store.any_endpoint(endpoint.id).is_none(), "nothing more is sent");
    let again = fixture.store.purge_tenant(&admin(), &acme(), purge_of(&fixture, acme())).await;
    assert!(matches!(again, Err(Error::WrongState(_))), "{again:?}");
    let other = Tenant { id: acme(), ..Tenant::clone(&fixture.store.tenant(&ours()).unwrap()) };
    match fixture.store.put_tenant(&admin(), other.clone()).await {
        Err(Error::WrongState(words)) => assert!(words.contains("is being purged by job"), "{words}"),
        answer => panic!("{answer:?}"),
    }
    finished(&fixture, &job).await;
    fixture.store.put_tenant(&admin(), other).await.unwrap();
    let events = fixture.store.events(&acme(), EventQuery::default(), page()).await.unwrap();
    assert!(events.data.is_empty());
    assert!(fixture.store.endpoints(&acme()).is_empty());
    fixture.accept(event("MARKER-delivered-acme").of(&acme())).await;
    let seen = fixture.store.job(&TenantId::system(), job.id).await.unwrap().unwrap();
    assert_eq!(seen.state, JobState::Finished);
}

async fn a_purge_goes_on_where_it_was_when_the_store_is_opened_again(fixture: StoreFixture) {
    furnished(&fixture, &acme()).await;
    let job = begun(&fixture).await;
    let (mut fixture, mut steps) = (fixture, 0);
    while !stepped(&fixture, &job).await {
        steps += 1;
        if steps < 9 {
            fixture = fixture.reopened().await;
            assert!(fixture.store.tenant(&acme()).is_none(), "it does not come back");
        }
    }
    assert!(steps > 3, "there was something to interrupt");
    assert_eq!(fixture.number("SELECT count(*) FROM events WHERE id LIKE 'MARKER%'").await, 0);
    fixture.put_tenant("acme").await;
}

async fn a_step_from_an_outdated_part_or_a_stale_lease_is_refused(fixture: StoreFixture) {
    furnished(&fixture, &acme()).await;
    let job = begun(&fixture).await;
    let before = job.parts[0].clone();
    stepped(&fixture, &job).await;
    let lease = fixture.store.lease(&acme(), before.endpoint);
    let step = PurgeStep { job: job.id, before, now: at(200), wall: at(200) };
    let outdated = fixture.store.advance_purge(lease, step.clone()).await;
    assert!(matches!(outdated, Err(Error::Changed)), "{outdated:?}");
    let stale = posthaste::model::shard::Lease { epoch: posthaste::model::shard::Epoch(77), ..lease };
    let refused = fixture.store.advance_purge(stale, step).await;
    assert!(matches!(refused, Err(Error::Stale(_))), "{refused:?}");
}

/// Starts a job over all tenants that takes what has these names, at these endpoints.
async fn job_over_all(fixture: &StoreFixture, name: &str, endpoints: &[&Endpoint]) -> JobId {
    let filter = JobFilter {
        endpoints: endpoints.iter().map(|endpoint| endpoint.id).collect(),
        event_types: vec![format!("{name}.*")],
        key: Some(format!("{name}-key")),
        answers: vec!["5xx".into()],
        ids: vec![DeliveryId::mint(at(1), 77)],
        ..JobFilter::default()
    };
    let mut job = purge_of(fixture, acme());
    job.spec = JobSpec { kind: JobKind::Discard, filter, note: Some(format!("for {name}")), ..job.spec };
    job.parts = endpoints.iter().map(|endpoint| JobPart::new(endpoint.tenant.clone(), endpoint.id)).collect();
    fixture.store.create_job(&admin(), job.clone(), 9).await.unwrap();
    job.id
}

async fn jobs_over_all_tenants_that_have_ended_keep_no_name_of_a_purged_one(fixture: StoreFixture) {
    let theirs = furnished(&fixture, &acme()).await;
    let others = furnished(&fixture, &tenant("other")).await;
    let forgotten = Endpoint { id: EndpointId::mint(at(1), fixture.mint()), ..Endpoint::clone(&theirs) };
    let cancelled = job_over_all(&fixture, "MARKER", &[&theirs, &others]).await;
    let of_forgotten = job_over_all(&fixture, "MARKER", &[&forgotten, &others]).await;
    let only_theirs = job_over_all(&fixture, "MARKER", &[&theirs]).await;
    let running = job_over_all(&fixture, "running", &[&theirs, &others]).await;
    let of_others = job_over_all(&fixture, "others", &[&others]).await;
    for id in [cancelled, of_forgotten, of_others] {
        let system = TenantId::system();
        fixture.store.change_job(&admin(), (&system, id), JobChange::Cancel, 9, at(110)).await.unwrap();
    }
    let found = async |id| fixture.store.job(&TenantId::system(), id).await.unwrap().unwrap();
    let (was_running, was_of_others) = (found(running).await, found(of_others).await);
    let purge = begun(&fixture).await;
    finished(&fixture, &purge).await;
    for id in [cancelled, of_forgotten, only_theirs] {
        let Job { state, spec, parts, .. } = found(id).await;
        assert!(state.is_over() && parts.iter().all(|part| part.tenant != acme()), "{state:?} {parts:?}");
        assert_eq!(spec.filter, JobFilter { answers: vec!["5xx".into()], ..JobFilter::default() });
        assert!(spec.note.is_some_and(|note| note.contains("was purged") && !note.contains("MARKER")));
    }
    assert_eq!(found(running).await.spec, was_running.spec, "what still runs takes what it was started for");
    assert_eq!(found(of_others).await, was_of_others);
    assert_eq!(fixture.number("SELECT count(*) FROM jobs WHERE spec LIKE '%MARKER%'").await, 0);
    assert_eq!(fixture.number("SELECT count(*) FROM job_parts WHERE tenant = 'acme'").await, 1, "that of the purge");
}

async fn the_audit_log_keeps_that_it_happened_and_nothing_else(fixture: StoreFixture) {
    furnished(&fixture, &acme()).await;
    let of_acme = AuditQuery { tenant: Some(acme()), ..AuditQuery::default() };
    assert_eq!(fixture.store.audit(of_acme.clone(), page()).await.unwrap().data.len(), 1);
    let job = begun(&fixture).await;
    finished(&fixture, &job).await;
    assert!(fixture.store.audit(of_acme, page()).await.unwrap().data.is_empty());
    let about = AuditQuery { resource: Some("acme".into()), ..AuditQuery::default() };
    let kept = fixture.store.audit(about, page()).await.unwrap().data;
    let told: Vec<_> = kept.iter().map(|entry| (entry.record.action.into(), entry.record.by.as_str())).collect();
    let told: Vec<(&str, &str)> = told;
    assert_eq!(told, [("tenant.purged", "admin"), ("tenant.purge_started", "admin")]);
    let counts = &kept[0].record.counts;
    let of = |kind: &str| counts.get(kind).copied().unwrap_or(0);
    assert_eq!((of("events"), of("deliveries"), of("endpoints")), (5, 4, 1), "{counts:?}");
    assert!(of("attempts") + of("dead_letters") >= 2 && of("audit") >= 1, "{counts:?}");
}

async fn operational_events_about_the_tenant_go_and_lanes_of_others_move_on(fixture: StoreFixture) {
    fixture.put_tenant(TenantId::SYSTEM).await;
    let watcher = fixture.endpoint_of(&TenantId::system(), json!({"ordering": "endpoint"})).await;
    furnished(&fixture, &acme()).await;
    furnished(&fixture, &tenant("other")).await;
    let about = async |fixture: &StoreFixture| -> Vec<String> {
        let page = fixture.store.events(&TenantId::system(), EventQuery::default(), page()).await.unwrap();
        page.data.iter().map(|record| String::from_utf8_lossy(&record.event.data).into_owned()).collect()
    };
    let before = about(&fixture).await;
    assert!(
        before.iter().any(|data| data.contains("\"acme\"")) && before.iter().any(|data| data.contains("\"other\""))
    );
    let job = begun(&fixture).await;
    finished(&fixture, &job).await;
    let after = about(&fixture).await;
    assert!(!after.iter().any(|data| data.contains("\"acme\"")), "{after:?}");
    assert!(after.iter().any(|data| data.contains("\"other\"")));
    let due = fixture.due(&watcher, at(10_000)).await;
    assert_eq!(due.claims.len(), 1, "the next of the lane may go");
    assert_eq!(fixture.findings().await, Vec::<String>::new());
}

async fn a_deleted_tenant_can_be_purged_and_one_that_never_was_cannot(fixture: StoreFixture) {
    furnished(&fixture, &acme()).await;
    fixture.store.delete_tenant(&admin(), &acme(), at(50)).await.unwrap();
    let never = fixture.store.purge_tenant(&admin(), &tenant("never"), purge_of(&fixture, tenant("never"))).await;
    assert!(matches!(never, Err(Error::NotFound(MissingResource::Tenant))), "{never:?}");
    for always in [ours(), TenantId::system()] {
        let refused = fixture.store.purge_tenant(&admin(), &always, purge_of(&fixture, always.clone())).await;
        assert!(matches!(refused, Err(Error::WrongState(_))), "{refused:?}");
    }
    let job = begun(&fixture).await;
    finished(&fixture, &job).await;
    assert_eq!(fixture.number("SELECT count(*) FROM events WHERE id LIKE 'MARKER%'").await, 0);
    let again = fixture.store.purge_tenant(&admin(), &acme(), purge_of(&fixture, acme())).await;
    assert!(matches!(again, Err(Error::NotFound(MissingResource::Tenant))), "{again:?}");
}

/// Accepts and delivers an event of each tenant at second 0, one that dies, and one that
/// nobody wants.
async fn delivered_at_zero(fixture: &StoreFixture, tenants: &[&TenantId]) {
    for id in tenants {
        let endpoint = fixture.endpoint_of(id, json!({})).await;
        let claim = fixture.claim(event("delivered").of(id).to(&endpoint)).await;
        fixture.deliver(&claim, at(1)).await;
        let claim = fixture.claim(event("dead").of(id).to(&endpoint)).await;
        fixture.die(&claim, DeadCause::Refused, at(1)).await;
        fixture.accept(event("unwanted").of(id)).await;
    }
}

async fn left(fixture: &StoreFixture, id: &TenantId) -> Vec<String> {
    let page = fixture.store.events(id, EventQuery::default(), page()).await.unwrap();
    let mut names: Vec<String> = page.data.iter().map(|record| record.event.id.as_str().to_owned()).collect();
    names.sort();
    names
}

async fn a_tenant_keeps_its_records_for_a_shorter_time_than_the_rest(fixture: StoreFixture) {
    fixture.put_tenant("acme").await;
    delivered_at_zero(&fixture, &[&ours(), &acme()]).await;
    let gone = fixture.forget_of(RetentionScope::Only(acme()), at(50), at(-50)).await;
    assert_eq!(gone, ForgottenCounts { events: 2, deliveries: 1, dead: 0, next: None });
    assert_eq!(left(&fixture, &acme()).await, ["dead"]);
    assert_eq!(left(&fixture, &ours()).await, ["dead", "delivered", "unwanted"]);
    let gone = fixture.forget_of(RetentionScope::Only(acme()), at(50), at(50)).await;
    assert_eq!((gone.events, gone.dead), (1, 1));
    assert_eq!(left(&fixture, &ours()).await, ["dead", "delivered", "unwanted"]);
    assert_eq!(fixture.findings().await, Vec::<String>::new());
}

async fn a_tenant_keeps_its_records_for_a_longer_time_than_the_rest(fixture: StoreFixture) {
    fixture.put_tenant("acme").await;
    delivered_at_zero(&fixture, &[&ours(), &acme()]).await;
    let scope = RetentionScope::All { except: vec![acme()], days_before: at(-5_000) };
    let gone = fixture.forget_of(scope, at(50), at(50)).await;
    assert_eq!(gone, ForgottenCounts { events: 3, deliveries: 2, dead: 1, next: None });
    assert_eq!(left(&fixture, &acme()).await, ["dead", "delivered", "unwanted"]);
    assert!(left(&fixture, &ours()).await.is_empty());
    assert_eq!(fixture.findings().await, Vec::<String>::new());
}

async fn the_retention_of_a_tenant_survives_that_the_store_is_closed(fixture: StoreFixture) {
    fixture.put_tenant("acme").await;
    let retention = TenantRetention { finished: Some(Span::secs(86_400)), dead: None };
    let own = Tenant { retention, ..Tenant::clone(&fixture.store.tenant(&acme()).unwrap()) };
    fixture.store.put_tenant(&admin(), own).await.unwrap();
    let fixture = fixture.reopened().await;
    assert_eq!(fixture.store.tenant(&acme()).unwrap().retention, retention);
    assert!(fixture.store.tenant(&ours()).unwrap().retention.is_default());
}
