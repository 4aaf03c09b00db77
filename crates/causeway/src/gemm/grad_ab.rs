//! Arguments of both gradients at once.

use super::validate::{self, Check};
use super::{Algorithm, GradA, GradB, Sizes};
use crate::backend::cpu;
use crate::backend::gpu::gemm::{self, Problem};
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::checks;
use crate::device::Device;
use crate::error::Result;
use crate::tensor::{TensorMut, TensorRef};

/// [`GradA`] and [`GradB`] in one call: the whole backward pass of [`Forward`](super::Forward).
#[derive(Debug)]
pub struct GradAB<'a> {
    /// `(M, N)`; f16 or bf16: the gradient of C.
    pub grad_c: TensorRef<'a>,
    /// `(M, K)`, of grad_C's dtype.
    pub a: TensorRef<'a>,
    /// `(K, N)`, of grad_C's dtype.
    pub b: TensorRef<'a>,
    /// How the sums are formed.
    pub algorithm: Algorithm,
    /// `(M, K)`, of grad_C's dtype: the gradient of A.
    pub grad_a: TensorMut<'a>,
    /// `(K, N)`, of grad_C's dtype: the gradient of B.
    pub grad_b: TensorMut<'a>,
}

impl GradAB<'_> {
    /// The same call as its two parts.
    pub(crate) fn split(&mut self) -> (GradA<'_>, GradB<'_>) {
        let (grad_c, algorithm) = (self.grad_c, self.algorithm);
        (
            GradA { grad_c, b: self.b, algorithm, grad_a: self.grad_a.reborrow() },
            GradB { grad_c, a: self.a, algorithm, grad_b: self.grad_b.reborrow() },
        )
    }

    /// Checks every argument against every other one.
    ///
    /// # Errors
    /// One [`Error`](crate::Error) variant per cause.
    pub fn validate(&self) -> Result<Sizes> {
        let (grad_c, a, b) = (self.grad_c.meta(), self.a.meta(), self.b.meta());
        let (grad_a, grad_b) = (self.grad_a.meta(), self.grad_b.meta());
        let (m, n) = validate::matrix("grad_C", "(M, N)", grad_c)?;
        let (a_m, k) = validate::matrix("A", "(M, K)", a)?;
        let (b_k, b_n) = validate::matrix("B", "(K, N)", b)?;
        let (grad_a_m, grad_a_k) = validate::matrix("grad_A", "(M, K)", grad_a)?;
        let (grad_b_k, grad_b_n) = validate::matrix("grad_B", "(K, N)", grad_b)?;
        checks::size("A", "M", a_m, m, "the M of grad_C")?;
        checks::size("B", "K", b_k, k, "the K of A")?;
        checks::size("B", "N", b_n, n, "the N of grad_C")?;
        checks::size("grad_A", "M", grad_a_m, m, "the M of grad_C")?;
        checks::size("grad_A", "K", grad_a_k, k, "the K of A")?;
        checks::size("grad_B", "K", grad_b_k, k, "the K of A")?;
        checks::size("grad_B", "N", grad_b_n, n, "the N of grad_C")?;
        let check = Check::against_grad_c(grad_c)?;
        check.operand("A", a)?;
        check.operand("B", b)?;
        check.result("grad_A", grad_a)?;
        check.result("grad_B", grad_b)?;
        Ok(Sizes { m, n, k })
    }

    /// Validates, then computes grad_A and grad_B on `device`.
    ///
    /// # Errors
    /// Those of [`GradAB::validate`], and the device's. After an argument error nothing has been written.
    pub fn run(&mut self, device: &Device) -> Result<()> {
        let sizes = self.validate()?;
        device.expect("grad_C", self.grad_c.location())?;
        if let Device::Cpu(cpu) = device {
            cpu::gemm::grad_ab(*cpu, self);
            return Ok(());
        }
        let (of_a, of_b) = self.problems(&sizes);
        for problem in [of_a, of_b] {
            // SAFETY: the planner gets the validated views, which are where the device is.
            unsafe { device.execute(|facts| gemm::plan(&problem, facts)) }?;
        }
        Ok(())
    }

    /// The launches that the call is on a GPU with these facts: those of [`GradA`] and [`GradB`], `None` for an
    /// empty result.
    ///
    /// # Errors
    /// As for validation.
    pub fn plans(&mut self, facts: &DeviceFacts) -> Result<[Option<Plan>; 2]> {
        let sizes = self.validate()?;
        let (of_a, of_b) = self.problems(&sizes);
        Ok([gemm::plan(&of_a, facts)?, gemm::plan(&of_b, facts)?])
    }

    fn problems(&mut self, sizes: &Sizes) -> (Problem, Problem) {
        let (of_a, of_b) = self.split();
        (Problem::grad_a(&of_a, sizes), Problem::grad_b(&of_b, sizes))
    }
}
