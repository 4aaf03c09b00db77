//! Timing recorded launches: replays between two events on the stream, without the host's part.

use std::ops::RangeInclusive;
use std::time::Duration;

use causeway::Result;
use causeway::backend::gpu::{Event, Graph, Stream};
use causeway_verify::evidence::Summary;

use super::samples::{Part, Rounds};

/// Replays before times count.
const WARM_UP: usize = 2;
/// Rounds: the least are measured even if they take longer than the budget, and more than the most would not tell more.
const ROUNDS: RangeInclusive<usize> = 7..=500;
/// Replays that a choice between graphs is made from.
const TRIALS: usize = 3;

/// Two graphs that are timed in turns.
pub(super) struct Replays<'a> {
    pub stream: &'a Stream,
    pub call: &'a Graph,
    pub floor: &'a Graph,
    /// Calls that each graph holds.
    pub calls: usize,
}

impl Replays<'_> {
    /// Seconds of a call.
    ///
    /// # Safety
    /// What the graphs use must live until this returns; no replay outlasts it.
    pub unsafe fn measure(&self, budget: Duration) -> Result<Rounds> {
        // SAFETY: the caller's.
        let replay = |graph| Ok(unsafe { seconds(self.stream, graph) }? / self.calls as f64);
        for _ in 0..WARM_UP {
            replay(self.call)?;
            replay(self.floor)?;
        }
        Rounds::measure(budget, ROUNDS, |part| match part {
            Part::Call => replay(self.call),
            Part::Floor => replay(self.floor),
        })
    }
}

/// Seconds of a replay, the middle of a few.
///
/// # Safety
/// As [`Replays::measure`].
pub(super) unsafe fn median(stream: &Stream, graph: &Graph) -> Result<f64> {
    // SAFETY: the caller's.
    let times = (0..WARM_UP + TRIALS).map(|_| unsafe { seconds(stream, graph) });
    Ok(Summary::of(&times.collect::<Result<Vec<_>>>()?[WARM_UP..]).median)
}

/// Seconds of one replay.
///
/// # Safety
/// What the graph uses must live until this returns; the replay is over then.
unsafe fn seconds(stream: &Stream, graph: &Graph) -> Result<f64> {
    let device = stream.device();
    let (start, end) = (Event::new(device)?, Event::new(device)?);
    start.record(stream)?;
    // SAFETY: the caller's, and the second event is waited for.
    unsafe { graph.launch(stream) }?;
    end.record(stream)?;
    end.synchronize()?;
    Ok(f64::from(end.milliseconds_since(&start)?) * 1e-3)
}
