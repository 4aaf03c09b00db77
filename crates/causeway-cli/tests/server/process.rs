//! Starts servers, and speaks to them in frames.

use std::io::{BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use causeway::files::{Metadata, TensorStream, to_safetensors};
use causeway::{DType, HostTensor};
use causeway_server::{read_frame, write_frame};

/// The command on the CPU, with two threads.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    command.args(arguments).args(["--device", "cpu", "--threads", "2"]);
    command.env_remove("CAUSEWAY_DEVICE");
    command
}

/// A server on pipes.
pub struct Server {
    pub child: Child,
    pub input: Option<ChildStdin>,
    pub output: BufReader<ChildStdout>,
}

impl Server {
    pub fn start(arguments: &[&str]) -> Self {
        let mut command = command(&[&["serve"], arguments].concat());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("stdout is a pipe"));
        Server { child, input, output: BufReader::new(output) }
    }

    pub fn send(&mut self, payload: &[u8]) {
        write_frame(self.input.as_mut().expect("stdin is open"), payload).expect("the server reads");
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().expect("stdin is open");
        input.write_all(bytes).and_then(|()| input.flush()).expect("the server reads");
    }

    pub fn receive(&mut self) -> Vec<u8> {
        read_frame(&mut self.output).expect("a whole frame").expect("a reply")
    }

    pub fn ask(&mut self, payload: &[u8]) -> Vec<u8> {
        self.send(payload);
        self.receive()
    }

    /// Closes stdin, checks that nothing more comes, and returns how the server ended and what it said on stderr.
    pub fn finish(mut self) -> (ExitStatus, String) {
        drop(self.input.take());
        assert!(
            read_frame(&mut self.output).expect("whole frames").is_none(),
            "a reply that nobody asked for"
        );
        let mut said = String::new();
        self.child.stderr.take().expect("stderr is a pipe").read_to_string(&mut said).expect("UTF-8");
        (self.child.wait().expect("the server ends"), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail when it has ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request of the tensors protocol.
pub fn request(metadata: &[(&str, &str)], tensors: &[(&str, &HostTensor)]) -> Vec<u8> {
    let metadata = metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    to_safetensors(tensors, &metadata)
}

/// A reply's results and metadata.
pub fn parse(reply: &[u8]) -> (std::collections::BTreeMap<String, HostTensor>, Metadata) {
    let stream = TensorStream::open(reply, reply.len() as u64, "the reply").expect("a safetensors image");
    let metadata = stream.metadata().clone();
    (stream.read_all().expect("whole tensors"), metadata)
}

/// Small inputs of a forward convolution with width 2; `scale` makes requests differ.
pub fn forward_inputs(scale: f64) -> [(&'static str, HostTensor); 2] {
    let x = HostTensor::from_fn(DType::F32, &[1, 2, 3], |i| scale * i as f64).expect("a small tensor");
    let weight = HostTensor::from_fn(DType::F32, &[2, 2], |i| 1.0 + i as f64).expect("a small tensor");
    [("x", x), ("weight", weight)]
}

/// `y[t] = weight[0]·x[t-1] + weight[1]·x[t]`, by hand.
pub fn forward_result(scale: f64) -> [f64; 6] {
    [0.0, 2.0, 5.0, 12.0, 25.0, 32.0].map(|y| scale * y)
}

/// A request for [`forward_result`].
pub fn forward_request(scale: f64, id: &str) -> Vec<u8> {
    let [(x_name, x), (weight_name, weight)] = &forward_inputs(scale);
    request(&[("operation", "conv1d-forward"), ("id", id)], &[(x_name, x), (weight_name, weight)])
}

/// Memory that a process has.
#[cfg(target_os = "linux")]
pub fn resident_bytes(process: u32) -> Option<u64> {
    let pages = std::fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    pages.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}
