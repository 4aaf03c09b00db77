//! NVIDIA's cuBLASLt, where it is installed: what benchmarks measure products against.
//!
//! It is looked for like the compiler, and never needed: no product of this crate goes through it.

use std::ffi::{c_float, c_int, c_void};
use std::ptr;

use libloading::Library;

use super::argument::Workspace;
use super::gemm::{Matrix, Problem};
use super::handle::StreamHandle;
use super::library::{self, Search};
use super::runtime::GpuDevice;
use crate::error::{Error, Result};
use crate::tensor::DType;

type Raw = *mut c_void;
type Create = unsafe extern "C" fn(*mut Raw) -> c_int;
type Destroy = unsafe extern "C" fn(Raw) -> c_int;
type SetAttribute = unsafe extern "C" fn(Raw, c_int, *const c_void, usize) -> c_int;

/// `cublasLtMatmulAlgo_t`.
type Algorithm = [u64; 8];

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Found {
    algorithm: Algorithm,
    workspace_bytes: usize,
    state: c_int,
    waves: c_float,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Found>() == 96);

/// `cublasLtMatmul`: handle, product, alpha, A, its layout, B, its layout, beta, C, its layout, D, its layout, algorithm,
/// workspace, its bytes, stream.
type Multiply = unsafe extern "C" fn(
    Raw,
    Raw,
    *const f32,
    *const c_void,
    Raw,
    *const c_void,
    Raw,
    *const f32,
    *const c_void,
    Raw,
    *mut c_void,
    Raw,
    *const Algorithm,
    *mut c_void,
    usize,
    Raw,
) -> c_int;

struct Functions {
    version: unsafe extern "C" fn() -> usize,
    create: Create,
    destroy: Destroy,
    product_create: unsafe extern "C" fn(*mut Raw, c_int, c_int) -> c_int,
    product_set: SetAttribute,
    product_destroy: Destroy,
    layout_create: unsafe extern "C" fn(*mut Raw, c_int, u64, u64, i64) -> c_int,
    layout_destroy: Destroy,
    preference_create: Create,
    preference_set: SetAttribute,
    preference_destroy: Destroy,
    choose: unsafe extern "C" fn(Raw, Raw, Raw, Raw, Raw, Raw, Raw, c_int, *mut Found, *mut c_int) -> c_int,
    multiply: Multiply,
}

/// cuBLASLt on one device.
pub struct VendorBlas {
    functions: Functions,
    handle: Raw,
    device: GpuDevice,
    _library: Library,
}

/// An object of the library, destroyed when dropped.
struct Owned {
    raw: Raw,
    destroy: Destroy,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the object is live, and is not used again. A failure would leave nothing to do.
        unsafe { (self.destroy)(self.raw) };
    }
}

/// A product that the library has chosen an algorithm for. Its matrices may change, their sizes and strides may not.
pub struct VendorProduct<'a> {
    blas: &'a VendorBlas,
    product: Owned,
    /// The right operand, the left one, the result: the library counts rows along memory, so it computes the transpose.
    layouts: [Owned; 3],
    chosen: Found,
}

/// Bytes of workspace that the library may ask for: what PyTorch gives it on this generation.
static WORKSPACE: u64 = 32 << 20;

impl VendorBlas {
    /// Opens the library for a device.
    ///
    /// # Errors
    /// [`Error::LibraryMissing`] or [`Error::SymbolMissing`] where it is not installed, or what it says.
    pub fn open(device: GpuDevice) -> Result<Self> {
        let opened = Search::from_environment().open(&library::CUBLAS_LT, None, |_| Ok(()))?;
        let path = opened.path.display().to_string();
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the fields of `Functions` have the signatures that cuBLASLt documents for these names.
                *unsafe { opened.library.get($name.as_bytes()) }.map_err(|_| Error::SymbolMissing {
                    path: path.clone(),
                    symbol: $name,
                    fix: "install cuBLAS 12 or later",
                })?
            };
        }
        let functions = Functions {
            version: symbol!("cublasLtGetVersion"),
            create: symbol!("cublasLtCreate"),
            destroy: symbol!("cublasLtDestroy"),
            product_create: symbol!("cublasLtMatmulDescCreate"),
            product_set: symbol!("cublasLtMatmulDescSetAttribute"),
            product_destroy: symbol!("cublasLtMatmulDescDestroy"),
            layout_create: symbol!("cublasLtMatrixLayoutCreate"),
            layout_destroy: symbol!("cublasLtMatrixLayoutDestroy"),
            preference_create: symbol!("cublasLtMatmulPreferenceCreate"),
            preference_set: symbol!("cublasLtMatmulPreferenceSetAttribute"),
            preference_destroy: symbol!("cublasLtMatmulPreferenceDestroy"),
            choose: symbol!("cublasLtMatmulAlgoGetHeuristic"),
            multiply: symbol!("cublasLtMatmul"),
        };
        let _current = device.enter()?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is a place for the answer, and the device is current.
        check("cublasLtCreate", unsafe { (functions.create)(&mut handle) })?;
        Ok(VendorBlas { functions, handle, device, _library: opened.library })
    }

    /// Name and version: `cuBLASLt 13.1.0`.
    pub fn name(&self) -> String {
        // SAFETY: takes nothing.
        let version = unsafe { (self.functions.version)() };
        let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
        format!("cuBLASLt {major}.{minor}.{patch}")
    }

    /// Lets the library choose its algorithm for a problem with dense rows or columns.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for other strides, or what the library says.
    pub fn product(&self, problem: &Problem) -> Result<VendorProduct<'_>> {
        let sides = |matrix, rows, columns| {
            Side::of(matrix, rows, columns).ok_or_else(|| Error::Unsupported {
                what: "matrices without dense rows or columns in cuBLASLt".to_string(),
                device: self.device.to_string(),
                instead: "use a dense layout",
            })
        };
        let right = sides(problem.right, problem.reduction, problem.columns)?;
        let left = sides(problem.left, problem.rows, problem.reduction)?;
        let result = sides(problem.result, problem.rows, problem.columns)?;
        let product = self.describe(right.across, left.across)?;
        let layouts = [
            self.layout(problem.dtype, &right)?,
            self.layout(problem.dtype, &left)?,
            self.layout(problem.dtype, &result)?,
        ];
        let chosen = self.choose(&product, &layouts)?;
        Ok(VendorProduct { blas: self, product, layouts, chosen })
    }

    fn describe(&self, right_across: bool, left_across: bool) -> Result<Owned> {
        const COMPUTE_32F: c_int = 68;
        const SCALE_32F: c_int = 0;
        const TRANSPOSE_A: c_int = 3;
        const TRANSPOSE_B: c_int = 4;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a place for the answer.
        let status = unsafe { (self.functions.product_create)(&mut raw, COMPUTE_32F, SCALE_32F) };
        check("cublasLtMatmulDescCreate", status)?;
        let product = Owned { raw, destroy: self.functions.product_destroy };
        for (attribute, across) in [(TRANSPOSE_A, right_across), (TRANSPOSE_B, left_across)] {
            let value = c_int::from(across);
            // SAFETY: the attribute is an `int`, which the call copies.
            let status = unsafe {
                (self.functions.product_set)(raw, attribute, (&raw const value).cast(), size_of_val(&value))
            };
            check("cublasLtMatmulDescSetAttribute", status)?;
        }
        Ok(product)
    }

    fn layout(&self, dtype: DType, side: &Side) -> Result<Owned> {
        const R_16F: c_int = 2;
        const R_16BF: c_int = 14;
        let dtype = if dtype == DType::BF16 { R_16BF } else { R_16F };
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a place for the answer.
        let status =
            unsafe { (self.functions.layout_create)(&mut raw, dtype, side.length, side.count, side.stride) };
        check("cublasLtMatrixLayoutCreate", status)?;
        Ok(Owned { raw, destroy: self.functions.layout_destroy })
    }

    fn choose(&self, product: &Owned, [right, left, result]: &[Owned; 3]) -> Result<Found> {
        const MAX_WORKSPACE: c_int = 1;
        const NOT_SUPPORTED: c_int = 15;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is a place for the answer.
        check("cublasLtMatmulPreferenceCreate", unsafe { (self.functions.preference_create)(&mut raw) })?;
        let preference = Owned { raw, destroy: self.functions.preference_destroy };
        let (mut found, mut count) = (Found::default(), 0);
        let _current = self.device.enter()?;
        // SAFETY: the attribute is a 64-bit number, which the call copies; all objects are live, and there is a place
        // for the one answer.
        let status = unsafe {
            let bytes = (&raw const WORKSPACE).cast();
            check(
                "cublasLtMatmulPreferenceSetAttribute",
                (self.functions.preference_set)(preference.raw, MAX_WORKSPACE, bytes, size_of::<u64>()),
            )?;
            (self.functions.choose)(
                self.handle,
                product.raw,
                right.raw,
                left.raw,
                result.raw,
                result.raw,
                preference.raw,
                1,
                &mut found,
                &mut count,
            )
        };
        check(
            "cublasLtMatmulAlgoGetHeuristic",
            if count == 0 && status == 0 { NOT_SUPPORTED } else { status },
        )?;
        Ok(found)
    }
}

impl Drop for VendorBlas {
    fn drop(&mut self) {
        if let Ok(_current) = self.device.enter() {
            // SAFETY: products borrow the library, so nothing uses the handle any more.
            unsafe { (self.functions.destroy)(self.handle) };
        }
    }
}

impl VendorProduct<'_> {
    /// Bytes of workspace that a launch needs.
    pub fn workspace_bytes(&self) -> u64 {
        self.chosen.workspace_bytes as u64
    }

    /// Puts the product on a stream.
    ///
    /// # Errors
    /// [`Error::WorkspaceTooSmall`], or what the library says.
    ///
    /// # Safety
    /// The addresses of `problem` and the workspace must be memory of this device of the sizes that the product was
    /// chosen for, and stay so until the stream has come this far; `stream` must be live and of this device.
    pub unsafe fn launch(&self, problem: &Problem, workspace: Workspace, stream: StreamHandle) -> Result<()> {
        if workspace.bytes < self.workspace_bytes() {
            return Err(Error::WorkspaceTooSmall { found: workspace.bytes, needed: self.workspace_bytes() });
        }
        let address = |matrix: Matrix| ptr::without_provenance_mut::<c_void>(matrix.address as usize);
        let [right, left, result] = &self.layouts;
        let to = address(problem.result);
        let _current = self.blas.device.enter()?;
        // SAFETY: the caller's promise; the objects are live and the factors are copied.
        let status = unsafe {
            (self.blas.functions.multiply)(
                self.blas.handle,
                self.product.raw,
                &1.0,
                address(problem.right),
                right.raw,
                address(problem.left),
                left.raw,
                &0.0,
                to,
                result.raw,
                to,
                result.raw,
                &self.chosen.algorithm,
                ptr::without_provenance_mut(workspace.address as usize),
                workspace.bytes as usize,
                ptr::without_provenance_mut(stream.address()),
            )
        };
        check("cublasLtMatmul", status)
    }
}

/// A matrix as the library takes it: lines of elements that lie side by side.
struct Side {
    length: u64,
    count: u64,
    stride: i64,
    /// The lines are the matrix's columns, not its rows.
    across: bool,
}

impl Side {
    fn of(matrix: Matrix, rows: i64, columns: i64) -> Option<Self> {
        let line = |length: i64, count: i64, stride: i64, element: i64, across| {
            let stride = if count > 1 { stride } else { length };
            let dense = (length <= 1 || element == 1) && stride >= length;
            dense.then_some(Side { length: length as u64, count: count as u64, stride, across })
        };
        line(columns, rows, matrix.row_stride, matrix.column_stride, false)
            .or_else(|| line(rows, columns, matrix.column_stride, matrix.row_stride, true))
    }
}

fn check(call: &'static str, status: c_int) -> Result<()> {
    match status {
        0 => Ok(()),
        code => Err(Error::Driver { call, code, message: words(code).to_string() }),
    }
}

/// `cublasStatus_t` in words.
fn words(code: c_int) -> &'static str {
    match code {
        1 => "CUBLAS_STATUS_NOT_INITIALIZED",
        3 => "CUBLAS_STATUS_ALLOC_FAILED",
        7 => "CUBLAS_STATUS_INVALID_VALUE",
        8 => "CUBLAS_STATUS_ARCH_MISMATCH",
        13 => "CUBLAS_STATUS_EXECUTION_FAILED",
        14 => "CUBLAS_STATUS_INTERNAL_ERROR",
        15 => "CUBLAS_STATUS_NOT_SUPPORTED",
        _ => "a status of cuBLAS",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_rows_and_columns_are_told_apart() {
        let rows = Matrix { address: 0, row_stride: 7, column_stride: 1 };
        let side = Side::of(rows, 3, 5).unwrap();
        assert_eq!((side.length, side.count, side.stride, side.across), (5, 3, 7, false));
        let side = Side::of(rows.transposed(), 5, 3).unwrap();
        assert_eq!((side.length, side.count, side.stride, side.across), (5, 3, 7, true));
        assert!(Side::of(Matrix { column_stride: 2, ..rows }, 3, 5).is_none());
    }
}
