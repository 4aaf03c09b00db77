//! Thousands of mixed requests from several clients whose servers are killed at random.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use causeway::gemm::Algorithm;
use causeway::named::{Call, Operation};
use causeway::{DType, HostTensor};
use causeway_server::{KernelServer, Launch, ServerError};

use crate::client::{forward, kill, launch};
#[cfg(unix)]
use crate::listen::{Listening, spawn};
use crate::process::forward_result;
#[cfg(target_os = "linux")]
use crate::process::resident_bytes;
#[cfg(unix)]
use crate::process::{forward_request, parse, request as named_request};
#[cfg(unix)]
use causeway_server::{Interrupted, read_frame, write_frame};
#[cfg(unix)]
use std::os::unix::net::UnixStream;

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

/// True for a process of this one, be it a zombie.
#[cfg(target_os = "linux")]
fn is_child(process: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{process}/status")) else { return false };
    status.lines().any(|line| line.strip_prefix("PPid:\t") == Some(&std::process::id().to_string()))
}

/// A server that has this directory for its temporary files and its cache.
fn launch_in(directory: &Path) -> Launch {
    let mut launch = launch();
    let program = std::mem::replace(&mut launch.program, "env".into());
    let variable = |name: &str| format!("{name}={}", directory.display()).into();
    let before = [variable("TMPDIR"), variable("CAUSEWAY_CACHE_DIR"), program.into()];
    launch.arguments.splice(0..0, before);
    launch
}

#[test]
fn ten_thousand_requests_and_twenty_kills() {
    let (kills, done, lost) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let asked = std::env::var("CAUSEWAY_SOAK_REQUESTS").ok().filter(|text| !text.is_empty());
    let requests: usize =
        asked.map_or(10_000, |text| text.parse().expect("CAUSEWAY_SOAK_REQUESTS is a number"));
    let directory = tempfile::tempdir().unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (kills, done, lost, files) = (&kills, &done, &lost, directory.path());
            scope.spawn(move || {
                let mut random = Random(client as u64 + 1);
                let mut server = KernelServer::start(launch_in(files)).unwrap();
                let mut processes = BTreeSet::new();
                let requests = requests / CLIENTS;
                // One kill in each stretch, at a random request of it.
                let stretch = requests / (KILLS / CLIENTS);
                let moments: BTreeSet<_> = (0..KILLS / CLIENTS)
                    .map(|number| number * stretch + random.below(stretch as u64) as usize)
                    .collect();
                for number in 0..requests {
                    if moments.contains(&number) {
                        // The request before may have been lost by the kill before.
                        while server.process_id().is_none() {
                            request(&mut server, &mut random);
                        }
                        kill(&server);
                        kills.fetch_add(1, Ordering::Relaxed);
                    }
                    processes.extend(server.process_id());
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
                    processes.extend(server.process_id());
                    drop(server);
                    // A zombie still has its place there.
                    let left: Vec<_> = processes.into_iter().filter(|&id| is_child(id)).collect();
                    assert!(left.is_empty(), "processes {left:?} are left");
                }
            });
        }
    });
    let left: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "{left:?} were left behind");
    let (kills, lost) = (kills.into_inner(), lost.into_inner());
    println!("{} requests, {kills} kills, {lost} lost, {:?}", done.into_inner(), start.elapsed());
    assert_eq!(kills, KILLS);
    assert!(lost <= kills, "{lost} requests were lost by {kills} kills");
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
}

/// One request on a connection; an error if the server went before its reply was there.
#[cfg(unix)]
fn request_on(stream: &mut UnixStream, random: &mut Random) -> Result<(), Interrupted> {
    let value = random.below(8) as f64;
    let mistake = random.below(4) == 0;
    let payload = match mistake {
        true => named_request(&[("operation", "gemm-forward")], &[]),
        false => forward_request(value, "soak"),
    };
    write_frame(stream, &payload)?;
    let reply = read_frame(stream)?.ok_or(Interrupted::Count { found: 0 })?;
    let (tensors, facts) = parse(&reply);
    match mistake {
        true => assert_eq!(facts["error"], "missing-tensor"),
        false => assert_eq!(tensors["y"].to_f64(), forward_result(value)),
    }
    Ok(())
}

/// Four clients of one server, which is killed and started again.
#[cfg(unix)]
#[test]
fn ten_thousand_requests_on_one_socket() {
    const REQUESTS: usize = 10_000;
    let (done, lost) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut server = Listening::start();
    let (path, start) = (server.path(), Instant::now());
    let connect = || loop {
        match UnixStream::connect(&path) {
            Ok(stream) => return stream,
            Err(error) if start.elapsed() > Duration::from_secs(110) => panic!("nobody listens: {error}"),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (done, lost, connect) = (&done, &lost, &connect);
            scope.spawn(move || {
                let mut random = Random(client as u64 + 11);
                let mut stream = connect();
                for _ in 0..REQUESTS / CLIENTS {
                    if request_on(&mut stream, &mut random).is_err() {
                        lost.fetch_add(1, Ordering::Relaxed);
                        stream = connect();
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut random = Random(99);
        for number in 0..KILLS {
            let due = REQUESTS * number / (KILLS + 1) + random.below((REQUESTS / KILLS / 2) as u64) as usize;
            while done.load(Ordering::Relaxed) < due && start.elapsed() < Duration::from_secs(110) {
                std::thread::sleep(Duration::from_micros(200));
            }
            assert_eq!(server.signal("-KILL"), None);
            server.child = spawn(&path);
            // One that is killed while it makes its socket leaves the place where it made it.
            drop(connect());
        }
    });
    let (done, lost) = (done.into_inner(), lost.into_inner());
    println!("{done} requests, {KILLS} kills, {lost} lost, {:?}", start.elapsed());
    // A dying server may still take connections, and lose the requests on them too.
    assert!(lost < REQUESTS / 10, "{lost} requests were lost by {KILLS} kills");
    drop(connect());
    assert_eq!(server.signal("-TERM"), Some(0));
    assert_eq!(std::fs::read_dir(server.directory.path()).unwrap().count(), 0, "the socket was left behind");
    assert!(start.elapsed() < Duration::from_secs(120), "{:?}", start.elapsed());
}
