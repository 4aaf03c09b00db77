//! A server and what is sent to it.

use std::sync::OnceLock;

use causeway::Device;
use causeway_server::{Interrupted, Protocol, Service, read_frame};

const MAX_FRAME: u32 = 1 << 16;

/// Sends bytes to a server, and returns its replies. Inputs that begin with an odd byte are one frame, the others a
/// stream of them with their counts. Every reply is a whole frame, no larger than is allowed.
pub fn serve(protocol: Protocol, data: &[u8]) -> Vec<Vec<u8>> {
    static SERVICE: OnceLock<Service> = OnceLock::new();
    let service = SERVICE.get_or_init(|| {
        let threads = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread starts");
        Service::new(Device::cpu(), threads, protocol, MAX_FRAME)
    });
    let Some((first, rest)) = data.split_first() else { return Vec::new() };
    let framed;
    let mut input = rest;
    if first % 2 == 1 {
        framed = [&(rest.len() as u32).to_le_bytes(), rest].concat();
        input = &framed;
    }
    let mut output = Vec::new();
    match service.serve(&mut input, &mut output) {
        Ok(()) | Err(Interrupted::Count { .. } | Interrupted::Payload { .. }) => {}
        Err(Interrupted::Input(error) | Interrupted::Io(error)) => panic!("memory does not fail: {error}"),
    }
    let mut output = &output[..];
    let mut replies = Vec::new();
    while let Some(reply) = read_frame(&mut output).expect("replies are whole frames") {
        replies.push(reply);
    }
    replies
}
