//! `causeway gemm-oneshot`: one request of the text protocol, without frames.

use std::io::{Read, Write};

use causeway_server::text::{Problem, Request};

use crate::device::DeviceArgs;
use crate::failure::Failure;

const NOTES: &str = "\
Example:
  printf '1 1 1 1\\n15360\\n16384\\n' | causeway gemm-oneshot     (1.0 × 2.0; RESULTS=16384)

Reads KERNEL_ID M N K, a line with the M·N bit patterns of grad_C, and a line with those of B (K·N; kernel 1, \
grad_A) or A (M·K; kernel 2, grad_B): f16, decimal, blanks between them. The algorithm is exact.

Exit status:
  0   the reply is on stdout
  2   unreadable input or header, or more than --max-frame bytes
  3   the kernel id is not 1 or 2
  4   a size is not positive
  7   grad_C is short or malformed
  8   B is short or malformed
  9   A is short or malformed
  10  the device failed, or the result does not fit a reply";

/// One gradient of a half-precision product, as text from stdin to stdout
#[derive(Debug, clap::Args)]
#[command(after_help = NOTES)]
pub(crate) struct Args {
    /// Largest request and reply, in bytes; suffixes K, M and G mean KiB, MiB and GiB
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = super::serve::parse_bytes)]
    max_frame: u32,

    #[command(flatten)]
    device: DeviceArgs,
}

/// Reads, computes, answers.
pub(crate) fn execute(args: &Args) -> Result<(), Failure> {
    let mut text = Vec::new();
    let limit = u64::from(args.max_frame);
    let unread = |error| Failure::status(2, format!("the input cannot be read: {error}"));
    std::io::stdin().lock().take(limit + 1).read_to_end(&mut text).map_err(unread)?;
    if text.len() as u64 > limit {
        return Err(Failure::status(
            2,
            format!("the request has more than {limit} bytes: raise --max-frame"),
        ));
    }
    let failed = |problem: Problem| Failure::status(problem.status(), problem.to_string());
    let request = Request::parse(&text).map_err(failed)?;
    drop(text);
    let (device, threads) = args.device.open().map_err(|failure| failure.with_status(10))?;
    let reply = threads.install(|| request.run(&device, args.max_frame)).map_err(failed)?;
    let mut output = std::io::stdout().lock();
    output.write_all(&reply)?;
    output.flush()?;
    Ok(())
}
