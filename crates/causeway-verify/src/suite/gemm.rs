//! Matrix products as cases: the problem, its memory and its operands.

use causeway::error::Result;
use causeway::gemm::Algorithm;
use causeway::tensor::{DType, Dims};
use causeway::{Arrangement, HostTensor};

use super::layout::GUARD_BYTES;
use super::memory::Memory;
use super::named_enum::named_enum;
use super::values::{self, Values};

/// C, grad_A and grad_B of one pair of operands.
#[derive(Debug, Clone, PartialEq)]
pub struct Gemm {
    /// Rows of A and C.
    pub m: i64,
    /// Columns of B and C.
    pub n: i64,
    /// Columns of A, rows of B.
    pub k: i64,
    /// Dtype of everything: f16 or bf16.
    pub dtype: DType,
    /// How the sums are formed. Results of `exact` are compared bit for bit.
    pub algorithm: Algorithm,
    /// Memory of A, B and grad_C.
    pub layout: MatrixLayout,
    /// Memory of C, grad_A and grad_B.
    pub output_layout: MatrixLayout,
    /// Both gradients in one call, instead of one call each.
    pub together: bool,
    /// What the operands hold: [`Values::NonFinite`], [`Values::Subnormal`] and [`Values::Overflow`] speak of A.
    pub values: Values,
    /// Matrices that lie elsewhere than their layout says.
    pub memory: Memory,
}

named_enum! {
    /// Memory layout of a matrix.
    pub enum MatrixLayout as "layout" {
        /// Dense rows.
        #[default]
        RowMajor = "row-major",
        /// Dense columns: a transposed view.
        ColumnMajor = "column-major",
        /// Rows with three elements between them, one element off alignment.
        RowMajorPadded = "row-major-padded",
        /// Columns with three elements between them, one element off alignment.
        ColumnMajorPadded = "column-major-padded",
        /// Rows of every third element: no axis has stride 1.
        EveryThird = "every-third",
        /// Rows and columns backwards: both strides are negative.
        Reversed = "reversed",
    }
}

impl MatrixLayout {
    /// Where a matrix in this layout lies, with spare storage on both sides.
    ///
    /// # Errors
    /// As for [`Dims::new`].
    pub fn arrange(self, dtype: DType, [rows, columns]: [i64; 2]) -> Result<Arrangement> {
        let (first, strides) = match self {
            MatrixLayout::RowMajor => (0, [columns, 1]),
            MatrixLayout::ColumnMajor => (0, [1, rows]),
            MatrixLayout::RowMajorPadded => (1, [columns + 3, 1]),
            MatrixLayout::ColumnMajorPadded => (1, [1, rows + 3]),
            MatrixLayout::EveryThird => (0, [columns.saturating_mul(3), 3]),
            MatrixLayout::Reversed => ((rows.saturating_mul(columns) - 1).max(0), [-columns, -1]),
        };
        let guard = GUARD_BYTES / dtype.size() as i64;
        let reach = rows.saturating_mul(strides[0].abs()).max(columns.saturating_mul(strides[1].abs()));
        Ok(Arrangement {
            dtype,
            storage: reach.saturating_add(first.max(1)).saturating_add(2 * guard),
            offset: guard + first,
            shape: Dims::new(&[rows, columns])?,
            strides: Dims::new(&strides)?,
        })
    }

    /// A matrix of zeros in this layout.
    ///
    /// # Errors
    /// If it is larger than memory.
    pub fn zeros(self, dtype: DType, shape: [i64; 2]) -> Result<HostTensor> {
        self.arrange(dtype, shape)?.zeros()
    }
}

/// The operands of a product and of its gradients.
#[derive(Debug, Clone)]
pub struct GemmTensors<T = HostTensor> {
    /// `(M, K)`.
    pub a: T,
    /// `(K, N)`.
    pub b: T,
    /// `(M, N)`.
    pub grad_c: T,
}

/// C, grad_A and grad_B.
#[derive(Debug)]
pub struct GemmResults<T> {
    /// `(M, N)`.
    pub c: T,
    /// `(M, K)`.
    pub grad_a: T,
    /// `(K, N)`.
    pub grad_b: T,
}

impl Gemm {
    /// The operands, always the same for the same case name.
    ///
    /// # Errors
    /// If they do not fit into memory.
    pub fn tensors(&self, case: &str) -> Result<GemmTensors> {
        let scale = |name| if name == "A" { self.values.scale(self.dtype) } else { 1.0 };
        let mut tensors = self
            .inputs(|name, arrangement| values::valued(&arrangement, case, name, scale(name), self.values))?;
        match self.values {
            Values::NonFinite => values::insert_non_finite(&mut tensors.a, case),
            Values::NonFiniteAnywhere => {
                let GemmTensors { a, b, grad_c } = &mut tensors;
                values::insert_non_finite_in_one([a, b, grad_c].into_iter(), case);
            }
            _ => {}
        }
        Ok(tensors)
    }

    /// The operands, each made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn inputs<T>(
        &self,
        make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> Result<GemmTensors<T>> {
        let mut make = self.memory.applied(make);
        let arrange = |shape| self.layout.arrange(self.dtype, shape);
        Ok(GemmTensors {
            a: make("A", arrange([self.m, self.k])?)?,
            b: make("B", arrange([self.k, self.n])?)?,
            grad_c: make("grad_C", arrange([self.m, self.n])?)?,
        })
    }

    /// The results, each made by `make` from its name and arrangement.
    ///
    /// # Errors
    /// The first one of `make`.
    pub fn results<T>(
        &self,
        make: impl FnMut(&'static str, Arrangement) -> Result<T>,
    ) -> Result<GemmResults<T>> {
        let mut make = self.memory.applied(make);
        let arrange = |shape| self.output_layout.arrange(self.dtype, shape);
        Ok(GemmResults {
            c: make("C", arrange([self.m, self.n])?)?,
            grad_a: make("grad_A", arrange([self.m, self.k])?)?,
            grad_b: make("grad_B", arrange([self.k, self.n])?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_have_names_and_hold_every_element() {
        for layout in MatrixLayout::ALL {
            assert_eq!(layout.name().parse(), Ok(layout));
            for shape in [[3, 5], [5, 3], [1, 7], [7, 1], [0, 4], [4, 0]] {
                let mut matrix = layout.zeros(DType::F16, shape).unwrap();
                matrix.assign(|i| i as f64);
                let values: Vec<f64> = (0..shape[0] * shape[1]).map(|i| i as f64).collect();
                assert_eq!(matrix.to_f64(), values, "{layout} {shape:?}");
            }
        }
        let error = "diagonal".parse::<MatrixLayout>().unwrap_err();
        assert!(error.starts_with("layout is \"diagonal\": expected one of row-major, "), "{error}");
    }

    #[test]
    fn operands_belong_to_the_case() {
        let gemm = Gemm {
            m: 2,
            n: 3,
            k: 4,
            dtype: DType::BF16,
            algorithm: Algorithm::Exact,
            layout: MatrixLayout::ColumnMajor,
            output_layout: MatrixLayout::RowMajor,
            together: false,
            values: Values::NonFinite,
            memory: Memory::default(),
        };
        let (one, again) = (gemm.tensors("one").unwrap(), gemm.tensors("one").unwrap());
        assert_eq!(one.b.to_f64(), again.b.to_f64());
        assert_ne!(one.b.to_f64(), gemm.tensors("two").unwrap().b.to_f64());
        assert_eq!(one.b.strides(), [1, 4]);
        assert!(one.a.to_f64().iter().any(|value| !value.is_finite()));
    }
}
