//! Thousands of mixed requests from several clients whose servers are killed at random.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use causeway::gemm::Algorithm;
use causeway::named::{Call, Operation};
use causeway::server::{KernelServer, ServerError};
use causeway::{DType, HostTensor};

use crate::client::{forward, kill, launch};
use crate::process::forward_result;

const CLIENTS: usize = 4;
const KILLS: usize = 20;

/// A small generator: the test needs variety, not quality.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }
}

/// `A` of ones by a `B` of `value`: every result is `16 · value`.
fn product(server: &mut KernelServer, value: f64) -> Result<Vec<f64>, ServerError> {
    let a = HostTensor::from_fn(DType::F16, &[3, 16], |_| 1.0).unwrap();
    let b = HostTensor::from_fn(DType::F16, &[16, 5], |_| value).unwrap();
    let call = Call { algorithm: Some(Algorithm::Exact), ..Call::new(Operation::GemmForward) };
    Ok(server.call(&call, &[("A", &a), ("B", &b)])?.tensors["C"].to_f64())
}

/// One of several kinds of requests; true if it was answered, false if it was lost.
fn request(server: &mut KernelServer, random: &mut Random) -> bool {
    let value = random.below(8) as f64;
    let (outcome, expected) = match random.below(4) {
        0 => (product(server, value), vec![16.0 * value; 15]),
        1 => {
            let error = server.call(&Call::new(Operation::GemmGradA), &[]).unwrap_err();
            return match error {
                ServerError::Refused { code, .. } => {
                    assert_eq!(code, "missing-tensor");
                    true
                }
                ServerError::Lost { .. } => false,
                error => panic!("{error}"),
            };
        }
        _ => (forward(server, value), forward_result(value).to_vec()),
    };
    match outcome {
        Ok(result) => {
            assert_eq!(result, expected);
            true
        }
        Err(ServerError::Lost { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[cfg(target_os = "linux")]
fn resident_bytes(process: u32) -> Option<u64> {
    let pages = std::fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    pages.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}

#[test]
fn ten_thousand_requests_and_twenty_kills() {
    let (kills, done, lost) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let requests: usize =
        std::env::var("CAUSEWAY_SOAK_REQUESTS").map_or(10_000, |text| text.parse().unwrap());
    let start = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (kills, done, lost) = (&kills, &done, &lost);
            scope.spawn(move || {
                let mut random = Random(client as u64 + 1);
                let mut server = KernelServer::start(launch()).unwrap();
                let share = requests / CLIENTS;
                for number in 0..share {
                    // Evenly spread, each at a random moment of its stretch.
                    let due = (KILLS / CLIENTS) * number / share + 1;
                    let mine = (server.metrics().restarts as usize) < due;
                    if mine && random.below((share * CLIENTS / KILLS / 2).max(1) as u64) == 0 {
                        kill(&server);
                        kills.fetch_add(1, Ordering::Relaxed);
                    }
                    if !request(&mut server, &mut random) {
                        lost.fetch_add(1, Ordering::Relaxed);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
                #[cfg(target_os = "linux")]
                {
                    let before = server.process_id().and_then(resident_bytes);
                    (0..500).for_each(|_| assert!(request(&mut server, &mut random)));
                    let after = server.process_id().and_then(resident_bytes);
                    let growth = after.zip(before).map(|(after, before)| after.saturating_sub(before));
                    assert!(growth.is_some_and(|bytes| bytes < 4 << 20), "{growth:?} bytes in 500 requests");
                }
            });
        }
    });
    let (kills, lost) = (kills.into_inner(), lost.into_inner());
    println!("{} requests, {kills} kills, {lost} lost, {:?}", done.into_inner(), start.elapsed());
    assert!(kills >= KILLS / 2, "only {kills} kills");
    assert!(lost <= kills, "{lost} requests were lost by {kills} kills");
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
}
