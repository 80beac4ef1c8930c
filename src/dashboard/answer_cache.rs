//! Caches answers of the API that change slowly, such as the figures of a day: a page that
//! shows fifty endpoints needs a hundred of them, and is rendered every second.
//!
//! An answer that is no longer fresh is given once more while it is read anew, so that
//! nobody waits for it; one that is older is not.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// Time for which an answer is given again.
const FRESH: SignedDuration = SignedDuration::from_secs(5);
/// Time for which an answer is given again while it is read anew.
const USABLE: SignedDuration = SignedDuration::from_secs(20);
/// Most answers that are kept for one reader. A page with fifty endpoints needs a hundred.
const ANSWERS_OF_READER_MAX: usize = 500;
/// Most answers that are kept in all.
const ANSWERS_MAX: usize = 20_000;

/// An answer as the cache has it.
#[derive(Debug, PartialEq)]
pub enum CachedAnswer<T> {
    /// It is fresh enough.
    Fresh(T),
    /// It may still be given, and the caller that gets it reads it anew.
    Aging(T),
    /// There is none, or it is too old.
    Missing,
}

struct StoredAnswer {
    read_at: Timestamp,
    is_read_anew: bool,
    answer: Arc<dyn Any + Send + Sync>,
}

type AnswersOfReader = HashMap<String, StoredAnswer>;

/// The answers that were read within the last seconds, by who may see them and what was asked.
/// Each reader has room of its own, so that no reader takes the answers of another.
#[derive(Default)]
pub struct AnswerCache(Mutex<HashMap<String, AnswersOfReader>>);

impl AnswerCache {
    /// Looks for an answer that this reader may see.
    pub fn find<T: Send + Sync + 'static>(&self, reader: &str, key: &str, now: Timestamp) -> CachedAnswer<Arc<T>> {
        let mut readers = self.0.lock();
        let slot = readers.get_mut(reader).and_then(|answers| answers.get_mut(key));
        let Some(slot) = slot.filter(|slot| slot.is_usable(now)) else { return CachedAnswer::Missing };
        let Ok(answer) = slot.answer.clone().downcast::<T>() else { return CachedAnswer::Missing };
        if slot.age(now) <= FRESH || slot.is_read_anew {
            return CachedAnswer::Fresh(answer);
        }
        slot.is_read_anew = true;
        CachedAnswer::Aging(answer)
    }

    /// Keeps an answer for this reader.
    pub fn put<T: Send + Sync + 'static>(&self, reader: &str, key: String, answer: Arc<T>, now: Timestamp) {
        let mut readers = self.0.lock();
        if readers.values().map(HashMap::len).sum::<usize>() >= ANSWERS_MAX {
            make_room(&mut readers, now);
        }
        let answers = readers.entry(reader.to_owned()).or_default();
        if answers.len() >= ANSWERS_OF_READER_MAX && !answers.contains_key(&key) {
            answers.retain(|_, slot| slot.is_usable(now));
            let oldest = answers.iter().min_by_key(|(_, slot)| slot.read_at).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest.filter(|_| answers.len() >= ANSWERS_OF_READER_MAX) {
                answers.remove(&oldest);
            }
        }
        answers.insert(key, StoredAnswer { read_at: now, is_read_anew: false, answer });
    }
}

impl StoredAnswer {
    fn age(&self, now: Timestamp) -> SignedDuration {
        now.duration_since(self.read_at).abs()
    }

    fn is_usable(&self, now: Timestamp) -> bool {
        self.age(now) <= USABLE
    }
}

/// Drops what is too old; if that is not enough, what the reader has who read last the
/// longest ago.
fn make_room(readers: &mut HashMap<String, AnswersOfReader>, now: Timestamp) {
    for answers in readers.values_mut() {
        answers.retain(|_, slot| slot.is_usable(now));
    }
    readers.retain(|_, answers| !answers.is_empty());
    if readers.values().map(HashMap::len).sum::<usize>() < ANSWERS_MAX {
        return;
    }
    let last_read_at = |answers: &AnswersOfReader| answers.values().map(|slot| slot.read_at).max();
    let idlest = readers.iter().min_by_key(|(_, answers)| last_read_at(answers)).map(|(reader, _)| reader.clone());
    if let Some(idlest) = idlest {
        readers.remove(&idlest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_fresh_then_read_anew_by_one_and_then_gone() {
        let kept = AnswerCache::default();
        let at = |seconds| Timestamp::from_second(seconds).unwrap();
        let find = |seconds| match kept.find::<u32>("r", "a", at(seconds)) {
            CachedAnswer::Fresh(answer) => format!("fresh {answer}"),
            CachedAnswer::Aging(answer) => format!("aging {answer}"),
            CachedAnswer::Missing => "missing".to_owned(),
        };
        assert_eq!(find(0), "missing");
        kept.put("r", "a".into(), Arc::new(1_u32), at(0));
        assert_eq!([find(5), find(6), find(7)], ["fresh 1", "aging 1", "fresh 1"], "one reads it anew for all");
        assert_eq!(find(21), "missing", "nobody has read it anew");
        kept.put("r", "a".into(), Arc::new(2_u32), at(21));
        assert_eq!(find(22), "fresh 2");
        assert_eq!(kept.find::<String>("r", "a", at(22)), CachedAnswer::Missing, "it is of another kind");
    }

    #[test]
    fn a_reader_who_asks_for_much_takes_nothing_from_others() {
        let kept = AnswerCache::default();
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        let has = |reader: &str, key: &str| kept.find::<i64>(reader, key, at(4_000)) != CachedAnswer::Missing;
        // Fifty people in fifty tenants each look at fifty endpoints.
        for (tenant, key) in (0..50).flat_map(|tenant| (0..100).map(move |key| (tenant, key))) {
            kept.put(&format!("viewer {tenant}"), key.to_string(), Arc::new(0_i64), at(tenant));
        }
        for number in 0..3 * ANSWERS_OF_READER_MAX as i64 {
            kept.put("greedy", number.to_string(), Arc::new(number), at(1_000 + number));
            assert!(kept.0.lock()["greedy"].len() <= ANSWERS_OF_READER_MAX);
        }
        assert!((0..50).all(|tenant| (0..100).all(|key| has(&format!("viewer {tenant}"), &key.to_string()))));
        let newest = 3 * ANSWERS_OF_READER_MAX - 1;
        assert!(has("greedy", &newest.to_string()) && !has("greedy", "0"), "the oldest goes first");
    }

    #[test]
    fn no_more_than_some_are_kept_of_all_readers_together() {
        let kept = AnswerCache::default();
        let all = || kept.0.lock().values().map(HashMap::len).sum::<usize>();
        for number in 0..ANSWERS_MAX as i64 + 2 {
            let reader = format!("viewer {}", number / 400);
            kept.put(&reader, number.to_string(), Arc::new(number), Timestamp::from_millisecond(number).unwrap());
        }
        assert!(all() <= ANSWERS_MAX && all() > ANSWERS_MAX - 500, "{}", all());
        assert!(!kept.0.lock().contains_key("viewer 0"), "who read last the longest ago");
    }
}
