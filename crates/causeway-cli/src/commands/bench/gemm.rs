//! Timing matrix products on a GPU, in turns with the vendor's library.
//!
//! As for convolutions, a graph holds launches on every set of matrices in turn, and is timed between two events; the
//! library's graph works on the same matrices. Its time stands where the floor's does.

use std::time::{Duration, Instant};

use causeway::backend::gpu::artifact::{Artifacts, Launch};
use causeway::backend::gpu::gemm::{self as planner, Problem};
use causeway::backend::gpu::plan::Plan;
use causeway::backend::gpu::vendor_blas::{VendorBlas, VendorProduct};
use causeway::backend::gpu::{DeviceBuffer, Graph, Stream};
use causeway::gemm::{Forward, GradA, GradB};
use causeway::{Arrangement, Device, DeviceTensor, HostTensor, Result};
use causeway_verify::evidence::Measurement;
use causeway_verify::suite::Gemm;

use super::replays::Replays;
use super::rows;

/// What a graph takes, at least: its own start is spread over its launches.
const GRAPH_SECONDS: f64 = 4e-3;
/// Most launches of a graph, and most sets of matrices.
const MAX_LAUNCHES: usize = 512;

/// One of the calls of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Product {
    Forward,
    GradA,
    GradB,
    GradAB,
}

impl Product {
    pub const ALL: [Product; 4] = [Product::Forward, Product::GradA, Product::GradB, Product::GradAB];

    pub fn name(self) -> &'static str {
        match self {
            Product::Forward => "forward",
            Product::GradA => "grad-a",
            Product::GradB => "grad-b",
            Product::GradAB => "grad-ab",
        }
    }

    /// The name that verifications give it.
    pub const fn operation(self) -> &'static str {
        match self {
            Product::Forward => "gemm-forward",
            Product::GradA => "gemm-grad-a",
            Product::GradB => "gemm-grad-b",
            Product::GradAB => "gemm-grad-ab",
        }
    }

    /// Floating-point operations: a multiplication and an addition per term.
    pub fn operations(self, problem: &Gemm) -> f64 {
        let products = if self == Product::GradAB { 2.0 } else { 1.0 };
        2.0 * products * problem.m as f64 * problem.n as f64 * problem.k as f64
    }
}

/// A product's matrices.
struct Set {
    a: DeviceTensor,
    b: DeviceTensor,
    c: DeviceTensor,
    grad_a: DeviceTensor,
    grad_b: DeviceTensor,
}

impl Set {
    fn new(problem: &Gemm, stream: &Stream, pattern: &[u8]) -> Result<Self> {
        let matrix = |shape: [i64; 2]| {
            DeviceTensor::tiled(stream, &Arrangement::dense(problem.dtype, &shape, 0)?, pattern)
        };
        Ok(Set {
            a: matrix([problem.m, problem.k])?,
            b: matrix([problem.k, problem.n])?,
            c: matrix([problem.m, problem.n])?,
            grad_a: matrix([problem.m, problem.k])?,
            grad_b: matrix([problem.k, problem.n])?,
        })
    }

    /// The products of a call, as planners see them. C serves as grad_C too.
    fn problems(&mut self, product: Product, problem: &Gemm) -> Result<Vec<Problem>> {
        let algorithm = problem.algorithm;
        let mut problems = Vec::new();
        if product == Product::Forward {
            let op = Forward { a: self.a.view(), b: self.b.view(), algorithm, c: self.c.view_mut() };
            problems.push(Problem::forward(&op, &op.validate()?));
        }
        if matches!(product, Product::GradA | Product::GradAB) {
            let (grad_c, b) = (self.c.view(), self.b.view());
            let op = GradA { grad_c, b, algorithm, grad_a: self.grad_a.view_mut() };
            problems.push(Problem::grad_a(&op, &op.validate()?));
        }
        if matches!(product, Product::GradB | Product::GradAB) {
            let (grad_c, a) = (self.c.view(), self.a.view());
            let op = GradB { grad_c, a, algorithm, grad_b: self.grad_b.view_mut() };
            problems.push(Problem::grad_b(&op, &op.validate()?));
        }
        Ok(problems)
    }

    fn results(&mut self, product: Product) -> Vec<&mut DeviceTensor> {
        match product {
            Product::Forward => vec![&mut self.c],
            Product::GradA => vec![&mut self.grad_a],
            Product::GradB => vec![&mut self.grad_b],
            Product::GradAB => vec![&mut self.grad_a, &mut self.grad_b],
        }
    }
}

/// Everything that a row's launches use.
struct Bench<'a> {
    stream: &'a Stream,
    sets: Vec<Set>,
    /// Of each set, the call's products.
    problems: Vec<Vec<Problem>>,
    plans: Vec<Vec<Plan>>,
    vendor: Vec<VendorProduct<'a>>,
    workspace: DeviceBuffer,
}

/// Measures one call, in turns with cuBLASLt, on matrices that go through `rotation` bytes.
pub(super) fn measure(
    case: &str,
    problem: &Gemm,
    product: Product,
    stream: &Stream,
    blas: &VendorBlas,
    budget: Duration,
    rotation: u64,
    kernels: &mut Artifacts,
) -> Result<(Measurement, Vec<Launch>)> {
    let mut bench = Bench::new(case, problem, product, stream, blas, rotation)?;
    let noted = rows::note(&Device::Gpu(stream.clone()), product.operation(), &bench.plans[0], kernels)?;
    let launches = bench.launches()?;
    let work = bench.record(launches, Bench::launch)?;
    let vendor = bench.record(launches, Bench::launch_vendor)?;
    // SAFETY: the recorded launches use the matrices and the workspace of `bench`, and each replay is waited for.
    let rounds = unsafe { Replays { stream, call: &work, floor: &vendor, calls: launches }.measure(budget) }?;
    let bytes: u64 = bench.plans[0].iter().map(|plan| plan.read_bytes + plan.written_bytes).sum();
    let wrong = bench.check(product)?;
    Ok((rounds.measurement(blas.name(), bytes, (bench.sets.len(), bytes), wrong), noted))
}

impl<'a> Bench<'a> {
    fn new(
        case: &str,
        problem: &Gemm,
        product: Product,
        stream: &'a Stream,
        blas: &'a VendorBlas,
        rotation: u64,
    ) -> Result<Self> {
        // Random numbers whose period is no multiple of anything that matters.
        let sample = Gemm { m: 1021, n: 1, k: 1031, ..problem.clone() }.tensors(case)?.a;
        let per_set = 2 * (problem.m * problem.k + problem.k * problem.n + problem.m * problem.n) as u64;
        let count = rotation.div_ceil(per_set.max(1)).clamp(2, MAX_LAUNCHES as u64);
        let mut sets: Vec<_> =
            (0..count).map(|_| Set::new(problem, stream, sample.bytes())).collect::<Result<_>>()?;
        let problems: Vec<_> =
            sets.iter_mut().map(|set| set.problems(product, problem)).collect::<Result<_>>()?;
        let facts = stream.device().facts();
        let planned = |problems: &Vec<Problem>| -> Result<Vec<Plan>> {
            let plans = problems.iter().map(|problem| planner::plan(problem, facts));
            Ok(plans.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
        };
        let plans: Vec<_> = problems.iter().map(planned).collect::<Result<_>>()?;
        let vendor: Vec<_> =
            problems[0].iter().map(|problem| blas.product(problem)).collect::<Result<_>>()?;
        let ours = plans[0].iter().map(|plan| plan.workspace_bytes);
        let bytes = ours.chain(vendor.iter().map(VendorProduct::workspace_bytes)).max().unwrap_or(0);
        let workspace = DeviceBuffer::new(stream, bytes)?;
        Ok(Bench { stream, sets, problems, plans, vendor, workspace })
    }

    fn launch(&self, set: usize) -> Result<()> {
        self.plans[set].iter().try_for_each(|plan| {
            // SAFETY: plans are made from `self.sets`, which live as long as `self`, as does the workspace; all work
            // on them goes on the one stream, and replays and `check` wait for it.
            unsafe {
                self.stream.device().launch(plan, self.stream.handle(), Some(self.workspace.as_workspace()))
            }
        })
    }

    fn launch_vendor(&self, set: usize) -> Result<()> {
        self.problems[set].iter().zip(&self.vendor).try_for_each(|(problem, product)| {
            // SAFETY: as above; all sets have the sizes and strides of the first.
            unsafe { product.launch(problem, self.workspace.as_workspace(), self.stream.handle()) }
        })
    }

    /// Calls of a graph: whole rounds of the sets, for long enough.
    fn launches(&self) -> Result<usize> {
        let mut seconds = f64::INFINITY;
        // The first is compiled and loaded; the second tells.
        for _ in 0..2 {
            self.launch(0)?;
            self.launch_vendor(0)?;
            self.stream.synchronize()?;
            let start = Instant::now();
            self.launch(0)?;
            self.stream.synchronize()?;
            seconds = start.elapsed().as_secs_f64();
        }
        let wanted = (GRAPH_SECONDS / seconds).ceil() as usize;
        Ok(wanted.clamp(1, MAX_LAUNCHES).next_multiple_of(self.sets.len()))
    }

    fn record(&self, launches: usize, launch: impl Fn(&Self, usize) -> Result<()>) -> Result<Graph> {
        self.stream.record(|| (0..launches).try_for_each(|at| launch(self, at % self.sets.len())))
    }

    /// What is wrong with the results: of two calls with poisoned outputs the bits must agree, and both must agree with
    /// the library within what a sum's order and a rounding can change.
    fn check(&mut self, product: Product) -> Result<Option<String>> {
        let mut ours = Vec::new();
        for _ in 0..2 {
            for result in self.sets[0].results(product) {
                result.fill_bytes(0xff)?;
            }
            self.launch(0)?;
            ours.push(self.download(product)?);
        }
        for result in self.sets[0].results(product) {
            result.fill_bytes(0xff)?;
        }
        self.launch_vendor(0)?;
        let theirs = self.download(product)?;
        if ours[0].iter().zip(&ours[1]).any(|(first, second)| first.bytes() != second.bytes()) {
            return Ok(Some("results differ from one call to the next".to_string()));
        }
        let apart = ours.swap_remove(0).into_iter().zip(theirs).map(|(ours, theirs)| distance(ours, theirs));
        let worst = apart
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .fold(0.0, |worst: f64, next| if next.is_nan() { next } else { worst.max(next) });
        Ok((worst.is_nan() || worst > SAME).then(|| format!("{worst:.1e} apart from the library")))
    }

    fn download(&mut self, product: Product) -> Result<Vec<HostTensor>> {
        self.sets[0].results(product).into_iter().map(|result| result.download()).collect()
    }
}

/// Two results that are rounded to bf16 differ by less than this in all, whatever the order of their sums.
const SAME: f64 = 4e-3;

/// Norm of the difference by norm, over every 61st element: results are large, and a wrong tile has thousands.
fn distance(ours: HostTensor, theirs: HostTensor) -> Result<f64> {
    const EVERY: i64 = 61;
    let sample = |tensor: HostTensor| -> Result<Vec<f64>> {
        let count = (tensor.element_count() as u64).div_ceil(EVERY as u64) as i64;
        Ok(tensor.restrided(0, &[count], &[EVERY])?.to_f64())
    };
    let (mut difference, mut norm) = (0.0, 0.0);
    for (ours, theirs) in sample(ours)?.into_iter().zip(sample(theirs)?) {
        difference += (ours - theirs) * (ours - theirs);
        norm += theirs * theirs;
    }
    Ok((difference / norm).sqrt())
}
