//! Whose turn it is: requests of several clients reach the device one at a time, in the order in which they came.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Hands out turns in order, and knows when nobody has one.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The next number to be drawn.
    drawn: u64,
    /// The number whose turn it is.
    called: u64,
    /// Requests that were read and not yet answered.
    in_hand: usize,
    stopping: bool,
}

impl Turns {
    /// Takes a request in hand, until the guard is dropped; `None` once the server is stopping.
    pub fn take_in_hand(&self) -> Option<InHand<'_>> {
        let mut state = self.lock();
        if state.stopping {
            return None;
        }
        state.in_hand += 1;
        Some(InHand(self))
    }

    /// Waits for a turn on the device, which lasts until the guard is dropped.
    pub fn wait(&self) -> Turn<'_> {
        let mut state = self.lock();
        let number = state.drawn;
        state.drawn += 1;
        while state.called != number {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }

    /// Lets no further request in, and waits at most `patience` for those in hand. True if none is left.
    pub fn stop(&self, patience: std::time::Duration) -> bool {
        let mut state = self.lock();
        state.stopping = true;
        let waited = self.changed.wait_timeout_while(state, patience, |state| state.in_hand > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.in_hand == 0
    }

    // Nothing that holds the lock can panic half-way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request between its last byte and the last byte of its reply.
pub(super) struct InHand<'a>(&'a Turns);

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        self.0.lock().in_hand -= 1;
        self.0.changed.notify_all();
    }
}

/// The device, for one request.
pub(super) struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().called += 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    #[test]
    fn turns_come_in_order() {
        let (turns, order) = (Turns::default(), Mutex::new(Vec::new()));
        let first = turns.wait();
        std::thread::scope(|scope| {
            for number in 0..4u64 {
                let (turns, order) = (&turns, &order);
                scope.spawn(move || {
                    let _turn = turns.wait();
                    order.lock().unwrap().push(number);
                });
                // The next thread draws only when this one has.
                while turns.lock().drawn < number + 2 {
                    std::thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn stopping_waits_for_what_is_in_hand_and_lets_nothing_in() {
        let turns = Turns::default();
        let in_hand = turns.take_in_hand().unwrap();
        assert!(!turns.stop(Duration::from_millis(5)));
        assert!(turns.take_in_hand().is_none());
        drop(in_hand);
        assert!(turns.stop(Duration::from_millis(5)));
    }
}
