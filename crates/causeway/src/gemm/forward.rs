//! Arguments of the product.

use super::validate::{self, Check};
use super::{Algorithm, Sizes};
use crate::backend::cpu;
use crate::backend::gpu::gemm::{self, Problem};
use crate::backend::gpu::plan::{DeviceFacts, Plan};
use crate::checks;
use crate::device::Device;
use crate::error::Result;
use crate::tensor::{TensorMut, TensorRef};

/// `C[m,n] = Σ_k A[m,k] · B[k,n]`; see the [module](super) for layouts and rounding.
#[derive(Debug)]
pub struct Forward<'a> {
    /// `(M, K)`; f16 or bf16.
    pub a: TensorRef<'a>,
    /// `(K, N)`, of A's dtype.
    pub b: TensorRef<'a>,
    /// How the sums are formed.
    pub algorithm: Algorithm,
    /// `(M, N)`, of A's dtype: the result.
    pub c: TensorMut<'a>,
}

impl Forward<'_> {
    /// Checks every argument against every other one.
    ///
    /// # Errors
    /// One [`Error`](crate::Error) variant per cause.
    pub fn validate(&self) -> Result<Sizes> {
        let (a, b, c) = (self.a.meta(), self.b.meta(), self.c.meta());
        let (m, k) = validate::matrix("A", "(M, K)", a)?;
        let (b_k, n) = validate::matrix("B", "(K, N)", b)?;
        let (c_m, c_n) = validate::matrix("C", "(M, N)", c)?;
        checks::size("B", "K", b_k, k, "the K of A")?;
        checks::size("C", "M", c_m, m, "the M of A")?;
        checks::size("C", "N", c_n, n, "the N of B")?;
        let check = Check::against_a(a)?;
        check.operand("B", b)?;
        check.result("C", c)?;
        Ok(Sizes { m, n, k })
    }

    /// Validates, then computes C on `device`.
    ///
    /// # Errors
    /// Those of [`Forward::validate`], and the device's. After an argument error nothing has been written.
    pub fn run(&mut self, device: &Device) -> Result<()> {
        let sizes = self.validate()?;
        device.expect("A", self.a.location())?;
        if let Device::Cpu(cpu) = device {
            cpu::gemm::forward(*cpu, self);
            return Ok(());
        }
        // SAFETY: the planner gets the validated views, which are where the device is.
        unsafe { device.execute(|facts| gemm::plan(&Problem::forward(self, &sizes), facts)) }
    }

    /// The launch that the call is on a GPU with these facts; `None` if the result is empty.
    ///
    /// # Errors
    /// As for validation.
    pub fn plan(&self, facts: &DeviceFacts) -> Result<Option<Plan>> {
        gemm::plan(&Problem::forward(self, &self.validate()?), facts)
    }
}
