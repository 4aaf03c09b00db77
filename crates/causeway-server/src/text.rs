//! The text protocol: the gradients of a half-precision product as decimal bit patterns, by the `exact` algorithm.
//!
//! ```text
//! request   KERNEL_ID M N K                 1: grad_A = grad_C · Bᵀ     2: grad_B = Aᵀ · grad_C
//!           grad_C                          M·N bit patterns of f16, decimal, blanks between them
//!           B (K·N) or A (M·K)              likewise
//! reply     DEVICE_NAME= … KERNEL_TIME_MS=  one line each
//!           RESULTS=                        M·K or K·N bit patterns
//!           or: ERROR=status message
//! ```
//!
//! Each matrix is one line, row after row. A CPU has no grid: it answers with one block of as many threads as it uses.

use std::fmt::Write as _;
use std::io::Read;
use std::time::Instant;

use causeway::HostTensor;
use causeway::backend::gpu::plan::{DeviceFacts, Plan};
use causeway::device::Device;
use causeway::error::Error;
use causeway::gemm::{Algorithm, GradA, GradB};
use causeway::placement::{Input, Output};
use causeway::tensor::DType;

use super::decimal::{length_of_numbers, read_numbers, write_numbers};

/// Why a request is not answered with results. The number of each is its status: the exit status of a one-shot call,
/// and the number after `ERROR=`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The first line is not four integers.
    #[error(
        "the header is {found:?}: expected KERNEL_ID M N K, four integers of 64 bits with blanks between them"
    )]
    Header {
        /// The line, or its beginning.
        found: String,
    },
    /// There is no such kernel.
    #[error("the kernel id is {found}: expected 1 for grad_A or 2 for grad_B")]
    Kernel {
        /// The number that was given.
        found: i64,
    },
    /// A size that no matrix has.
    #[error("{size} is {found}: expected 1 or more")]
    Size {
        /// `M`, `N` or `K`.
        size: &'static str,
        /// The number that was given.
        found: i64,
    },
    /// A matrix has too few or too many numbers, or something that is no bit pattern.
    #[error("{matrix}: expected {expected} bit patterns, but {because}")]
    Matrix {
        /// `grad_C`, `B` or `A`.
        matrix: &'static str,
        /// Numbers that it needs.
        expected: i128,
        /// What is wrong.
        because: String,
    },
    /// The device failed, or the result does not fit a reply.
    #[error("{message}")]
    Device {
        /// What it says.
        message: String,
    },
    /// The request does not fit a frame.
    #[error(
        "the frame has {count} bytes: at most {limit} are allowed; start the server with a larger --max-frame"
    )]
    TooLarge {
        /// Bytes that the frame claims.
        count: u32,
        /// The most that is allowed.
        limit: u32,
    },
}

impl Problem {
    /// The status, as the contract numbers them.
    pub fn status(&self) -> u8 {
        match self {
            Problem::Header { .. } | Problem::TooLarge { .. } => 2,
            Problem::Kernel { .. } => 3,
            Problem::Size { .. } => 4,
            Problem::Matrix { matrix: "B", .. } => 8,
            Problem::Matrix { matrix: "A", .. } => 9,
            Problem::Matrix { .. } => 7,
            Problem::Device { .. } => 10,
        }
    }

    /// The reply of a server.
    pub fn reply(&self) -> Vec<u8> {
        format!("ERROR={} {self}\n", self.status()).into_bytes()
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        // A reply of the text protocol is made of lines.
        Problem::Device { message: error.to_string().replace('\n', " ") }
    }
}

/// A gradient that was asked for.
#[derive(Debug)]
pub struct Request {
    kernel: Kernel,
    sizes: [i64; 3],
    grad_c: HostTensor,
    other: HostTensor,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kernel {
    GradA,
    GradB,
}

/// Reads a request of `count` bytes; memory grows with what comes.
pub(super) fn read(payload: &mut impl Read, count: u32, max_frame: u32) -> Result<Request, Problem> {
    if count > max_frame {
        return Err(Problem::TooLarge { count, limit: max_frame });
    }
    let mut text = Vec::new();
    payload.read_to_end(&mut text).map_err(|error| Problem::Device { message: error.to_string() })?;
    Request::parse(&text)
}

impl Request {
    /// Reads a request's text.
    ///
    /// # Errors
    /// The [`Problem`] that comes first in the order of its statuses.
    pub fn parse(text: &[u8]) -> Result<Self, Problem> {
        let mut lines = text.splitn(3, |&byte| byte == b'\n');
        let [kernel, m, n, k] = header(lines.next().unwrap_or_default())?;
        let kernel = match kernel {
            1 => Kernel::GradA,
            2 => Kernel::GradB,
            found => return Err(Problem::Kernel { found }),
        };
        if let Some((size, found)) = [("M", m), ("N", n), ("K", k)].into_iter().find(|(_, found)| *found <= 0)
        {
            return Err(Problem::Size { size, found });
        }
        let grad_c = matrix("grad_C", [m, n], lines.next().unwrap_or_default())?;
        let (name, shape) = match kernel {
            Kernel::GradA => ("B", [k, n]),
            Kernel::GradB => ("A", [m, k]),
        };
        // Line ends may follow the last matrix, nothing else.
        let other = matrix(name, shape, lines.next().unwrap_or_default().trim_ascii_end())?;
        Ok(Request { kernel, sizes: [m, n, k], grad_c, other })
    }

    /// Computes, and writes the reply's text, which has at most `limit` bytes.
    ///
    /// # Errors
    /// [`Problem::Device`] with what the device says, or if the reply is too large.
    pub fn run(&self, device: &Device, limit: u32) -> Result<Vec<u8>, Problem> {
        self.run_timed(device, limit).map(|(reply, _)| reply)
    }

    /// The name of what is computed, as the tensors protocol has it.
    pub(super) fn operation(&self) -> &'static str {
        match self.kernel {
            Kernel::GradA => "gemm-grad-a",
            Kernel::GradB => "gemm-grad-b",
        }
    }

    /// As [`Request::run`], with the seconds that the operation took.
    pub(super) fn run_timed(&self, device: &Device, limit: u32) -> Result<(Vec<u8>, f64), Problem> {
        let [m, n, k] = self.sizes;
        let shape = match self.kernel {
            Kernel::GradA => [m, k],
            Kernel::GradB => [k, n],
        };
        // Two bytes at least for each result: a digit and a blank.
        if i128::from(shape[0]) * i128::from(shape[1]) * 2 > i128::from(limit) {
            let message = format!(
                "the result has {} × {} numbers: the reply has room for {} bytes",
                shape[0], shape[1], limit
            );
            return Err(Problem::Device { message });
        }
        let (grad_c, other) = (Input::place(device, &self.grad_c)?, Input::place(device, &self.other)?);
        let mut result = Output::place(device, HostTensor::zeros(DType::F16, &shape)?)?;
        let algorithm = Algorithm::Exact;
        macro_rules! started {
            ($operation:ident, $other:ident, $result:ident) => {{
                let (grad_c, $other, $result) = (grad_c.view(), other.view(), result.view());
                let mut call = $operation { grad_c, $other, algorithm, $result };
                let geometry = geometry(device, |facts| call.plan(facts))?;
                let start = Instant::now();
                call.run(device)?;
                (geometry, start)
            }};
        }
        let (geometry, start) = match self.kernel {
            Kernel::GradA => started!(GradA, b, grad_a),
            Kernel::GradB => started!(GradB, a, grad_b),
        };
        device.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        let mut reply = self.facts(device, geometry, seconds * 1e3);
        let result = result.fetch()?;
        let bits: &[u16] = &bytemuck::cast_slice(result.bytes())[..result.element_count()];
        let length = reply.len() as u64 + length_of_numbers(bits);
        if length > limit.into() {
            let message = format!("the reply has {length} bytes: at most {limit} are allowed");
            return Err(Problem::Device { message });
        }
        write_numbers(&mut reply, bits);
        Ok((reply, seconds))
    }

    /// The lines before the results, and the beginning of that line.
    fn facts(&self, device: &Device, [grid, block]: [[u32; 2]; 2], milliseconds: f64) -> Vec<u8> {
        let [m, n, k] = self.sizes;
        let name = device.to_string().replace('\n', " ");
        let architecture = match device.facts() {
            Some(facts) => facts.architecture.clone(),
            None => std::env::consts::ARCH.to_string(),
        };
        let ([grid_x, grid_y], [block_x, block_y]) = (grid, block);
        let id = match self.kernel {
            Kernel::GradA => 1,
            Kernel::GradB => 2,
        };
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        let _ = write!(
            text,
            "DEVICE_NAME={name}\nGFX={architecture}\nKERNEL_ID={id}\nM={m}\nN={n}\nK={k}\nGRID_X={grid_x}\nGRID_Y={grid_y}\n\
             BLOCK_X={block_x}\nBLOCK_Y={block_y}\nKERNEL_TIME_MS={milliseconds:.6}\nRESULTS="
        );
        text.into_bytes()
    }
}

/// Blocks and threads of the launch, along x and y.
fn geometry(
    device: &Device,
    plan: impl FnOnce(&DeviceFacts) -> causeway::error::Result<Option<Plan>>,
) -> causeway::error::Result<[[u32; 2]; 2]> {
    let launch = device.facts().map(plan).transpose()?.flatten();
    Ok(match launch {
        Some(Plan { grid: [grid_x, grid_y, _], block: [block_x, block_y, _], .. }) => {
            [[grid_x, grid_y], [block_x, block_y]]
        }
        None => [[1, 1], [rayon::current_num_threads() as u32, 1]],
    })
}

fn header(line: &[u8]) -> Result<[i64; 4], Problem> {
    let unreadable = || {
        let shown = &line[..line.len().min(60)];
        Problem::Header { found: String::from_utf8_lossy(shown).into_owned() }
    };
    let text = std::str::from_utf8(line).map_err(|_| unreadable())?;
    let numbers: Option<Vec<i64>> = text.split_ascii_whitespace().map(|number| number.parse().ok()).collect();
    numbers.and_then(|numbers| numbers.try_into().ok()).ok_or_else(unreadable)
}

/// A line of bit patterns as a matrix. Nothing is allocated before the line is long enough to hold them.
fn matrix(matrix: &'static str, shape: [i64; 2], line: &[u8]) -> Result<HostTensor, Problem> {
    let expected = i128::from(shape[0]) * i128::from(shape[1]);
    let wrong = |because: String| Problem::Matrix { matrix, expected, because };
    if expected * 2 - 1 > line.len() as i128 {
        return Err(wrong(format!("its line has {} bytes, too few for them", line.len())));
    }
    let mut tensor = HostTensor::zeros(DType::F16, &shape)?;
    // No more than the line is long, by the check above.
    let bits: &mut [u16] = &mut bytemuck::cast_slice_mut(tensor.bytes_mut())[..expected as usize];
    read_numbers(line, bits).map_err(wrong)?;
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mistake_has_its_status() {
        let table: &[(&str, u8)] = &[
            ("", 2),
            ("\n", 2),
            ("1 2 3", 2),
            ("1 2 3 4 5\n", 2),
            ("one 1 1 1\n0\n0\n", 2),
            ("1 1 1 99999999999999999999\n0\n0\n", 2),
            ("0 1 1 1\n0\n0\n", 3),
            ("3 1 1 1\n0\n0\n", 3),
            ("-1 1 1 1\n0\n0\n", 3),
            ("1 0 1 1\n0\n0\n", 4),
            ("1 1 -1 1\n0\n0\n", 4),
            ("2 1 1 0\n0\n0\n", 4),
            ("1 1 2 1\n", 7),
            ("1 1 2 1\n0\n0 0\n", 7),
            ("1 1 2 1\n0 0 0\n0 0\n", 7),
            ("1 1 2 1\n0 -1\n0 0\n", 7),
            ("1 1 2 1\n0 +1\n0 0\n", 7),
            ("1 1 2 1\n0 65536\n0 0\n", 7),
            ("1 1 2 1\n0 99999999999999999999\n0 0\n", 7),
            ("1 1 2 1\n0 1.0\n0 0\n", 7),
            ("1 1 2 1\n0 0x1\n0 0\n", 7),
            ("1 9223372036854775807 9223372036854775807 1\n0\n0\n", 7),
            ("1 1 2 1\n0 0\n", 8),
            ("1 1 2 1\n0 0\n0\n", 8),
            ("1 1 2 1\n0 0\n0 0 0\n", 8),
            ("1 1 2 1\n0 0\n0 a\n", 8),
            ("1 1 2 1\n0 0\n0 0\n0 0\n", 8),
            ("2 1 2 1\n0 0\n\n", 9),
            ("2 1 2 1\n0 0\n0 0\n", 9),
        ];
        for (text, status) in table {
            let problem = Request::parse(text.as_bytes()).expect_err(text);
            assert_eq!(problem.status(), *status, "{text:?}: {problem}");
            assert!(problem.reply().starts_with(format!("ERROR={status} ").as_bytes()));
            assert_eq!(problem.reply().iter().filter(|&&byte| byte == b'\n').count(), 1);
        }
    }

    #[test]
    fn the_last_line_may_end_or_not_and_blanks_may_repeat() {
        for text in
            ["1 1 1 1\n15360\n15360", "1 1 1 1\r\n15360\r\n15360\r\n\r\n", " 1  1\t1 1 \n 15360 \n\t15360\n"]
        {
            let reply = Request::parse(text.as_bytes()).unwrap().run(&Device::cpu(), u32::MAX).unwrap();
            let reply = String::from_utf8(reply).unwrap();
            assert!(reply.ends_with("RESULTS=15360\n"), "{reply}");
            assert!(reply.starts_with("DEVICE_NAME="), "{reply}");
        }
    }

    #[test]
    fn a_result_that_does_not_fit_a_reply_is_refused() {
        // N = 1: 200 numbers ask for 10,000.
        let column = vec!["0"; 100].join(" ");
        let request = Request::parse(format!("1 100 1 100\n{column}\n{column}\n").as_bytes()).unwrap();
        let problem = request.run(&Device::cpu(), 1000).unwrap_err();
        assert_eq!(problem.status(), 10, "{problem}");
    }
}
