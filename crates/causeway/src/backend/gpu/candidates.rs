//! The best of a planner's candidates by a model of the time that each takes, and the last choices of a thread, since a program makes the
//! same few calls over and over.

use std::cell::Cell;
use std::hash::{BuildHasher, Hash};
use std::sync::OnceLock;

use rustc_hash::FxBuildHasher;

/// Names the variable that [`least`] reads.
const RANK: &str = "CAUSEWAY_PLAN_RANK";

/// The candidate that takes least time by the model. With `CAUSEWAY_PLAN_RANK=n`, the n-th after it, or the last if there are fewer: so a
/// script can time what a planner would not take, and fit its model (tests/tune_conv1d.py).
#[inline]
pub(super) fn least<T>(timed: impl Iterator<Item = (u64, T)>) -> Option<T> {
    static PLACE: OnceLock<usize> = OnceLock::new();
    ranked(timed, *PLACE.get_or_init(place))
}

/// What the environment says.
#[cold]
fn place() -> usize {
    let Some(named) = std::env::var_os(RANK).filter(|value| !value.is_empty()) else { return 0 };
    named.to_str().and_then(|rank| rank.parse().ok()).unwrap_or_else(|| {
        tracing::warn!("{RANK} is {named:?}: expected a number, 0 or more; taken as 0");
        0
    })
}

fn ranked<T>(timed: impl Iterator<Item = (u64, T)>, place: usize) -> Option<T> {
    if place == 0 {
        return timed.min_by_key(|(time, _)| *time).map(|(_, candidate)| candidate);
    }
    let mut all: Vec<_> = timed.collect();
    // Taken out one by one: few are asked for, and a sort would be compiled for each kind of candidate.
    for _ in 0..place.min(all.len().checked_sub(1)?) {
        take_least(&mut all);
    }
    take_least(&mut all)
}

/// Takes the first of those that take least time.
fn take_least<T>(all: &mut Vec<(u64, T)>) -> Option<T> {
    let (place, _) = all.iter().enumerate().min_by_key(|(_, (time, _))| *time)?;
    Some(all.remove(place).1)
}

/// Answers that a thread keeps.
const KEPT: usize = 64;

/// The answers to the last questions of a thread, each in the place that its question's hash names.
pub(super) struct Kept<Question, Answer>([Cell<Option<(Question, Answer)>>; KEPT]);

impl<Question: Copy + Eq + Hash, Answer: Copy> Kept<Question, Answer> {
    pub(super) const fn new() -> Self {
        Kept([const { Cell::new(None) }; KEPT])
    }

    /// The answer to a question, which `answer` gives where it is not kept.
    pub(super) fn get(&self, question: Question, answer: impl FnOnce() -> Answer) -> Answer {
        let place = &self.0[FxBuildHasher.hash_one(question) as usize % KEPT];
        match place.get() {
            Some((known, answer)) if known == question => answer,
            _ => {
                let answer = answer();
                place.set(Some((question, answer)));
                answer
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_are_ranked_by_their_times() {
        let timed = || [(30, 'c'), (10, 'a'), (20, 'b'), (10, 'A')].into_iter();
        let found: Vec<_> = (0..6).map(|place| ranked(timed(), place)).collect();
        assert_eq!(found, [Some('a'), Some('A'), Some('b'), Some('c'), Some('c'), Some('c')]);
        assert_eq!(ranked(std::iter::empty::<(u64, char)>(), 0), None);
        assert_eq!(ranked(std::iter::empty::<(u64, char)>(), 1), None);
    }

    #[test]
    fn an_answer_is_asked_for_once() {
        let kept = Kept::new();
        assert_eq!(kept.get(7u32, || 1), 1);
        assert_eq!(kept.get(7, || 2), 1);
        // More questions than places.
        assert!((0..1000).all(|question: u32| kept.get(question + 8, || question) == question));
    }
}
