//! Keeps engine time in step with the database's clock, so that all nodes have
//! the same time.
//!
//! Every poll reads the database's clock, and engine time follows it within
//! the uncertainty of the round trip. If the database's clock is set back,
//! waiting deliveries must not be delayed: engine time goes on, and its lead
//! over the database's clock is stored as a note, from which nodes that start
//! later begin. A clock that is set forward first uses up this lead, and is
//! followed beyond it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use deadpool_postgres::Object;
use tracing::{info, warn};

use super::PostgresState;
use super::transaction::{bind, with_timeout};
use crate::clock::{Clock, DatabaseReading, EngineClock, boot_ms};
use crate::store::Result;

const AHEAD_NOTE: &str = "engine_ahead_ms";
/// Difference in milliseconds from which a clock counts as set, not drifted.
const STEP_MS: i64 = 2_000;
/// Difference in milliseconds from which a node warns about its own wall clock.
const OFF_MS: i64 = 1_000;

/// A reading of the database's clock.
#[derive(Debug, Clone, Copy)]
pub struct TimedReading {
    /// This machine's time since boot, before the database was asked.
    pub asked_ms: i64,
    /// Time that the database's clock showed.
    pub database_ms: i64,
}

/// Result of observing a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObservedTime {
    /// Engine time follows the reading.
    Followed,
    /// The database's clock was set; nothing was done about it yet.
    Step,
}

/// Keeps engine time by the database's clock.
pub struct DatabaseTime {
    clock: Option<Arc<EngineClock>>,
    /// Lead of engine time over the database's clock, in milliseconds.
    ahead_ms: AtomicI64,
    is_off: AtomicBool,
}

impl DatabaseTime {
    /// Creates it for a clock that is to follow the database's, if there is one.
    pub fn new(clock: Option<Arc<EngineClock>>) -> Self {
        Self { clock, ahead_ms: AtomicI64::new(0), is_off: AtomicBool::new(false) }
    }

    /// Sets the clock to the database's time, before anything uses it.
    pub async fn begin(&self, client: &Object) -> Result<()> {
        let (reading, ahead_ms) = read(client).await?;
        self.ahead_ms.store(ahead_ms.unwrap_or(0), Ordering::Relaxed);
        if let Some(clock) = &self.clock {
            clock.start_from(self.engine(reading));
        }
        Ok(())
    }

    /// Follows a reading, unless it shows that the database's clock was set.
    pub fn observe(&self, reading: TimedReading) -> ObservedTime {
        let Some(clock) = &self.clock else { return ObservedTime::Followed };
        let reading = self.engine(reading);
        if clock.ahead_of_engine_time(reading).abs() > STEP_MS {
            return ObservedTime::Step;
        }
        clock.follow(reading);
        self.warn_if_off(clock.machine_ahead_ms());
        ObservedTime::Followed
    }

    /// Handles a step of the database's clock: agrees with the other nodes on
    /// the new lead of engine time.
    pub async fn agree_on_clock_step(&self, shared: &PostgresState) -> Result<()> {
        let Some(clock) = &self.clock else { return Ok(()) };
        let client = shared.connection().await?;
        let (reading, noted) = read(&client).await?;
        let noted_ms = noted.unwrap_or(0);
        self.ahead_ms.store(noted_ms, Ordering::Relaxed);
        let step_ms = clock.ahead_of_engine_time(self.engine(reading));
        // Another node may have handled the step already.
        if step_ms.abs() <= STEP_MS {
            clock.follow(self.engine(reading));
            return Ok(());
        }
        let ahead_ms = corrected_ahead(noted_ms, step_ms);
        let sql = "INSERT INTO posthaste.notes (name, value) VALUES ($1, $2)
                   ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE notes.value = $3";
        let (new, old) = (ahead_ms.to_string(), noted_ms.to_string());
        if with_timeout(client.execute_typed(sql, bind![AHEAD_NOTE, new, old])).await? == 0 {
            // Another node changed the note first; the next poll looks again.
            return Ok(());
        }
        self.ahead_ms.store(ahead_ms, Ordering::Relaxed);
        clock.count_jump();
        clock.follow(self.engine(reading));
        let seconds = step_ms as f64 / 1_000.0;
        warn!("the database's clock was set by {seconds:+.1} s; waiting deliveries keep their times");
        Ok(())
    }

    fn engine(&self, reading: TimedReading) -> DatabaseReading {
        let TimedReading { asked_ms, database_ms } = reading;
        let engine_ms = database_ms + self.ahead_ms.load(Ordering::Relaxed);
        DatabaseReading { asked_ms, engine_ms, wall_ms: database_ms }
    }

    fn warn_if_off(&self, ahead_ms: i64) {
        let is_off = ahead_ms.abs() > OFF_MS;
        if self.is_off.swap(is_off, Ordering::Relaxed) == is_off {
            return;
        }
        let seconds = ahead_ms as f64 / 1_000.0;
        if is_off {
            warn!(
                clock_off = seconds,
                "this node's clock is off by {seconds:+.1} s from the database's, which is the one that counts; set it by NTP"
            );
        } else {
            info!("this node's clock agrees with the database's again");
        }
    }
}

/// Returns the lead of engine time over the database's clock after that clock
/// was set by `step_ms`. A step back adds to the lead; a step forward uses it
/// up and is followed beyond it.
fn corrected_ahead(ahead_ms: i64, step_ms: i64) -> i64 {
    if step_ms < 0 { ahead_ms - step_ms } else { ahead_ms.min((ahead_ms - step_ms).max(0)) }
}

/// Reads the database's clock, and the lead of engine time if it was ever
/// stored. A store that was moved here brought its own offset along, in the
/// note of its clock.
async fn read(client: &Object) -> Result<(TimedReading, Option<i64>)> {
    let asked_ms = boot_ms();
    let sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
                      coalesce((SELECT value::bigint FROM posthaste.notes WHERE name = $1),
                               (SELECT -(value::json ->> 'wall_offset_ms')::bigint FROM posthaste.notes
                                WHERE name = 'clock'))";
    let rows = with_timeout(client.query_typed(sql, bind![AHEAD_NOTE])).await?;
    Ok((TimedReading { asked_ms, database_ms: rows[0].get(0) }, rows[0].get(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_set_back_is_made_up_for_and_one_set_forward_gives_it_back() {
        assert_eq!(corrected_ahead(0, -7_200_000), 7_200_000);
        assert_eq!(corrected_ahead(7_200_000, 7_200_000), 0, "set right again");
        assert_eq!(corrected_ahead(7_200_000, 3_600_000), 3_600_000);
        assert_eq!(corrected_ahead(0, 3_600_000), 0, "followed");
        assert_eq!(corrected_ahead(3_600_000, 7_200_000), 0, "followed beyond what was made up for");
    }
}
