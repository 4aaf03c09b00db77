//! The server on pipes: requests, mistakes, and frames that lie.

#[cfg(target_os = "linux")]
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(target_os = "linux")]
use std::time::Duration;

use causeway::{DType, HostTensor};
#[cfg(target_os = "linux")]
use causeway_server::write_frame;

#[cfg(target_os = "linux")]
use crate::process::resident_bytes;
use crate::process::{Server, forward_request, forward_result, parse, request};

#[test]
fn hello_tells_what_the_server_is() {
    let mut server = Server::start(&["--max-frame", "64K"]);
    let (tensors, facts) = parse(&server.ask(&request(&[("operation", "hello")], &[])));
    assert!(tensors.is_empty());
    assert_eq!(
        (facts["protocol"].as_str(), facts["max_frame"].as_str(), facts["threads"].as_str()),
        ("1", "65536", "2")
    );
    assert!(facts["device"].starts_with("cpu"), "{facts:?}");
    for (option, value, code) in [("foo", "1", "unknown-option"), ("takes_copies", "yes", "bad-option")] {
        let (_, facts) = parse(&server.ask(&request(&[("operation", "hello"), (option, value)], &[])));
        assert_eq!(facts["error"], code, "{facts:?}");
        assert!(facts["message"].contains(option), "{facts:?}");
    }
    let (status, said) = server.finish();
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
}

#[test]
fn requests_are_answered_in_order_when_they_come_at_once() {
    let mut server = Server::start(&[]);
    for number in 0..20 {
        server.send(&forward_request(f64::from(number), &number.to_string()));
    }
    for number in 0..20 {
        let (tensors, facts) = parse(&server.receive());
        assert_eq!(facts["id"], number.to_string());
        assert_eq!(tensors["y"].to_f64(), forward_result(f64::from(number)));
        assert!(facts["seconds"].parse::<f64>().expect("a number") > 0.0);
    }
    assert_eq!(server.finish().0.code(), Some(0));
}

/// The pipes fill up, and the client waits: the server reads no further.
#[cfg(target_os = "linux")]
#[test]
fn a_client_that_does_not_read_costs_no_memory() {
    const REQUESTS: usize = 40_000;
    let mut server = Server::start(&[]);
    let mut input = server.input.take().unwrap();
    let sent = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            for number in 0..REQUESTS {
                write_frame(&mut input, &forward_request(1.0, &number.to_string())).unwrap();
                sent.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Until nothing has been taken for a while.
        let mut before = usize::MAX;
        while before != sent.load(Ordering::Relaxed) || before == 0 {
            before = sent.load(Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(300));
        }
        assert!(before < REQUESTS, "all requests were taken though no reply was read");
        let resident = resident_bytes(server.child.id()).unwrap();
        assert!(resident < 64 << 20, "{resident} bytes");
        for number in 0..REQUESTS {
            assert_eq!(parse(&server.receive()).1["id"], number.to_string());
        }
        sender.join().unwrap();
    });
    drop(input);
    assert_eq!(server.finish().0.code(), Some(0));
}

#[test]
fn a_product_and_its_gradients() {
    let mut server = Server::start(&[]);
    let a = HostTensor::from_fn(DType::F16, &[2, 3], |i| i as f64).unwrap();
    let b = HostTensor::from_fn(DType::F16, &[3, 1], |_| 2.0).unwrap();
    let grad_c = HostTensor::from_fn(DType::F16, &[2, 1], |i| 1.0 + i as f64).unwrap();
    let forward = [("operation", "gemm-forward"), ("algorithm", "exact")];
    let (tensors, _) = parse(&server.ask(&request(&forward, &[("A", &a), ("B", &b)])));
    assert_eq!(tensors["C"].to_f64(), [6.0, 24.0]);
    let gradients = [("operation", "gemm-grad-ab")];
    let all = [("A", &a), ("B", &b), ("grad_C", &grad_c)];
    let (tensors, _) = parse(&server.ask(&request(&gradients, &all)));
    assert_eq!(tensors["grad_A"].to_f64(), [2.0, 2.0, 2.0, 4.0, 4.0, 4.0]);
    assert_eq!(tensors["grad_B"].to_f64(), [6.0, 9.0, 12.0]);
}

/// Payloads that cannot be answered, and the code of the reply.
fn mistakes() -> Vec<(Vec<u8>, &'static str)> {
    let x = HostTensor::from_fn(DType::F32, &[1, 2, 3], |i| i as f64).unwrap();
    let weight = HostTensor::from_fn(DType::F32, &[2, 2], |i| i as f64).unwrap();
    let other = HostTensor::from_fn(DType::F32, &[3, 2], |i| i as f64).unwrap();
    let good = [("x", &x), ("weight", &weight)];
    let forward = ("operation", "conv1d-forward");
    let mut header_cut = forward_request(1.0, "");
    header_cut.truncate(20);
    let mut data_cut = forward_request(1.0, "");
    data_cut.pop();
    let huge_header = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    let text = |header: &str| [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    vec![
        (Vec::new(), "malformed-request"),
        (b"\0".to_vec(), "malformed-request"),
        (b"not a safetensors image".to_vec(), "malformed-request"),
        (header_cut, "malformed-request"),
        (data_cut, "malformed-request"),
        (huge_header, "malformed-request"),
        (
            text(r#"{"x":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}"#),
            "malformed-request",
        ),
        (request(&[], &good), "missing-operation"),
        (request(&[("operation", "conv2d")], &good), "unknown-operation"),
        (request(&[forward, ("activatoin", "silu")], &good), "unknown-option"),
        (request(&[forward, ("activation", "relu")], &good), "bad-option"),
        (request(&[forward, ("layout", "last")], &good), "bad-option"),
        (request(&[forward, ("return_final_states", "yes")], &good), "bad-option"),
        (request(&[forward, ("algorithm", "exact")], &good), "misplaced-option"),
        (request(&[forward], &[("x", &x), ("weight", &weight), ("dy", &x)]), "unknown-tensor"),
        (request(&[forward], &[("x", &x)]), "missing-tensor"),
        (request(&[forward], &[("x", &x), ("weight", &other)]), "size"),
        (request(&[forward], &[("x", &weight), ("weight", &weight)]), "rank"),
    ]
}

#[test]
fn each_mistake_is_answered_and_the_server_lives_on() {
    let mut server = Server::start(&[]);
    for (payload, code) in mistakes() {
        let (tensors, facts) = parse(&server.ask(&payload));
        assert_eq!(facts.get("error").map(String::as_str), Some(code), "{facts:?}");
        assert!(!facts["message"].is_empty() && tensors.is_empty(), "{facts:?}");
        let (tensors, _) = parse(&server.ask(&forward_request(1.0, "after")));
        assert_eq!(tensors["y"].to_f64(), forward_result(1.0));
    }
    assert_eq!(server.finish().0.code(), Some(0));
}

#[test]
fn a_frame_over_the_limit_is_passed_over() {
    let mut server = Server::start(&["--max-frame", "4K"]);
    let (_, facts) = parse(&server.ask(&[7; 5000]));
    assert_eq!(facts["error"], "frame-too-large");
    assert!(facts["message"].contains("5000") && facts["message"].contains("4096"), "{facts:?}");
    let (tensors, _) = parse(&server.ask(&forward_request(2.0, "after")));
    assert_eq!(tensors["y"].to_f64(), forward_result(2.0));
    assert_eq!(server.finish().0.code(), Some(0));
}

#[test]
fn a_result_over_the_limit_is_refused_before_it_is_allocated() {
    let mut server = Server::start(&["--max-frame", "4K"]);
    // Inputs without elements ask for 2^40 results.
    let long = HostTensor::zeros(DType::F16, &[1 << 20, 0]).unwrap();
    let metadata = [("operation", "gemm-grad-a")];
    let (_, facts) = parse(&server.ask(&request(&metadata, &[("grad_C", &long), ("B", &long)])));
    assert_eq!(facts["error"], "result-too-large", "{facts:?}");
    // Each of the two fits, both do not.
    let square = HostTensor::zeros(DType::F16, &[36, 1]).unwrap();
    let one = HostTensor::zeros(DType::F16, &[1, 1]).unwrap();
    let (_, facts) = parse(&server.ask(&request(&metadata, &[("grad_C", &square), ("B", &square)])));
    assert_eq!(facts.get("error"), None, "{facts:?}");
    let (_, facts) = parse(&server.ask(&request(
        &metadata,
        &[("grad_C", &square), ("B", &HostTensor::zeros(DType::F16, &[56, 1]).unwrap())],
    )));
    assert_eq!(facts["error"], "reply-too-large", "{facts:?}");
    let (tensors, _) = parse(&server.ask(&request(&metadata, &[("grad_C", &one), ("B", &one)])));
    assert_eq!(tensors["grad_A"].shape(), [1, 1]);
}

#[test]
fn frames_that_are_cut_end_the_server() {
    let frame = |count: u32, payload: &[u8]| [&count.to_le_bytes()[..], payload].concat();
    let whole = forward_request(1.0, "");
    let table = [
        (vec![1], 20),
        (vec![1, 2, 3], 20),
        (frame(1, b""), 21),
        (frame(whole.len() as u32, &whole[..whole.len() - 1]), 21),
        (frame(whole.len() as u32, &whole[..3]), 21),
        (frame(u32::MAX, b"claims 4 GiB"), 21),
    ];
    for protocol in ["tensors", "text"] {
        for (bytes, status) in &table {
            let mut server = Server::start(&["--protocol", protocol]);
            server.send_raw(bytes);
            let (ended, said) = server.finish();
            assert_eq!(ended.code(), Some(*status), "{protocol} {bytes:?}: {said}");
            assert!(said.contains("the input ended inside a frame"), "{said}");
        }
    }
}

#[test]
fn text_requests_are_answered_and_mistakes_are_too() {
    let mut server = Server::start(&["--protocol", "text", "--max-frame", "1K"]);
    let mut ask = |text: &str| String::from_utf8(server.ask(text.as_bytes())).expect("ASCII");
    // grad_C = (1, 2), B = ((3, 4)): grad_A = 1·3 + 2·4 = 11.
    let reply = ask("1 1 2 1\n15360 16384\n16896 17408\n");
    let keys: Vec<_> = reply.lines().map(|line| line.split('=').next().unwrap()).collect();
    let expected = [
        "DEVICE_NAME",
        "GFX",
        "KERNEL_ID",
        "M",
        "N",
        "K",
        "GRID_X",
        "GRID_Y",
        "BLOCK_X",
        "BLOCK_Y",
        "KERNEL_TIME_MS",
        "RESULTS",
    ];
    assert_eq!(keys, expected);
    assert!(
        reply.contains("\nKERNEL_ID=1\nM=1\nN=2\nK=1\n") && reply.ends_with("\nRESULTS=18816\n"),
        "{reply}"
    );
    for (text, status) in [
        ("", 2),
        ("9 1 1 1\n", 3),
        ("1 0 1 1\n", 4),
        ("1 1 1 1\nx\n", 7),
        ("1 1 1 1\n0\n", 8),
        ("2 1 1 1\n0\n", 9),
    ] {
        let reply = ask(text);
        assert!(reply.starts_with(&format!("ERROR={status} ")), "{text:?}: {reply}");
    }
    assert!(ask(&"0 ".repeat(600)).starts_with("ERROR=2 "));
    assert!(ask("2 1 1 1\n15360\n16384\n").ends_with("RESULTS=16384\n"));
    assert_eq!(server.finish().0.code(), Some(0));
}
