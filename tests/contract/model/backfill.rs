//! What a backfill means: an endpoint gets past events of its tenant, each once, and
//! none behind a later one of its lane.

use jiff::Timestamp;
use posthaste::model::job::LeftOut;

use super::{BackfillMade, Effects, Model, Name, PastEventSeen};

impl Model {
    /// Numbers of the events that an endpoint may be given, oldest first.
    pub fn past_events(&self, endpoint: usize) -> Vec<u32> {
        let tenant = &self.endpoints[endpoint].tenant;
        self.events.iter().filter(|(_, event)| event.tenant == *tenant).map(|(number, _)| *number).collect()
    }

    /// Gives these events to an endpoint, one after the other.
    pub fn backfill(
        &mut self,
        endpoint: usize,
        chosen: &[u32],
        expires_at: Option<Timestamp>,
        now: Timestamp,
    ) -> BackfillMade {
        let seen = self.past_events(endpoint).into_iter().map(|event| {
            let name = Name { event, endpoint };
            let id = self.events[&event].id.clone();
            PastEventSeen { id, is_got: self.deliveries.contains_key(&name), is_overtaken: self.is_overtaken(name) }
        });
        let mut made = BackfillMade { seen: seen.collect(), ..BackfillMade::default() };
        for &event in chosen {
            let name = Name { event, endpoint };
            let refused = if self.deliveries.contains_key(&name) {
                Some(LeftOut::AlreadyGot)
            } else if self.events[&event].is_expunged {
                Some(LeftOut::Expunged)
            } else if self.is_overtaken(name) {
                Some(LeftOut::Overtaken)
            } else {
                None
            };
            match refused {
                Some(why) => *made.step.left_out.entry(why).or_default() += 1,
                None => {
                    self.add_delivery(name, self.events[&event].key, expires_at, now);
                    made.step.changed.push((name, Effects { due_at: Some(now), ..Effects::default() }));
                }
            }
        }
        made
    }

    /// Whether a later event, or this one, has joined the lane of the event.
    fn is_overtaken(&self, name: Name) -> bool {
        let lane = self.lane_of(name.endpoint, self.events[&name.event].key);
        let lane = lane.and_then(|lane| self.lanes.get(&(name.endpoint, lane)));
        lane.is_some_and(|lane| lane.last_event >= name.event)
    }
}
