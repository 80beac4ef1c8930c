//! Jobs: each delivery at most once, in order, whatever ends in between.

use posthaste::model::audit::Initiator;
use posthaste::model::delivery::{DeadCause, DeliveryState};
use posthaste::model::endpoint::Endpoint;
use posthaste::model::id::{DeliveryId, JobId, TenantId};
use posthaste::model::job::{Job, JobChange, JobFilter, JobKind, JobPart, JobSpec, JobState, LeftOut};
use posthaste::store::plan::change::ChangeCondition;
use posthaste::store::{
    CandidateWalk, DeliveryChange, Error, EventQuery, JobStep, MissingResource, PageRequest, delivery_no,
};
use serde_json::{Value, json};

use crate::fixture::{StoreFixture, at, event, names, ours};

for_every_store! {
    candidates_come_in_the_order_of_their_creation_and_say_where_to_go_on,
    candidates_come_newest_first_if_that_is_asked_for,
    what_waits_is_found_however_many_others_there_are,
    a_step_changes_its_deliveries_and_moves_its_position_in_one_commit,
    a_step_that_was_made_is_not_made_again,
    what_refuses_is_left_out_and_the_rest_is_done,
    what_was_changed_since_it_was_read_is_left_out,
    a_step_from_outdated_counts_is_refused,
    what_a_job_released_is_followed_to_its_end_and_then_it_is_finished,
    what_a_job_no_longer_follows_counts_as_waiting_and_the_job_ends_without_it,
    a_job_that_is_paused_makes_no_step_and_goes_on_when_resumed,
    jobs_beyond_those_that_may_run_are_queued,
    what_is_held_back_is_found_by_its_lane_and_keeps_a_job_open,
    a_job_of_a_newer_version_keeps_no_other_from_going_on,
    a_job_that_cannot_go_on_has_failed_and_says_why,
    candidates_are_found_by_their_ids_and_tell_whose_data_is_gone,
    candidates_by_id_are_in_the_order_of_their_numbers_whatever_their_times,
    a_passed_delivery_is_taken_only_if_that_was_asked_for,
    a_job_survives_that_the_store_is_closed,
    jobs_are_listed_newest_first_and_old_ones_are_forgotten,
    a_job_without_endpoints_is_finished_at_once,
    jobs_that_are_not_over_are_counted_by_state,
}

fn job(fixture: &StoreFixture, kind: JobKind, endpoints: &[&Endpoint]) -> Job {
    let filter = JobFilter { all: true, ..Default::default() };
    let (per_second, not_older_than, note) = (None, None, None);
    let spec = JobSpec { kind, filter, per_second, not_older_than, even_overtaken: false, note, by: "admin".into() };
    Job {
        id: JobId::mint(at(100), fixture.mint()),
        tenant: ours(),
        spec,
        state: JobState::Running,
        created_at: at(100),
        finished_at: None,
        error: None,
        parts: endpoints.iter().map(|endpoint| JobPart::new(ours(), endpoint.id)).collect(),
    }
}

async fn started(fixture: &StoreFixture, kind: JobKind, endpoint: &Endpoint) -> Job {
    let job = job(fixture, kind, &[endpoint]);
    fixture.store.create_job(&Initiator::Gateway, job.clone(), 5).await.unwrap();
    job
}

/// The one open part of the one job that runs.
async fn open_part(fixture: &StoreFixture) -> JobPart {
    fixture.store.open_jobs().await.unwrap().jobs.remove(0).parts.remove(0)
}

fn step(job: &Job, before: &JobPart, take: &[DeliveryId]) -> JobStep {
    JobStep {
        job: job.id,
        kind: job.spec.kind,
        condition: ChangeCondition { state: Some(job.spec.delivery_state()), is_unpassed: !job.spec.even_overtaken },
        before: before.clone(),
        after: take.last().copied().or(before.after),
        is_read: before.is_read,
        take: take.to_vec(),
        backfill: Vec::new(),
        hold: Vec::new(),
        unhold: Vec::new(),
        left_out: Vec::new(),
        ended: Vec::new(),
        pace: None,
    }
}

/// The state and the error with which the end of the last job was told.
async fn told_end(fixture: &StoreFixture) -> (Value, Value) {
    let page = PageRequest { cursor: None, limit: 100 };
    let events = fixture.store.events(&TenantId::system(), EventQuery::default(), page).await.unwrap().data;
    let told = events.iter().find(|record| record.event.event_type.as_str() == "job.finished").unwrap();
    let data: Value = serde_json::from_slice(&told.event.data).unwrap();
    (data["state"].clone(), data["error"].clone())
}

async fn dead_letters(fixture: &StoreFixture, endpoint: &std::sync::Arc<Endpoint>, count: i64) -> Vec<DeliveryId> {
    let mut dead = Vec::new();
    for n in 0..count {
        let claim = fixture.claim(event(&format!("e{n}")).to(endpoint)).await;
        fixture.die(&claim, DeadCause::Exhausted, at(10 + n)).await;
        dead.push(claim.id);
    }
    dead
}

async fn candidates_come_in_the_order_of_their_creation_and_say_where_to_go_on(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({"on_dead": "skip"})).await;
    let dead = dead_letters(&fixture, &endpoint, 3).await;
    let passed = fixture.claim(event("laned").key("k").to(&endpoint)).await;
    fixture.die(&passed, DeadCause::Refused, at(20)).await;
    let waiting = fixture.claim(event("waiting").to(&endpoint)).await;
    let page = async |state, after, look| {
        let walk = CandidateWalk::OldestFirst(after);
        fixture.store.job_candidates(endpoint.id, state, walk, look).await.unwrap()
    };
    let first = page(DeliveryState::Dead, None, 2).await;
    let ids: Vec<DeliveryId> = first.candidates.iter().map(|one| one.delivery.id).collect();
    assert_eq!((ids, first.looked_to, first.is_end), (dead[..2].to_vec(), Some(dead[1]), false));
    let second = page(DeliveryState::Dead, first.looked_to, 10).await;
    let ids: Vec<DeliveryId> = second.candidates.iter().map(|one| one.delivery.id).collect();
    assert_eq!((ids, second.is_end), (vec![dead[2], passed.id], true));
    assert!(!second.candidates[0].is_passed && second.candidates[1].is_passed);
    assert_eq!(second.candidates[1].delivery.last_status, Some(400));
    let others = page(DeliveryState::Waiting, None, 100).await;
    assert_eq!(others.candidates.iter().map(|one| one.delivery.id).collect::<Vec<_>>(), [waiting.id]);
}

async fn candidates_come_newest_first_if_that_is_asked_for(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let dead = dead_letters(&fixture, &endpoint, 3).await;
    let mut waiting = Vec::new();
    for n in 0..3 {
        waiting.push(fixture.claim(event(&format!("w{n}")).to(&endpoint)).await.id);
    }
    for (state, ids) in [(DeliveryState::Dead, dead), (DeliveryState::Waiting, waiting)] {
        let page = async |before| {
            let walk = CandidateWalk::NewestFirst(before);
            fixture.store.job_candidates(endpoint.id, state, walk, 2).await.unwrap()
        };
        let first = page(None).await;
        let found: Vec<DeliveryId> = first.candidates.iter().map(|one| one.delivery.id).collect();
        assert_eq!((found, first.looked_to, first.is_end), (vec![ids[2], ids[1]], Some(ids[1]), false));
        let second = page(first.looked_to).await;
        let found: Vec<DeliveryId> = second.candidates.iter().map(|one| one.delivery.id).collect();
        assert_eq!((found, second.is_end), (vec![ids[0]], true));
    }
}

async fn what_waits_is_found_however_many_others_there_are(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let mut waiting = Vec::new();
    for n in 0..2 {
        for m in 0..5 {
            let arrived = fixture.claim(event(&format!("e{n}{m}")).to(&endpoint)).await;
            fixture.deliver(&arrived, at(10)).await;
        }
        waiting.push(fixture.claim(event(&format!("w{n}")).to(&endpoint)).await.id);
    }
    let page = async |after| {
        let walk = CandidateWalk::OldestFirst(after);
        fixture.store.job_candidates(endpoint.id, DeliveryState::Waiting, walk, 1).await.unwrap()
    };
    let first = page(None).await;
    assert_eq!(first.candidates.iter().map(|one| one.delivery.id).collect::<Vec<_>>(), waiting[..1]);
    assert_eq!((first.read, first.looked_to), (1, Some(waiting[0])));
    let second = page(first.looked_to).await;
    assert_eq!(second.candidates.iter().map(|one| one.delivery.id).collect::<Vec<_>>(), waiting[1..]);
    assert!(page(second.looked_to).await.is_end);
}

async fn a_step_changes_its_deliveries_and_moves_its_position_in_one_commit(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let dead = dead_letters(&fixture, &endpoint, 3).await;
    let job = started(&fixture, JobKind::Replay, &endpoint).await;
    let lease = fixture.lease(endpoint.id);
    let part = open_part(&fixture).await;
    let advanced = fixture.store.advance_job(lease, step(&job, &part, &dead[..2]), at(101)).await.unwrap();
    assert_eq!(advanced.changed.iter().map(|(id, _)| *id).collect::<Vec<_>>(), dead[..2]);
    assert!(advanced.changed.iter().all(|(_, changed)| changed.due_at == Some(at(101))) && !advanced.is_finished);
    let part = open_part(&fixture).await;
    assert_eq!((part.after, part.counts.done, part.counts.matched, part.counts.waiting), (Some(dead[1]), 2, 2, 2));
    assert_eq!(fixture.due_ids(&endpoint, at(101)).await, ["e0", "e1"]);
    assert_eq!(fixture.state(dead[2]).await, DeliveryState::Dead);
    let mut stale = lease;
    stale.epoch.0 += 1;
    let refused = fixture.store.advance_job(stale, step(&job, &part, &dead[2..]), at(102)).await;
    assert!(matches!(refused, Err(Error::Stale(_))), "{refused:?}");
    assert_eq!(fixture.state(dead[2]).await, DeliveryState::Dead);
}

async fn a_step_that_was_made_is_not_made_again(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let dead = dead_letters(&fixture, &endpoint, 2).await;
    let job = started(&fixture, JobKind::Discard, &endpoint).await;
    let part = open_part(&fixture).await;
    let lease = fixture.lease(endpoint.id);
    fixture.store.advance_job(lease, step(&job, &part, &dead[..1]), at(101)).await.unwrap();
    let again = fixture.store.advance_job(lease, step(&job, &part, &dead[..1]), at(102)).await;
    assert!(matches!(again, Err(Error::Changed)), "{again:?}");
    assert_eq!(open_part(&fixture).await.counts.done, 1);
}

async fn what_refuses_is_left_out_and_the_rest_is_done(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let dead = dead_letters(&fixture, &endpoint, 3).await;
    let job = started(&fixture, JobKind::Replay, &endpoint).await;
    fixture.store.expunge(&Initiator::Gateway, &ours(), &"e0".parse().unwrap()).await.unwrap();
    fixture.change(dead[1], DeliveryChange::Replay, at(100)).await.unwrap();
    let part = open_part(&fixture).await;
    let mut step = step(&job, &part, &dead);
    step.left_out = vec![LeftOut::Overtaken];
    let advanced = fixture.store.advance_job(fixture.lease(endpoint.id), step, at(101)).await.unwrap();
    assert_eq!(advanced.changed.len(), 1);
    let counts = open_part(&fixture).await.counts;
    assert_eq!((counts.matched, counts.done), (4, 1));
    let left_out = [(LeftOut::Overtaken, 1), (LeftOut::Expunged, 1), (LeftOut::WrongState, 1)];
    assert_eq!(counts.left_out, left_out.into_iter().collect());
}

async fn what_was_changed_since_it_was_read_is_left_out(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let delivered = dead_letters(&fixture, &endpoint, 1).await[0];
    let discarded = fixture.claim(event("laned").key("k").to(&endpoint)).await;
    fixture.die(&discarded, DeadCause::Refused, at(20)).await;
    let job = started(&fixture, JobKind::Replay, &endpoint).await;
    let part = open_part(&fixture).await;
    // A person is faster with one, and gives up another, whose lane moves on.
    fixture.change(delivered, DeliveryChange::Replay, at(100)).await.unwrap();
    let claims = fixture.due(&endpoint, at(100)).await.claims;
    fixture.deliver(&claims[0], at(101)).await;
    fixture.change(discarded.id, DeliveryChange::Discard, at(101)).await.unwrap();
    let step = step(&job, &part, &[delivered, discarded.id]);
    let advanced = fixture.store.advance_job(fixture.lease(endpoint.id), step, at(102)).await.unwrap();
    assert!(advanced.changed.is_empty());
    assert_eq!(open_part(&fixture).await.counts.left_out, [(LeftOut::WrongState, 2)].into_iter().collect());
    assert_eq!(fixture.state(delivered).await, DeliveryState::Delivered);
    assert_eq!(fixture.state(discarded.id).await, DeliveryState::Cancelled);
}

async fn a_step_from_outdated_counts_is_refused(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let dead = dead_letters(&fixture, &endpoint, 2).await;
    let job = started(&fixture, JobKind::Replay, &endpoint).await;
    let lease = fixture.lease(endpoint.id);
    let part = open_part(&fixture).await;
    let all = JobStep { is_read: true, ..step(&job, &part, &dead) };
    fixture.store.advance_job(lease, all, at(101)).await.unwrap();
    let part = open_part(&fixture).await;
    // Two nodes have read the same part, and each has seen another delivery end.
    let ended = |id| JobStep { ended: vec![(id, Some(DeliveryState::Delivered))], ..step(&job, &part, &[]) };
    fixture.store.advance_job(lease, ended(dead[0]), at(102)).await.unwrap();
    let second = fixture.store.advance_job(lease, ended(dead[1]), at(103)).await;
    assert!(matches!(second, Err(Error::Changed)), "{second:?}");
    assert_eq!(open_part(&fixture).await.counts.waiting, 1);
}

async fn what_a_job_released_is_followed_to_its_end_and_then_it_is_finished(fixture: StoreFixture) {
    fixture.put_tenant("_system").await;
    let endpoint = fixture.endpoint(json!({})).await;
    let dead = dead_letters(&fixture, &endpoint, 2).await;
    let job = started(&fixture, JobKind::Replay, &endpoint).await;
    let lease = fixture.lease(endpoint.id);
    let part = open_part(&fixture).await;
    let last = JobStep { is_read: true, ..step(&job, &part, &dead) };
    assert!(!fixture.store.advance_job(lease, last, at(101)).await.unwrap().is_finished);
    let waiting = async || fixture.store.job_followed(job.id, endpoint.id).await.unwrap().waiting;
    assert!(waiting().await.iter().all(|one| one.state == Some(DeliveryState::Waiting)));
    let claims = fixture.due(&endpoint, at(101)).await.claims;
    fixture.deliver(&claims[0], at(102)).await;
    fixture.die(&claims[1], DeadCause::Refused, at(103)).await;
    let ended: Vec<_> = waiting().await.into_iter().map(|one| (one.id, one.state)).collect();
    assert_eq!(ended.len(), 2);
    let part = open_part(&fixture).await;
    let end = JobStep { ended, ..step(&job, &part, &[]) };
    let advanced = fixture.store.advance_job(lease, end, at(104)).await.unwrap();
    assert!(advanced.is_finished);
    assert_eq!(names(&advanced.operational_events), ["job.finished"]);
    assert_eq!(told_end(&fixture).await, (json!("finished"), json!(null)));
    assert!(fixture.store.open_jobs().await.unwrap().jobs.is_empty() && waiting().await.is_empty());
    let job = fixture.store.job(&ours(), job.id).await.unwrap().unwrap();
    assert_eq!((job.state, job.finished_at), (JobState::Finished, Some(at(104))));
    let counts = job.counts();
    assert_eq!((counts.done, counts.delivered, counts.dead, counts.waiting), (2, 1, 1, 0));
}

async fn what_a_job_no_longer_follows_counts_as_waiting_and_the_job_ends_without_it(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let dead = dead_letters(&fixture, &endpoint, 2).await;
    let job = started(&fixture, JobKind::Replay, &endpoint).await;
    let lease = fixture.lease(endpoint.id);
    let first = step(&job, &open_part(&fixture).await, &dead[..1]);
    fixture.store.advance_job(lease, first, at(101)).await.unwrap();
    let left = vec![(dead[0], Some(DeliveryState::Waiting))];
    let second = JobStep { ended: left, ..step(&job, &open_part(&fixture).await, &dead[1..]) };
    fixture.store.advance_job(lease, second, at(102)).await.unwrap();
    let followed = fixture.store.job_followed(job.id, endpoint.id).await.unwrap().waiting;
    assert_eq!(followed.iter().map(|one| one.id).collect::<Vec<_>>(), dead[1..]);
    assert!(followed[0].waits_longer(at(101)) && !followed[0].waits_longer(at(102)), "it is due at once");
    let ended = vec![(dead[1], Some(DeliveryState::Delivered))];
    let last = JobStep { ended, is_read: true, ..step(&job, &open_part(&fixture).await, &[]) };
    assert!(fixture.store.advance_job(lease, last, at(103)).await.unwrap().is_finished);
    let counts = fixture.store.job(&ours(), job.id).await.unwrap().unwrap().counts();
    assert_eq!((counts.done, counts.delivered, counts.waiting), (2, 1, 1));
}

async fn a_job_that_is_paused_makes_no_step_and_goes_on_when_resumed(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let dead = dead_letters(&fixture, &endpoint, 1).await;
    let job = started(&fixture, JobKind::Replay, &endpoint).await;
    let part = open_part(&fixture).await;
    let lease = fixture.lease(endpoint.id);
    let change =
        async |change| fixture.store.change_job(&Initiator::Gateway, (&ours(), job.id), change, 5, at(105)).await;
    change(JobChange::Pause).await.unwrap();
    assert!(fixture.store.open_jobs().await.unwrap().jobs.is_empty());
    let refused = fixture.store.advance_job(lease, step(&job, &part, &dead), at(106)).await;
    assert!(matches!(refused, Err(Error::Changed)), "{refused:?}");
    change(JobChange::Resume).await.unwrap();
    fixture.store.advance_job(lease, step(&job, &part, &dead), at(107)).await.unwrap();
    change(JobChange::Cancel).await.unwrap();
    assert_eq!(fixture.state(dead[0]).await, DeliveryState::Waiting, "what was done stays done");
    assert!(matches!(change(JobChange::Resume).await, Err(Error::WrongState(_))));
    let unknown = JobId::mint(at(1), 1);
    let missing = fixture.store.change_job(&Initiator::Gateway, (&ours(), unknown), JobChange::Pause, 5, at(1)).await;
    assert!(matches!(missing, Err(Error::NotFound(MissingResource::Job))));
}

async fn jobs_beyond_those_that_may_run_are_queued(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let create = async |running_max| {
        let job = job(&fixture, JobKind::Replay, &[&endpoint]);
        fixture.store.create_job(&Initiator::Gateway, job.clone(), running_max).await.map(|_| job.id)
    };
    let state = async |id| fixture.store.job(&ours(), id).await.unwrap().unwrap().state;
    assert!(matches!(create(0).await, Err(Error::OverLimit(over)) if over.limit == "jobs_running"));
    let (first, second, third) = (create(1).await.unwrap(), create(1).await.unwrap(), create(1).await.unwrap());
    assert_eq!([state(first).await, state(second).await], [JobState::Running, JobState::Queued]);
    let open = fixture.store.open_jobs().await.unwrap();
    assert_eq!((open.jobs.len(), open.queued), (1, vec![ours()]));
    fixture.store.start_queued_jobs(&ours(), 1).await.unwrap();
    assert_eq!(state(second).await, JobState::Queued);
    let change = async |id, change| {
        fixture.store.change_job(&Initiator::Gateway, (&ours(), id), change, 1, at(105)).await.unwrap();
        state(id).await
    };
    // One that is paused makes room, and waits for it when it is resumed.
    assert_eq!(change(first, JobChange::Pause).await, JobState::Paused);
    fixture.store.start_queued_jobs(&ours(), 1).await.unwrap();
    assert_eq!([state(second).await, state(third).await], [JobState::Running, JobState::Queued]);
    assert_eq!(change(first, JobChange::Resume).await, JobState::Queued);
    assert_eq!(change(second, JobChange::Cancel).await, JobState::Cancelled);
    assert_eq!(change(third, JobChange::Resume).await, JobState::Running);
    assert_eq!(fixture.store.tenant_of_job(third).await.unwrap(), Some(ours()));
}

async fn what_is_held_back_is_found_by_its_lane_and_keeps_a_job_open(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({"on_dead": "skip"})).await;
    let mut dead = Vec::new();
    for (id, key) in [("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a")] {
        let claim = fixture.claim(event(id).key(key).to(&endpoint)).await;
        fixture.die(&claim, DeadCause::Refused, at(20)).await;
        dead.push(claim.id);
    }
    let mut job = job(&fixture, JobKind::Replay, &[&endpoint]);
    job.spec.even_overtaken = true;
    fixture.store.create_job(&Initiator::Gateway, job.clone(), 5).await.unwrap();
    let lease = fixture.lease(endpoint.id);
    let part = open_part(&fixture).await;
    let hold = vec![(dead[2], "a".to_owned()), (dead[3], "a".to_owned())];
    let first = JobStep { hold, after: Some(dead[3]), is_read: true, ..step(&job, &part, &dead[..2]) };
    fixture.store.advance_job(lease, first, at(101)).await.unwrap();
    let followed = async || fixture.store.job_followed(job.id, endpoint.id).await.unwrap();
    let mut waiting = followed().await.waiting;
    waiting.sort_by_key(|one| one.id);
    assert_eq!(waiting.iter().map(|one| one.next).collect::<Vec<_>>(), [Some(dead[2]), None]);
    let claims = fixture.due(&endpoint, at(101)).await.claims;
    for claim in &claims {
        fixture.deliver(claim, at(102)).await;
    }
    // The last of its lane is refused, because a person was faster.
    let ended = |ids: &[DeliveryId]| ids.iter().map(|id| (*id, Some(DeliveryState::Delivered))).collect();
    fixture.change(dead[2], DeliveryChange::Discard, at(103)).await.unwrap();
    let part = open_part(&fixture).await;
    assert_eq!((part.counts.held, part.counts.waiting), (2, 2));
    let second =
        JobStep { unhold: vec![(dead[2], "a".to_owned())], ended: ended(&dead[..2]), ..step(&job, &part, &dead[2..3]) };
    let second = JobStep { after: part.after, ..second };
    assert!(!fixture.store.advance_job(lease, second, at(104)).await.unwrap().is_finished);
    // Nothing is under way, and yet what is held back is found.
    let rest = followed().await;
    assert!(rest.waiting.is_empty());
    assert_eq!(rest.held, [(dead[3], "a".to_owned())]);
    let part = open_part(&fixture).await;
    assert_eq!((part.counts.held, part.counts.done), (1, 2));
    let third = JobStep { unhold: vec![(dead[3], "a".to_owned())], ..step(&job, &part, &dead[3..]) };
    fixture.store.advance_job(lease, third, at(105)).await.unwrap();
    let part = open_part(&fixture).await;
    assert_eq!((part.counts.held, part.counts.waiting, part.counts.done), (0, 1, 3));
}

/// A job may hold back a million, of which each step looks for a few.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_held_back_is_deleted_by_its_lane_however_much_else_there_is() {
    let fixture = StoreFixture::postgres().await;
    let (database, job) = (fixture.database(), "'00000000-0000-0000-0000-000000000001'::uuid");
    let fill = format!(
        "INSERT INTO posthaste.job_held (job, endpoint, lane, delivery)
         SELECT {job}, {job}, 'lane' || n % 50, gen_random_uuid() FROM generate_series(1, 5000) n"
    );
    database.execute(&fill).await;
    let statement = include_str!("../../src/store/postgres/sql/unhold.sql");
    let given = [("$1", job), ("$2", job), ("$3", "ARRAY[gen_random_uuid()]"), ("$4", "ARRAY['lane7']")];
    let statement = given.iter().fold(statement.to_owned(), |sql, (name, value)| sql.replace(name, value));
    let plan = database.rows(&format!("EXPLAIN {statement}")).await;
    let lines: Vec<&str> = plan.iter().filter_map(|row| row[0].as_deref()).collect();
    let sought = lines.iter().any(|line| line.contains("Index Cond") && line.contains("lane = "));
    assert!(sought, "all that a part holds back is read: {lines:#?}");
}

async fn a_job_of_a_newer_version_keeps_no_other_from_going_on(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let newer = started(&fixture, JobKind::Replay, &endpoint).await;
    let known = started(&fixture, JobKind::Discard, &endpoint).await;
    fixture.execute("UPDATE jobs SET spec = replace(spec, 'replay', 'mirror')").await;
    let open = fixture.store.open_jobs().await.unwrap();
    assert_eq!(open.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [known.id]);
    assert_eq!(open.unreadable.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [newer.id]);
}

async fn a_job_that_cannot_go_on_has_failed_and_says_why(fixture: StoreFixture) {
    fixture.put_tenant("_system").await;
    let endpoint = fixture.endpoint(json!({})).await;
    let job = started(&fixture, JobKind::Replay, &endpoint).await;
    let ended = fixture.store.fail_job(job.id, "a row is newer".into(), at(105)).await.unwrap();
    assert_eq!(names(&ended.operational_events), ["job.finished"]);
    assert_eq!(told_end(&fixture).await, (json!("failed"), json!("a row is newer")));
    let again = fixture.store.fail_job(job.id, "another".into(), at(106)).await.unwrap();
    assert!(again.operational_events.is_empty());
    let job = fixture.store.job(&ours(), job.id).await.unwrap().unwrap();
    assert_eq!(
        (job.state, job.finished_at, job.error.as_deref()),
        (JobState::Failed, Some(at(105)), Some("a row is newer"))
    );
}

async fn candidates_are_found_by_their_ids_and_tell_whose_data_is_gone(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let dead = dead_letters(&fixture, &endpoint, 3).await;
    fixture.store.expunge(&Initiator::Gateway, &ours(), &"e1".parse().unwrap()).await.unwrap();
    let unknown = DeliveryId::mint(at(1), 77);
    let asked = vec![dead[2], unknown, dead[1]];
    let found = fixture.store.job_candidates_by_id(&ours(), asked.clone()).await.unwrap();
    let found: Vec<_> = found.iter().map(|one| (one.delivery.id, one.is_expunged)).collect();
    assert_eq!(found, [(dead[1], true), (dead[2], false)]);
    let other = fixture.put_tenant("other").await;
    assert!(fixture.store.job_candidates_by_id(&other, asked).await.unwrap().is_empty());
    let page = fixture
        .store
        .job_candidates(endpoint.id, DeliveryState::Dead, CandidateWalk::OldestFirst(None), 10)
        .await
        .unwrap();
    assert_eq!(page.candidates.iter().map(|one| one.is_expunged).collect::<Vec<_>>(), [false, true, false]);
}

async fn candidates_by_id_are_in_the_order_of_their_numbers_whatever_their_times(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let mut ids = Vec::new();
    for (n, accepted_at) in [30, 10, 20].into_iter().enumerate() {
        ids.push(fixture.claim(event(&format!("e{n}")).at(at(accepted_at)).to(&endpoint)).await.id);
    }
    let found = fixture.store.job_candidates_by_id(&ours(), ids).await.unwrap();
    let found: Vec<DeliveryId> = found.iter().map(|one| one.delivery.id).collect();
    assert!(found.len() == 3 && found.is_sorted_by_key(|id| delivery_no(*id)), "{found:?}");
    let walk = CandidateWalk::OldestFirst(None);
    let page = fixture.store.job_candidates(endpoint.id, DeliveryState::Waiting, walk, 10).await.unwrap();
    assert_eq!(page.candidates.iter().map(|one| one.delivery.id).collect::<Vec<_>>(), found);
}

async fn a_passed_delivery_is_taken_only_if_that_was_asked_for(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({"on_dead": "skip"})).await;
    let older = fixture.claim(event("older").key("k").to(&endpoint)).await;
    fixture.die(&older, DeadCause::Refused, at(20)).await;
    let newer = fixture.claim(event("newer").key("k").to(&endpoint)).await;
    fixture.deliver(&newer, at(30)).await;
    let job = started(&fixture, JobKind::Replay, &endpoint).await;
    let (lease, part) = (fixture.lease(endpoint.id), open_part(&fixture).await);
    fixture.store.advance_job(lease, step(&job, &part, &[older.id]), at(101)).await.unwrap();
    assert_eq!(fixture.state(older.id).await, DeliveryState::Dead);
    let part = open_part(&fixture).await;
    let condition = ChangeCondition { state: Some(DeliveryState::Dead), is_unpassed: false };
    let asked_for = JobStep { condition, ..step(&job, &part, &[older.id]) };
    fixture.store.advance_job(lease, asked_for, at(102)).await.unwrap();
    assert_eq!(fixture.state(older.id).await, DeliveryState::Waiting);
}

async fn a_job_survives_that_the_store_is_closed(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let dead = dead_letters(&fixture, &endpoint, 2).await;
    let job = started(&fixture, JobKind::Replay, &endpoint).await;
    let part = open_part(&fixture).await;
    fixture.store.advance_job(fixture.lease(endpoint.id), step(&job, &part, &dead[..1]), at(101)).await.unwrap();
    let fixture = fixture.reopened().await;
    let part = open_part(&fixture).await;
    assert_eq!((part.after, part.counts.waiting), (Some(dead[0]), 1));
    let waiting = fixture.store.job_followed(job.id, endpoint.id).await.unwrap().waiting;
    assert_eq!(waiting.iter().map(|one| one.id).collect::<Vec<_>>(), dead[..1]);
    fixture.store.advance_job(fixture.lease(endpoint.id), step(&job, &part, &dead[1..]), at(102)).await.unwrap();
    assert_eq!(open_part(&fixture).await.counts.done, 2);
}

async fn jobs_are_listed_newest_first_and_old_ones_are_forgotten(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(started(&fixture, JobKind::Replay, &endpoint).await.id);
    }
    ids.sort();
    ids.reverse();
    let page = async |cursor| fixture.store.jobs(None, PageRequest { cursor, limit: 2 }).await.unwrap();
    let first = page(None).await;
    assert_eq!(first.data.iter().map(|job| job.id).collect::<Vec<_>>(), ids[..2]);
    assert_eq!(first.data[0].parts.len(), 1);
    let second = page(first.next).await;
    assert_eq!((second.data[0].id, second.next), (ids[2], None));
    fixture.store.change_job(&Initiator::Gateway, (&ours(), ids[0]), JobChange::Cancel, 5, at(110)).await.unwrap();
    fixture.store.forget_jobs(at(111)).await.unwrap();
    let left = fixture.store.jobs(Some(&ours()), PageRequest { cursor: None, limit: 10 }).await.unwrap();
    assert_eq!(left.data.iter().map(|job| job.id).collect::<Vec<_>>(), ids[1..]);
}

async fn a_job_without_endpoints_is_finished_at_once(fixture: StoreFixture) {
    fixture.put_tenant("_system").await;
    let job = job(&fixture, JobKind::Replay, &[]);
    let begun = fixture.store.create_job(&Initiator::Gateway, job.clone(), 1).await.unwrap();
    assert_eq!(names(&begun.operational_events), ["job.finished"]);
    assert_eq!(told_end(&fixture).await, (json!("finished"), json!(null)));
    let job = fixture.store.job(&ours(), job.id).await.unwrap().unwrap();
    assert_eq!((job.state, job.counts().matched), (JobState::Finished, 0));
}

async fn jobs_that_are_not_over_are_counted_by_state(fixture: StoreFixture) {
    let endpoint = fixture.endpoint(json!({})).await;
    let open = async || {
        let open = fixture.store.open_job_counts().await.unwrap();
        (open.running, open.paused, open.queued)
    };
    assert_eq!(open().await, (0, 0, 0));
    let first = started(&fixture, JobKind::Replay, &endpoint).await;
    let second = started(&fixture, JobKind::Replay, &endpoint).await;
    assert_eq!(open().await, (2, 0, 0));
    let change = async |job: &Job, change| {
        fixture.store.change_job(&Initiator::Gateway, (&ours(), job.id), change, 2, at(101)).await.unwrap();
    };
    change(&first, JobChange::Pause).await;
    assert_eq!(open().await, (1, 1, 0));
    change(&first, JobChange::Cancel).await;
    change(&second, JobChange::Cancel).await;
    assert_eq!(open().await, (0, 0, 0));
    let one_at_a_time = [job(&fixture, JobKind::Replay, &[&endpoint]), job(&fixture, JobKind::Replay, &[&endpoint])];
    for job in one_at_a_time {
        fixture.store.create_job(&Initiator::Gateway, job, 1).await.unwrap();
    }
    assert_eq!(open().await, (1, 0, 1), "what waits for another job is counted, too");
}
