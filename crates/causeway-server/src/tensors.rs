//! The tensors protocol: requests and replies are safetensors images, see [the module](super).

use std::cell::Cell;
use std::io::{self, Read};
use std::sync::Arc;

use causeway::error::Error;
use causeway::files::{FileCause, FileError, Metadata, Spares, TensorImage, TensorStream};
use causeway::named::{Call, CallError, Inputs, Layout};
use causeway::{HostTensor, quoted};

use super::PROTOCOL_VERSION;
use super::frame::{self, Payload};
use super::pipe::Lend;
use super::worker::Worker;

/// The key that the reply repeats.
pub(super) const ID: &str = "id";
/// The operation that computes nothing.
pub(super) const HELLO: &str = "hello";
/// What a client may say with it: that it has copied all of a reply out of the pipe before it sends the next request.
pub(super) const TAKES_COPIES: &str = "takes_copies";

/// What a frame asked for.
pub(super) struct Request {
    id: Option<String>,
    wish: Result<Wish, Problem>,
}

enum Wish {
    /// And whether the client takes copies.
    Facts(bool),
    Compute(Call, Inputs),
}

/// Why a request cannot be answered.
struct Problem {
    code: &'static str,
    message: String,
    help: Option<String>,
}

impl From<CallError> for Problem {
    fn from(error: CallError) -> Self {
        Problem { code: error.code(), message: error.to_string(), help: error.help() }
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        CallError::Operation { layout: Layout::default(), error }.into()
    }
}

impl From<FileError> for Problem {
    fn from(error: FileError) -> Self {
        let code = match error.cause {
            FileCause::OutOfMemory { .. } => "out-of-memory",
            _ => "malformed-request",
        };
        Problem { code, message: error.to_string(), help: error.help().map(str::to_string) }
    }
}

impl Request {
    /// Reads a payload of `count` bytes. What is wrong with it is part of the answer.
    pub fn read<R: Read>(payload: &mut Payload<'_, R>, count: u32, worker: &Worker) -> Self {
        let max_frame = worker.max_frame;
        if count > max_frame {
            let message = format!("the frame has {count} bytes: at most {max_frame} are allowed");
            let help = Some("send less at a time, or start the server with a larger --max-frame".to_string());
            return Request { id: None, wish: Err(Problem { code: "frame-too-large", message, help }) };
        }
        match TensorStream::open(payload, count.into(), "the request") {
            Ok(stream) => {
                let id = stream.metadata().get(ID).cloned();
                Request { id, wish: Self::read_wish(stream, worker) }
            }
            Err(error) => Request { id: None, wish: Err(error.into()) },
        }
    }

    fn read_wish<R: Read>(stream: TensorStream<R>, worker: &Worker) -> Result<Wish, Problem> {
        if stream.metadata().get("operation").is_some_and(|operation| operation == HELLO) {
            return takes_copies(stream.metadata()).map(Wish::Facts);
        }
        let call = Call::from_metadata(stream.metadata(), &[ID])?;
        call.check_names(stream.names())?;
        let inputs = Inputs::new(stream.read_all_again(&worker.spares)?, call.layout.unwrap_or_default());
        let inputs = inputs.with_result_limit(worker.max_frame.into());
        Ok(Wish::Compute(call, inputs.with_spares(Arc::clone(&worker.spares))))
    }

    /// Computes, if that is what was asked for.
    pub fn answer(self, worker: &Worker, lent: &mut Lent) -> Reply {
        let mut metadata = facts(worker);
        metadata.extend(self.id.map(|id| (ID.to_string(), id)));
        let results = self.wish.and_then(|wish| match wish {
            Wish::Facts(takes_copies) => {
                lent.to_a_copier = takes_copies;
                Ok(None)
            }
            Wish::Compute(call, inputs) => {
                metadata.extend(call.metadata());
                let results = worker.on_device(|device| call.run(device, &inputs).map_err(Problem::from));
                inputs.into_tensors().for_each(|tensor| worker.spares.keep(tensor));
                let results = results?;
                worker.tally().note_answer(call.operation.name(), results.elapsed.as_secs_f64());
                Ok(Some(results))
            }
        });
        let tensors = match results {
            Ok(Some(results)) => {
                metadata.insert("seconds".to_string(), results.elapsed.as_secs_f64().to_string());
                results.tensors
            }
            Ok(None) => Vec::new(),
            Err(problem) => {
                worker.tally().note_refusal(problem.code);
                refuse(&mut metadata, problem);
                Vec::new()
            }
        };
        Reply { tensors, metadata, max_frame: worker.max_frame }
    }
}

/// What a client is told that is not served. It asked for nothing, so no refusal is counted.
#[cfg(unix)]
pub(super) fn turned_away(message: String, worker: &Worker) -> Reply {
    let mut metadata = facts(worker);
    let help = Some("connect again when another client has gone".to_string());
    refuse(&mut metadata, Problem { code: "too-many-clients", message, help });
    Reply { tensors: Vec::new(), metadata, max_frame: worker.max_frame }
}

/// What every reply says of the server.
fn facts(worker: &Worker) -> Metadata {
    Metadata::from([
        ("causeway".to_string(), env!("CARGO_PKG_VERSION").to_string()),
        ("protocol".to_string(), PROTOCOL_VERSION.to_string()),
        ("device".to_string(), worker.device.to_string()),
        ("threads".to_string(), worker.thread_count().to_string()),
        ("max_frame".to_string(), worker.max_frame.to_string()),
    ])
}

/// Whether a client that says hello takes copies.
fn takes_copies(metadata: &Metadata) -> Result<bool, Problem> {
    let mut taken = false;
    for (key, value) in metadata {
        taken = match (key.as_str(), value.as_str()) {
            ("operation" | ID, _) => continue,
            (TAKES_COPIES, "true") => true,
            (TAKES_COPIES, "false") => false,
            (TAKES_COPIES, _) => {
                let message = format!("{TAKES_COPIES} is {}: expected true or false", quoted(value));
                return Err(Problem { code: "bad-option", message, help: None });
            }
            _ => {
                let message =
                    format!("{} is no option of {HELLO}: expected {TAKES_COPIES} or {ID}", quoted(key));
                return Err(Problem { code: "unknown-option", message, help: None });
            }
        };
    }
    Ok(taken)
}

fn refuse(metadata: &mut Metadata, problem: Problem) {
    metadata.insert("error".to_string(), problem.code.to_string());
    metadata.insert("message".to_string(), problem.message);
    metadata.extend(problem.help.map(|help| ("help".to_string(), help)));
}

/// Results that a client has been lent. Their memory is used again when the client is known to have copies; otherwise it
/// goes back to the system, which keeps what was lent until it has been read.
#[derive(Default)]
pub(super) struct Lent {
    to_a_copier: bool,
    tensors: Vec<HostTensor>,
}

impl Lent {
    /// A request has come: whoever takes copies has those of all earlier replies.
    pub fn next_request(&mut self, spares: &Spares) {
        self.tensors.drain(..).for_each(|tensor| spares.keep(tensor));
    }

    fn add(&mut self, tensor: HostTensor) {
        if self.to_a_copier {
            self.tensors.push(tensor);
        }
    }
}

/// What is sent back.
pub(super) struct Reply {
    tensors: Vec<(&'static str, HostTensor)>,
    metadata: Metadata,
    max_frame: u32,
}

impl Reply {
    /// Writes the frame and flushes. Results in pages of their own are lent.
    pub fn write(mut self, output: &mut impl Lend, lent: &mut Lent, spares: &Spares) -> io::Result<()> {
        let tensors: Vec<_> = self.tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let mut image = TensorImage::new(&tensors, &self.metadata);
        if image.length() > self.max_frame.into() {
            let message =
                format!("the reply has {} bytes: at most {} are allowed", image.length(), self.max_frame);
            let help =
                Some("ask for less at a time, or start the server with a larger --max-frame".to_string());
            refuse(&mut self.metadata, Problem { code: "reply-too-large", message, help });
            image = TensorImage::new(&[], &self.metadata);
            if image.length() > self.max_frame.into() {
                // What came with the request, and goes back with the reply, may fill a frame by itself.
                self.metadata.retain(|name, _| ["error", "message", "help"].contains(&name.as_str()));
                image = TensorImage::new(&[], &self.metadata);
            }
        }
        frame::write_count(output, image.length())?;
        let any_lent = Cell::new(false);
        image.write_lending(output, |output, tensor, bytes| {
            if tensor.has_own_pages() {
                any_lent.set(output.lend(bytes)? || any_lent.get());
                return Ok(());
            }
            output.write_all(bytes)
        })?;
        output.flush()?;
        let done = |(_, tensor)| if any_lent.get() { lent.add(tensor) } else { spares.keep(tensor) };
        self.tensors.into_iter().for_each(done);
        Ok(())
    }
}
