//! Tensors of megabytes, whose memory goes through pipes without a copy: it has to stay as it was sent.

use std::fs::File;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use causeway::named::{Call, Inputs, Operation};
use causeway::{DType, Device, HostTensor};
use causeway_server::{KernelServer, read_frame, write_frame};

use crate::client::launch;
use crate::process::{Server, command, parse, request};

/// x of 6 MiB and a weight; `scale` makes them differ.
fn inputs(scale: f64) -> [(&'static str, HostTensor); 2] {
    let x = HostTensor::from_fn(DType::F32, &[1, 48, 1 << 15], |i| scale * (i % 251) as f64).unwrap();
    let weight = HostTensor::from_fn(DType::F32, &[48, 4], |i| 1.0 + i as f64).unwrap();
    [("x", x), ("weight", weight)]
}

/// What the operation gives in this process.
fn expected(scale: f64) -> HostTensor {
    let named = inputs(scale).map(|(name, tensor)| (name.to_string(), tensor));
    let call = Call::new(Operation::Conv1dForward);
    let results = call.run(&Device::cpu(), &Inputs::new(named.into(), Default::default())).unwrap();
    results.tensors.into_iter().next().unwrap().1
}

fn payload(scale: f64) -> Vec<u8> {
    let inputs = inputs(scale);
    let tensors: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    request(&[("operation", "conv1d-forward")], &tensors)
}

fn assert_same(found: &HostTensor, scale: f64) {
    // Not by `assert_eq`, which would print them.
    assert!(found.bytes() == expected(scale).bytes(), "the result of {scale} differs");
}

#[test]
fn replies_that_wait_in_the_pipe_stay_as_they_are() {
    let server = std::cell::RefCell::new(Server::start(&[]));
    let mut input = server.borrow_mut().input.take().unwrap();
    let sender = std::thread::spawn(move || {
        for scale in 1..=4 {
            write_frame(&mut input, &payload(f64::from(scale))).unwrap();
        }
        input
    });
    for scale in 1..=4 {
        // The server has filled the pipe with the first part of its reply, and waits.
        std::thread::sleep(Duration::from_millis(100));
        let reply = server.borrow_mut().receive();
        assert_same(&parse(&reply).0["y"], f64::from(scale));
    }
    server.borrow_mut().input = Some(sender.join().unwrap());
    assert_eq!(server.into_inner().finish().0.code(), Some(0));
}

#[test]
fn what_is_no_pipe_gets_copies() {
    let directory = tempfile::tempdir().unwrap();
    let (asked, answered) = (directory.path().join("asked"), directory.path().join("answered"));
    let mut file = File::create(&asked).unwrap();
    for scale in [1.0, 2.0] {
        write_frame(&mut file, &payload(scale)).unwrap();
    }
    file.flush().unwrap();
    let streams = (File::open(&asked).unwrap(), File::create(&answered).unwrap());
    let status = command(&["serve"]).stdin(Stdio::from(streams.0)).stdout(Stdio::from(streams.1)).status();
    assert!(status.unwrap().success());
    let mut replies = File::open(&answered).unwrap();
    for scale in [1.0, 2.0] {
        let reply = read_frame(&mut replies).unwrap().unwrap();
        assert_same(&parse(&reply).0["y"], scale);
    }
    assert!(read_frame(&mut replies).unwrap().is_none());
}

#[test]
fn a_caller_may_change_its_tensors_and_hand_replies_back() {
    let mut server = KernelServer::start(launch()).unwrap();
    let [(_, mut x), (_, weight)] = inputs(1.0);
    let call = Call::new(Operation::Conv1dForward);
    let mut held = Vec::new();
    for scale in 1..=6 {
        x.assign(|i| f64::from(scale) * (i % 251) as f64);
        let mut reply = server.call(&call, &[("x", &x), ("weight", &weight)]).unwrap();
        x.fill_bytes(0xff);
        assert_same(&reply.tensors["y"], f64::from(scale));
        if scale % 2 == 0 {
            reply.tensors.get_mut("y").unwrap().fill_bytes(0xff);
            server.recycle(reply);
        } else {
            held.push((f64::from(scale), reply));
        }
    }
    // What was kept has not become the memory of a later reply.
    for (scale, reply) in held {
        assert_same(&reply.tensors["y"], scale);
    }
}
