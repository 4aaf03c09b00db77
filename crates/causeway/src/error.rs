//! One typed error per cause.
//!
//! Every argument error names the argument, what it was, what is allowed and, where it is not
//! obvious, the fix. An operation that returns an error has written nothing.

mod code;

use crate::dims::{Dims, Location, TooManyAxes};
use crate::dtype::DType;

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, one variant per cause.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // ---- tensors --------------------------------------------------------------------------------
    /// A tensor has the wrong number of axes.
    #[error("{argument} has shape {found}: expected {expected}{}", of_conv1d(argument, found))]
    Rank {
        /// Name of the argument.
        argument: &'static str,
        /// The logical axes, for example `(batch, dim, seqlen)`.
        expected: &'static str,
        /// The shape that was given.
        found: Dims,
    },
    /// One axis of a tensor disagrees with another argument.
    #[error("{argument} has {axis} {found}: expected {expected}, {because}")]
    Size {
        /// Name of the argument.
        argument: &'static str,
        /// The axis, by its logical name.
        axis: &'static str,
        /// The size that was given.
        found: i64,
        /// The size that is required.
        expected: i64,
        /// What requires it, for example `the dim of x`.
        because: &'static str,
    },
    /// x and weight of a convolution have different numbers of channels. Either may be the wrong one.
    #[error(
        "x has shape {x} and weight has shape {weight}: expected the same dim in both, the second axis of x and \
         the first of weight{}",
        transposed(x, weight)
    )]
    Channels {
        /// The shape of x.
        x: Dims,
        /// The shape of weight.
        weight: Dims,
    },
    /// The convolution is too narrow or too wide.
    #[error("weight has width {found}: widths 1 to 256 are supported")]
    Width {
        /// The width that was given.
        found: i64,
    },
    /// A decode state is too short to hold the positions that the next output reads.
    #[error(
        "{argument} holds {found} positions: a convolution of width {width} needs at least {minimum}; \
         allocate (·, dim, {minimum}) or longer",
        minimum = width - 1
    )]
    StateTooShort {
        /// Name of the argument.
        argument: &'static str,
        /// The state length that was given.
        found: i64,
        /// The width of the convolution.
        width: i64,
    },
    /// A tensor has a dtype that the argument does not take.
    #[error("{argument} has dtype {found}: expected {}, {because}", DType::list(allowed))]
    DTypeMismatch {
        /// Name of the argument.
        argument: &'static str,
        /// The dtype that was given.
        found: DType,
        /// The dtypes that are allowed here.
        allowed: Vec<DType>,
        /// What requires it, for example `the dtype of x`.
        because: &'static str,
    },
    /// A tensor lives in another memory than the rest of the call.
    #[error("{argument} is on {found}: expected {expected}, {because}; copy it there first")]
    WrongLocation {
        /// Name of the argument.
        argument: &'static str,
        /// Where the tensor is.
        found: Location,
        /// Where it has to be.
        expected: Location,
        /// What requires it.
        because: &'static str,
    },
    /// Two elements of an output may share one address, so the result would depend on the order of writes.
    #[error(
        "{argument} has shape {shape} and strides {strides}, which map several elements to one address: \
         an output needs a place for each element; pass a tensor that is not expanded"
    )]
    OverlappingOutput {
        /// Name of the argument.
        argument: &'static str,
        /// Its shape.
        shape: Dims,
        /// Its strides, in elements.
        strides: Dims,
    },
    /// A view reaches past the memory that it was made from.
    #[error(
        "a view of shape {shape} with strides {strides} at offset {offset} touches elements {lowest} to \
         {highest}, but the slice holds {available}"
    )]
    OutOfBounds {
        /// Shape of the view.
        shape: Dims,
        /// Its strides, in elements.
        strides: Dims,
        /// Offset of its first element.
        offset: i64,
        /// Lowest element index that it touches.
        lowest: i128,
        /// Highest element index that it touches.
        highest: i128,
        /// Elements that there are.
        available: usize,
    },
    /// A shape with a negative size.
    #[error("shape {shape} has a negative size: sizes are 0 or more")]
    NegativeSize {
        /// The shape that was given.
        shape: Dims,
    },
    /// A shape and strides of different lengths, or more axes than a view can have.
    #[error("shape has {shape} axes and strides {strides}: both need the same number, at most 4")]
    AxisCount {
        /// Axes in the shape.
        shape: usize,
        /// Axes in the strides.
        strides: usize,
    },
    /// Sizes whose product, in bytes, does not fit 63 bits.
    #[error("a tensor of shape {shape} and dtype {dtype} is larger than the address space")]
    TooLarge {
        /// The shape that was given.
        shape: Dims,
        /// The dtype that was given.
        dtype: DType,
    },
    /// Memory that the system does not give.
    #[error("no memory for a tensor of shape {shape} and dtype {dtype}, {bytes} bytes")]
    OutOfMemory {
        /// The shape that was asked for.
        shape: Dims,
        /// Its dtype.
        dtype: DType,
        /// Bytes that it would have.
        bytes: usize,
    },

    /// A result larger than the caller allows.
    #[error(
        "a result of shape {shape} and dtype {dtype} has {bytes} bytes: at most {limit} are allowed here"
    )]
    ResultTooLarge {
        /// The shape that the arguments ask for.
        shape: Dims,
        /// The dtype of the result.
        dtype: DType,
        /// Bytes that it would have.
        bytes: i128,
        /// The most that is allowed.
        limit: u64,
    },

    // ---- values ---------------------------------------------------------------------------------
    /// An index selects nothing.
    #[error("{argument}[{position}] is {value}: expected {minimum} to {maximum}, {because}")]
    IndexOutOfRange {
        /// Name of the argument.
        argument: &'static str,
        /// Which entry.
        position: i64,
        /// Its value.
        value: i64,
        /// Smallest value allowed.
        minimum: i64,
        /// Largest value allowed.
        maximum: i64,
        /// What sets the range, for example `the rows of conv_state`.
        because: &'static str,
    },
    /// Two batch entries select one state row, so the result would depend on their order.
    #[error(
        "{argument}[{first}] and {argument}[{second}] are both {value}: each row may be updated by one batch \
         entry only; use a negative index for padded entries"
    )]
    DuplicateIndex {
        /// Name of the argument.
        argument: &'static str,
        /// First entry with the value.
        first: i64,
        /// Second entry with the value.
        second: i64,
        /// The shared value.
        value: i64,
    },
    /// `cu_seqlens` does not begin at zero.
    #[error("cu_seqlens[0] is {found}: the first sequence starts at 0")]
    CuSeqlensStart {
        /// The value that was given.
        found: i64,
    },
    /// `cu_seqlens` goes down.
    #[error("cu_seqlens[{position}] is {value}, less than the {before} before it: boundaries never decrease")]
    CuSeqlensDecrease {
        /// Position of the smaller value.
        position: i64,
        /// Its value.
        value: i64,
        /// The value before it.
        before: i64,
    },
    /// `cu_seqlens` does not end where x does.
    #[error("cu_seqlens ends at {found}: expected {total}, the length of x")]
    CuSeqlensEnd {
        /// The last value.
        found: i64,
        /// Length of x.
        total: i64,
    },
    /// `cu_seqlens` with no boundary at all.
    #[error("cu_seqlens is empty: n sequences need n + 1 boundaries, the first of them 0")]
    CuSeqlensEmpty,

    // ---- combinations ---------------------------------------------------------------------------
    /// An argument that has no meaning in this call.
    #[error("{argument} is given, but {because}")]
    Unexpected {
        /// Name of the argument.
        argument: &'static str,
        /// Why it has no meaning here.
        because: &'static str,
    },
    /// Channels that are no whole number of heads.
    #[error("norm has head_dim {found}: expected a divisor of dim, which is {dim}")]
    HeadDim {
        /// The channels of a head that were given.
        found: i64,
        /// All channels.
        dim: i64,
    },
    /// A number of a norm that it cannot have.
    #[error("norm has {name} {found:?}: expected a number {expected}")]
    NormNumber {
        /// Which one.
        name: &'static str,
        /// What it was.
        found: f64,
        /// What it may be.
        expected: &'static str,
    },
    /// Text that describes no norm.
    #[error("norm is {found:?}: expected head_dim, or head_dim,eps, or head_dim,eps,scale")]
    UnknownNorm {
        /// The text that was given.
        found: String,
    },
    /// Text that names no activation.
    #[error("activation is {found:?}: expected none, silu or swish")]
    UnknownActivation {
        /// The text that was given.
        found: String,
    },

    /// Text that names no GEMM algorithm.
    #[error("algorithm is {found:?}: expected fast or exact")]
    UnknownAlgorithm {
        /// The text that was given.
        found: String,
    },

    // ---- devices --------------------------------------------------------------------------------
    /// Text that names no device.
    #[error(
        "device is {found:?}: expected best, cpu, cpu:portable (or neon, avx2, avx512), cuda, cuda:N, hip or hip:N"
    )]
    UnknownDevice {
        /// The text that was given.
        found: String,
    },
    /// A property that this backend does not have.
    #[error("{what} is not supported on {device}: {instead}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// The device that was asked.
        device: String,
        /// What to do instead.
        instead: &'static str,
    },

    // ---- GPU drivers and compilers --------------------------------------------------------------
    /// A vendor's library is not on this machine, or no copy of it can be used.
    #[error(
        "{library} was not found; looked in {}{}; to install it: {install}",
        searched.join(", "),
        if refused.is_empty() { String::new() } else { format!("; could not use {}", refused.join("; ")) }
    )]
    LibraryMissing {
        /// The library, by its common name and its file.
        library: &'static str,
        /// Every place that was looked at.
        searched: Vec<String>,
        /// Files that were found but could not be used, each with the reason.
        refused: Vec<String>,
        /// What installs it.
        install: &'static str,
    },
    /// A library lacks a function: it is older than this crate can use.
    #[error("{path} has no function {symbol}: it is too old; {fix}")]
    SymbolMissing {
        /// The library's file.
        path: String,
        /// The function.
        symbol: &'static str,
        /// What to update.
        fix: &'static str,
    },
    /// The driver is there, but no device is.
    #[error("no {vendor} device: {because}; {}", where_to_look(vendor))]
    NoDevice {
        /// `cuda` or `hip`.
        vendor: &'static str,
        /// What the driver said.
        because: String,
    },
    /// A device number past the last one.
    #[error("device is {vendor}:{found}: this machine has {available}, numbered from 0")]
    DeviceOrdinal {
        /// `cuda` or `hip`.
        vendor: &'static str,
        /// The number that was given.
        found: u32,
        /// How many devices there are.
        available: u32,
    },
    /// A device older than the kernels can run on.
    #[error("{device} is {architecture}: {required} is needed; use the cpu device instead")]
    DeviceUnsupported {
        /// The device.
        device: String,
        /// Its architecture.
        architecture: String,
        /// What is supported.
        required: &'static str,
    },
    /// The device has no room for an allocation. Nothing was launched.
    #[error(
        "{device} is out of memory: {requested} bytes were asked for, {free} are free; free some, or use a \
         smaller batch"
    )]
    OutOfDeviceMemory {
        /// The device.
        device: String,
        /// Bytes that were asked for.
        requested: u64,
        /// Bytes that were free just after.
        free: u64,
    },
    /// Compiled code that the device does not load.
    #[error("{device} does not load code for {architecture}: {message}; the compiler was {compiler}")]
    InvalidImage {
        /// The device.
        device: String,
        /// The architecture that the code is for.
        architecture: String,
        /// What the driver said.
        message: String,
        /// The compiler and its version: one that is newer than the driver is the usual cause.
        compiler: String,
    },
    /// A kernel failed, or the device went away; the driver refuses all further work in this process.
    #[error("{call} failed: {message}; the device is lost to this process: start it again")]
    DeviceLost {
        /// The driver call that reported it; the cause may be an earlier launch, of any library.
        call: &'static str,
        /// What the driver said.
        message: String,
    },
    /// Any other answer of the driver.
    #[error("{call} failed: {message}")]
    Driver {
        /// The driver call.
        call: &'static str,
        /// Its status code.
        code: i32,
        /// What the driver said.
        message: String,
    },
    /// The run-time compiler refused a kernel.
    #[error(
        "compiling {entry} for {architecture} failed{}\noptions: {}\n{log}",
        position.as_ref().map(|at| format!(" at {at}")).unwrap_or_default(),
        options.join(" ")
    )]
    Compile {
        /// The kernel's entry point.
        entry: String,
        /// The architecture.
        architecture: String,
        /// The first place that the log names, for example `kernels/portable.cuh:12`.
        position: Option<String>,
        /// The options that the compiler got.
        options: Vec<String>,
        /// What the compiler said.
        log: String,
    },
    /// The compiler is older than the architecture.
    #[error("{compiler} does not know {architecture}: {fix}")]
    CompilerTooOld {
        /// The compiler and its version.
        compiler: String,
        /// The architecture.
        architecture: String,
        /// What to install.
        fix: String,
    },
    /// Text that names no architecture that kernels can be compiled for.
    #[error(
        "architecture is {found:?}: expected sm_75 or later (for example sm_90a), or gfx90a, gfx942, gfx950, \
         gfx1030, gfx110x or gfx120x (features may follow: gfx90a:sramecc+:xnack-)"
    )]
    UnknownArchitecture {
        /// The text that was given.
        found: String,
    },
    /// A kernel that needs memory from its caller did not get enough.
    #[error(
        "the workspace holds {found} bytes: this launch needs {needed}, at an address that is a multiple of 256"
    )]
    WorkspaceTooSmall {
        /// Bytes that were given.
        found: u64,
        /// Bytes that are needed.
        needed: u64,
    },
    /// A launch that no device could make: a defect in a plan.
    #[error("{entry} in {header} cannot be launched: {because}")]
    InvalidPlan {
        /// The kernel's entry point.
        entry: String,
        /// The file that holds the kernel.
        header: String,
        /// What is wrong.
        because: String,
    },
    /// Device code that was to come from a folder.
    #[error(
        "CAUSEWAY_KERNELS_DIR names no folder of kernels ({because}): expected one with the .cuh files of kernels/; unset it to use those built in"
    )]
    KernelsDirectory {
        /// What is wrong with it.
        because: String,
    },
    /// Copies between host and device memory of different lengths.
    #[error("the device buffer holds {device} bytes and the host slice {host}: a copy needs the same length")]
    CopyLength {
        /// Bytes on the device.
        device: u64,
        /// Bytes on the host.
        host: u64,
    },
    /// A key of the kernel cache that leads to no entry.
    #[error("the kernel cache has no usable entry {key:?}: {because}")]
    CacheEntry {
        /// The key, or the beginning of one, that was given.
        key: String,
        /// What is wrong.
        because: String,
    },

    // ---- the simulator --------------------------------------------------------------------------
    /// Text that names no simulated device.
    #[error(
        "device is {found:?}: expected sim:32, sim:64, sim:slow, sim:clusters or an architecture such as sim:gfx942, and if wanted an order \
         after it: sim:64:ascending, sim:64:descending, sim:64:shuffled or sim:64:shuffled:SEED"
    )]
    UnknownSimulator {
        /// The text that was given.
        found: String,
    },
    /// The simulator could not compile a kernel for the host.
    #[error("the simulator has no kernel: {message}")]
    SimulatorCompiler {
        /// What is missing, or what the compiler said.
        message: String,
    },
    /// A simulated kernel did what a GPU leaves undefined.
    #[error("{entry} in kernels/{header} failed in the simulator: {message}")]
    SimulatedFault {
        /// The kernel's entry point.
        entry: String,
        /// The file that holds the kernel.
        header: String,
        /// The block, the thread, and what happened at which line.
        message: String,
    },
}

impl From<TooManyAxes> for Error {
    fn from(TooManyAxes(axes): TooManyAxes) -> Self {
        Error::AxisCount { shape: axes, strides: axes }
    }
}

/// What decides whether a process sees a GPU.
fn where_to_look(vendor: &str) -> &'static str {
    match vendor {
        "hip" => "check that rocminfo lists one, and HIP_VISIBLE_DEVICES",
        _ => "check that nvidia-smi lists one, and CUDA_VISIBLE_DEVICES",
    }
}

/// Which of the two was most likely given with its axes the other way round.
fn transposed(x: &Dims, weight: &Dims) -> &'static str {
    match (&**x, &**weight) {
        (&[_, channels, _], &[_, dim]) if channels == dim => "; if weight is (width, dim), transpose it",
        (&[_, _, last], &[dim, _]) if last == dim => "; if x is (batch, seqlen, dim), swap its last two axes",
        _ => "",
    }
}

fn of_conv1d(argument: &str, shape: &Dims) -> &'static str {
    match (argument, &**shape) {
        ("weight", [_, 1, _]) => "; for the (dim, 1, width) of a torch.nn.Conv1d, pass weight[:, 0]",
        _ => "",
    }
}
