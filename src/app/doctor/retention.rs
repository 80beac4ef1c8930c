//! Examines whether what is kept for the retention fits on the disk.

use std::time::Duration;

use crate::config::Settings;
use crate::model::finding::DoctorFinding;
use crate::model::size::RoundedSize;
use crate::store::embedded::inspect::{StoreInspection, StoredOfTenant};

/// Judges whether what is kept fits on the disk, from what the store has grown to since
/// its oldest event was accepted.
pub fn examine(settings: &Settings, seen: &StoreInspection, kept_for: Duration) -> Option<DoctorFinding> {
    let disk = rustix::fs::statvfs(&settings.data.0).ok()?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize).saturating_sub(settings.disk_reserve.0);
    let usual = KeptFor { finished: settings.retention.0, dead: settings.dead_letter_retention.0 };
    Some(judge(seen.bytes, kept_for, &Expected::of(&seen.stored, usual, kept_for), free))
}

/// How long records are kept.
#[derive(Debug, Clone, Copy)]
struct KeptFor {
    finished: Duration,
    dead: Duration,
}

/// What a store grows to.
struct Expected {
    /// How many times as large it will be.
    growth: f64,
    /// Longest time that anything in it is kept.
    longest: Duration,
}

impl Expected {
    /// Assumes that every tenant goes on to hand in as much, and that as many of its
    /// deliveries die, as in the time that the store holds.
    fn of(stored: &[StoredOfTenant], usual: KeptFor, kept_for: Duration) -> Self {
        let (mut now, mut later, mut longest) = (0.0, 0.0, usual.finished);
        for tenant in stored {
            let own = KeptFor {
                finished: tenant.retention.finished.map_or(usual.finished, |span| span.0),
                dead: tenant.retention.dead.map_or(usual.dead, |span| span.0),
            };
            let dead = (tenant.dead_letters as f64 / tenant.deliveries.max(1) as f64).min(1.0);
            let time =
                |finished: Duration, kept: Duration| (1.0 - dead) * finished.as_secs_f64() + dead * kept.as_secs_f64();
            let so_far = time(own.finished.min(kept_for), own.dead.min(kept_for));
            now += tenant.bytes as f64;
            later += tenant.bytes as f64 * time(own.finished, own.dead) / so_far.max(1.0);
            longest = longest.max(own.finished);
            if tenant.dead_letters > 0 {
                longest = longest.max(own.dead);
            }
        }
        Self { growth: if now > 0.0 { later / now } else { 1.0 }, longest }
    }
}

fn judge(bytes: u64, kept_for: Duration, expected: &Expected, free: u64) -> DoctorFinding {
    let days = kept_for.as_secs_f64() / 86_400.0;
    let longest = expected.longest.as_secs_f64() / 86_400.0;
    // A store of less than a day says little about a month.
    if days < 1.0 || days >= longest {
        let detail = format!("the store has {}, and events are kept for up to {longest:.0} days", RoundedSize(bytes));
        return DoctorFinding::ok("retention", detail);
    }
    let later = (bytes as f64 * expected.growth) as u64;
    let detail = format!(
        "{days:.1} days take {}, so what is kept for up to {longest:.0} days will take about {}",
        RoundedSize(bytes),
        RoundedSize(later)
    );
    if later > bytes.saturating_add(free) {
        let way_out = "lower --retention, --dead-letter-retention or those of tenants, or give the data directory a \
                       larger disk";
        DoctorFinding::warning("retention", format!("{detail}, and {} are free", RoundedSize(free)), way_out)
    } else {
        DoctorFinding::ok("retention", detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::finding::FindingState::{Ok, Warning};
    use crate::model::span::Span;
    use crate::model::tenant::TenantRetention;

    const GIB: u64 = 1 << 30;
    const DAY: Duration = Duration::from_secs(86_400);
    const USUAL: KeptFor =
        KeptFor { finished: Duration::from_secs(30 * 86_400), dead: Duration::from_secs(90 * 86_400) };

    fn stored(deliveries: u64, dead_letters: u64, retention: TenantRetention) -> StoredOfTenant {
        StoredOfTenant { bytes: GIB, deliveries, dead_letters, retention }
    }

    fn judged(stored: &[StoredOfTenant], kept_for: Duration, free: u64) -> DoctorFinding {
        judge(10 * GIB, kept_for, &Expected::of(stored, USUAL, kept_for), free)
    }

    #[test]
    fn a_disk_that_fills_before_the_retention_is_over_is_warned_of() {
        let usual = [stored(100, 0, TenantRetention::default())];
        assert_eq!(judged(&usual, 2 * DAY, 100 * GIB).state, Warning);
        assert_eq!(judged(&usual, 2 * DAY, 200 * GIB).state, Ok);
        assert_eq!(judged(&usual, DAY / 2, GIB).state, Ok, "too early to tell");
        assert_eq!(judged(&usual, 31 * DAY, GIB).state, Ok, "it grows no more");
        assert_eq!(judged(&[], 2 * DAY, GIB).state, Ok, "there is nothing in it");
    }

    #[test]
    fn what_a_tenant_keeps_for_longer_or_shorter_counts_as_much_as_it_has() {
        let year = TenantRetention { finished: Some(Span::secs(365 * 86_400)), dead: None };
        let two_days = TenantRetention { finished: Some(Span::secs(2 * 86_400)), dead: None };
        let (usual, year) = (stored(100, 0, TenantRetention::default()), stored(100, 0, year));
        // 5 GiB in two days: 75 at the end of the month, and 912 at the end of the year.
        let found = judged(&[usual.clone(), year.clone()], 2 * DAY, 900 * GIB);
        assert_eq!(found.state, Warning);
        assert!(found.detail.contains("up to 365 days"), "{found:?}");
        assert_eq!(judged(&[usual.clone(), year], 2 * DAY, 980 * GIB).state, Ok);
        assert_eq!(judged(&[usual, stored(100, 0, two_days)], 2 * DAY, 71 * GIB).state, Ok, "75 and 5");
    }

    #[test]
    fn dead_letters_that_stay_longer_than_the_rest_are_counted_with_it() {
        let half_dead = [stored(100, 50, TenantRetention::default())];
        // Half for 30 days and half for 90, after two: 30 times as much.
        assert_eq!(judged(&half_dead, 2 * DAY, 280 * GIB).state, Warning);
        assert_eq!(judged(&half_dead, 2 * DAY, 295 * GIB).state, Ok);
        // After 60 days only the dead letters still grow: from 90 parts to 120.
        assert_eq!(judged(&half_dead, 60 * DAY, 3 * GIB).state, Warning);
        assert_eq!(judged(&half_dead, 60 * DAY, 4 * GIB).state, Ok);
    }
}
