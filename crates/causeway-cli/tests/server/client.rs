//! `KernelServer`: a client that starts its server, and starts it again.

use std::time::{Duration, Instant};

use causeway::HostTensor;
use causeway::named::{Call, Operation};
use causeway_server::{KernelServer, Launch, ServerError, write_frame};

use crate::process::{Server, forward_inputs, forward_result, request};

pub fn launch() -> Launch {
    let mut launch = Launch::new(env!("CARGO_BIN_EXE_causeway"));
    launch.arguments.extend(["--device", "cpu", "--threads", "2"].map(Into::into));
    launch
}

pub fn forward(server: &mut KernelServer, scale: f64) -> Result<Vec<f64>, ServerError> {
    let inputs = forward_inputs(scale);
    let tensors: Vec<(&str, &HostTensor)> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    let reply = server.call(&Call::new(Operation::Conv1dForward), &tensors)?;
    assert!(reply.metadata["device"].starts_with("cpu"));
    Ok(reply.tensors["y"].to_f64())
}

pub fn kill(server: &KernelServer) {
    let id = server.process_id().expect("a server runs").to_string();
    assert!(std::process::Command::new("kill").args(["-KILL", &id]).status().expect("kill starts").success());
}

#[test]
fn calls_are_answered_and_counted() {
    let mut server = KernelServer::start(launch()).unwrap();
    for scale in [1.0, 2.0, 3.0] {
        assert_eq!(forward(&mut server, scale).unwrap(), forward_result(scale));
    }
    let metrics = server.metrics();
    assert_eq!((metrics.requests, metrics.answered, metrics.restarts, metrics.lost), (3, 3, 0, 0));
    let [median, p90, p99] = metrics.latency.unwrap();
    assert!(median > Duration::ZERO && median <= p90 && p90 <= p99);
}

#[test]
fn a_refusal_leaves_the_server_as_it_was() {
    let mut server = KernelServer::start(launch()).unwrap();
    let process = server.process_id();
    let error = server.call(&Call::new(Operation::GemmForward), &[]).unwrap_err();
    match &error {
        ServerError::Refused { request: 1, code, help: Some(_), .. } => assert_eq!(code, "missing-tensor"),
        _ => panic!("{error}"),
    }
    assert_eq!(forward(&mut server, 1.0).unwrap(), forward_result(1.0));
    assert_eq!(server.process_id(), process);
    assert_eq!(server.metrics().refused, 1);
}

#[test]
fn a_killed_server_is_started_again() {
    let mut server = KernelServer::start(launch()).unwrap();
    for round in 1..=3 {
        kill(&server);
        // The kill may show in this call or, if the process was not yet gone, in none: then the request was lost.
        match forward(&mut server, 1.0) {
            Ok(result) => assert_eq!(result, forward_result(1.0)),
            Err(ServerError::Lost { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        assert_eq!(forward(&mut server, 2.0).unwrap(), forward_result(2.0));
        assert_eq!(server.metrics().restarts, round);
    }
}

#[test]
fn a_server_that_does_not_come_up_is_waited_for_longer_each_time() {
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("broken");
    let mut launch = launch();
    let script = format!("test -e '{}' && exit 7; exec \"$0\" \"$@\"", broken.display());
    let serve = std::mem::replace(&mut launch.program, "sh".into());
    launch.arguments.splice(0..0, ["-c".into(), script.into(), serve.into()]);
    launch.backoff = Duration::from_millis(60);
    let mut server = KernelServer::start(launch).unwrap();
    std::fs::write(&broken, "").unwrap();
    kill(&server);
    // This one shows that the server is gone, if it is not the first that cannot start it.
    let _ = forward(&mut server, 1.0).unwrap_err();
    let mut waits = Vec::new();
    for _ in 0..3 {
        let start = Instant::now();
        let error = forward(&mut server, 1.0).unwrap_err();
        assert!(matches!(error, ServerError::Lost { .. }), "{error}");
        waits.push(start.elapsed());
    }
    let least = |factor: u32| Duration::from_millis(60) * factor;
    assert!(waits[1] >= least(1) && waits[2] >= least(2), "{waits:?}");
    std::fs::remove_file(&broken).unwrap();
    assert_eq!(forward(&mut server, 2.0).unwrap(), forward_result(2.0));
    let start = Instant::now();
    assert_eq!(forward(&mut server, 3.0).unwrap(), forward_result(3.0));
    assert!(start.elapsed() < least(4), "a server that came up is not waited for");
}

#[test]
fn a_server_that_hangs_is_given_up_at_the_deadline() {
    let mut launch = launch();
    launch.deadline = Duration::from_millis(700);
    let mut server = KernelServer::start(launch).unwrap();
    let id = server.process_id().unwrap().to_string();
    assert!(std::process::Command::new("kill").args(["-STOP", &id]).status().unwrap().success());
    let start = Instant::now();
    // One of its threads stops first and tells the others: until then they may still answer.
    while std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|state| !state.contains(") T ")) {
        assert!(start.elapsed() < Duration::from_secs(10), "the server does not stop");
    }
    let error = forward(&mut server, 1.0).unwrap_err();
    assert!(matches!(error, ServerError::Deadline { request: 1, .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(forward(&mut server, 2.0).unwrap(), forward_result(2.0));
}

#[test]
fn programs_that_are_no_servers_are_told_apart() {
    let start = |program: &str, arguments: &[&str]| {
        let mut launch = Launch::new(program);
        launch.arguments = arguments.iter().map(Into::into).collect();
        launch.deadline = Duration::from_secs(5);
        KernelServer::start(launch).unwrap_err()
    };
    assert!(matches!(start("/does/not/exist", &[]), ServerError::Start { .. }));
    assert!(matches!(start("true", &[]), ServerError::Lost { .. }));
    // An echo repeats the request, which is an image without the facts of a reply.
    assert!(matches!(start("cat", &[]), ServerError::Handshake { .. }));
    assert!(matches!(start("sleep", &["100"]), ServerError::Deadline { .. }));
}

#[cfg(target_os = "linux")]
#[test]
fn an_answer_to_a_request_that_was_not_read_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let answer = directory.path().join("answer");
    let hello = Server::start(&[]).ask(&request(&[("operation", "hello")], &[]));
    write_frame(&mut std::fs::File::create(&answer).unwrap(), &hello).unwrap();
    let mut launch = Launch::new("sh");
    launch.arguments = ["-c", "cat \"$0\"; exec sleep 100"].map(Into::into).to_vec();
    launch.arguments.push(answer.into());
    let error = KernelServer::start(launch).unwrap_err();
    assert!(
        matches!(&error, ServerError::Lost { because, .. } if because.contains("before it had read")),
        "{error}"
    );
}

#[test]
fn a_request_over_the_limit_is_not_sent() {
    let mut launch = launch();
    launch.arguments.extend(["--max-frame", "512"].map(Into::into));
    let mut server = KernelServer::start(launch).unwrap();
    let large = HostTensor::zeros(causeway::DType::F32, &[1, 16, 16]).unwrap();
    let weight = HostTensor::zeros(causeway::DType::F32, &[16, 4]).unwrap();
    let call = Call::new(Operation::Conv1dForward);
    let error = server.call(&call, &[("x", &large), ("weight", &weight)]).unwrap_err();
    assert!(matches!(error, ServerError::TooLarge { limit: 512, .. }), "{error}");
}
