//! Calls out of the fuzzer's bytes: tensors that lie anyhow, and mistakes.

use arbitrary::{Result, Unstructured};
use causeway::backend::cpu::{Cpu, Level};
use causeway::{DType, Device, HostTensor};
use causeway_verify::oracle::Comparison;

use crate::memory::{Placement, Random, right, untouched};

/// Draws the arguments of a call. At most one of them is wrong.
pub struct Draw<'a, 'b> {
    bytes: &'a mut Unstructured<'b>,
    /// The argument with a wrong size, counted as they are drawn.
    wrong: Option<u8>,
    drawn: u8,
    /// What is wrong with the call, if anything.
    pub mistake: Option<String>,
    /// Elements come from here, and not from the bytes: they are many, and no branch depends on them.
    pub values: Random,
}

impl<'a, 'b> Draw<'a, 'b> {
    pub fn new(bytes: &'a mut Unstructured<'b>) -> Result<Self> {
        let wrong = bytes.ratio(1, 6)?.then(|| bytes.int_in_range(0..=11)).transpose()?;
        let values = Random(bytes.arbitrary()?);
        Ok(Draw { bytes, wrong, drawn: 0, mistake: None, values })
    }

    pub fn size(&mut self, most: i64) -> Result<i64> {
        // Edges of vectors and tiles are at small sizes; zero is one of them.
        self.bytes.int_in_range(0..=most)
    }

    pub fn between(&mut self, least: i64, most: i64) -> Result<i64> {
        self.bytes.int_in_range(least..=most)
    }

    pub fn flag(&mut self) -> Result<bool> {
        self.bytes.arbitrary()
    }

    pub fn rarely(&mut self) -> Result<bool> {
        self.bytes.ratio(1, 8)
    }

    pub fn one_of<T: Copy>(&mut self, choices: &[T]) -> Result<T> {
        self.bytes.choose(choices).copied()
    }

    /// This processor, with any of the vector instructions that it has.
    pub fn device(&mut self) -> Result<Device> {
        let levels: Vec<Level> = Level::ALL.into_iter().filter(|level| level.is_available()).collect();
        Ok(Device::Cpu(Cpu::with_level(self.one_of(&levels)?).expect("the level is available")))
    }

    /// The shape of the next argument that has to agree with others, or one that does not.
    fn shape(&mut self, name: &str, shape: &[i64]) -> Result<Vec<i64>> {
        let mut shape = shape.to_vec();
        if self.wrong == Some(self.drawn) {
            let axis = self.bytes.choose_index(shape.len())?;
            shape[axis] += 1;
            self.mistake = Some(format!("{name} has shape {shape:?}"));
        }
        self.drawn += 1;
        Ok(shape)
    }

    /// Where a tensor of this many axes lies; with `expanded`, some axes may have one place for all elements.
    fn placement(&mut self, axes: usize, expanded: bool) -> Result<Placement> {
        let mut placement = Placement {
            order: (0..axes as u8).collect(),
            padding: vec![0; axes],
            reversed: vec![false; axes],
            expanded: vec![false; axes],
            offset: self.between(0, 3)?,
        };
        for last in (1..axes).rev() {
            placement.order.swap(last, self.bytes.int_in_range(0..=last)?);
        }
        for axis in 0..axes {
            placement.expanded[axis] = expanded && self.bytes.ratio(1, 16)?;
            match self.bytes.int_in_range(0..=7)? {
                0 => placement.padding[axis] = 2,
                1 => placement.reversed[axis] = true,
                _ => {}
            }
        }
        Ok(placement)
    }

    /// An input that other arguments have to agree with, of uniform numbers in (-1, 1).
    pub fn base(&mut self, dtype: DType, shape: &[i64]) -> Result<HostTensor> {
        let placement = self.placement(shape.len(), true)?;
        Ok(placement.uniform(dtype, shape, &mut self.values, 1.0))
    }

    /// An input that has to agree with others.
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[i64]) -> Result<HostTensor> {
        let shape = self.shape(name, shape)?;
        self.base(dtype, &shape)
    }

    /// As [`Draw::input`], if it is wanted.
    pub fn optional(
        &mut self,
        wanted: bool,
        name: &str,
        dtype: DType,
        shape: &[i64],
    ) -> Result<Option<HostTensor>> {
        if wanted { self.input(name, dtype, shape).map(Some) } else { Ok(None) }
    }

    /// An input whose signs have to be independent: every element has its own place.
    pub fn independent(&mut self, name: &str, dtype: DType, shape: &[i64]) -> Result<HostTensor> {
        let shape = self.shape(name, shape)?;
        let placement = self.placement(shape.len(), false)?;
        Ok(placement.uniform(dtype, &shape, &mut self.values, 1.0))
    }

    /// An output, poisoned; once in a while two of its elements share a place.
    pub fn output(&mut self, name: &str, dtype: DType, shape: &[i64]) -> Result<HostTensor> {
        let shape = self.shape(name, shape)?;
        let mut tensor = self.placement(shape.len(), false)?.poisoned(dtype, &shape);
        if self.bytes.ratio(1, 32)?
            && !shape.contains(&0)
            && let Some(axis) = shape.iter().position(|size| *size > 1)
        {
            let mut strides = tensor.strides().to_vec();
            strides[axis] = 0;
            let offset = tensor.offset();
            // An axis that ran backwards begins elsewhere now, and still inside.
            tensor = tensor.restrided(offset, &shape, &strides).expect("fewer places lie inside");
            self.mistake = Some(format!("{name} of shape {shape:?} has strides {strides:?}"));
        }
        Ok(tensor)
    }

    /// As [`Draw::output`], if it is wanted.
    pub fn optional_output(
        &mut self,
        wanted: bool,
        name: &str,
        dtype: DType,
        shape: &[i64],
    ) -> Result<Option<HostTensor>> {
        if wanted { self.output(name, dtype, shape).map(Some) } else { Ok(None) }
    }

    /// Indices, as they are given.
    pub fn indices(&mut self, dtype: DType, values: &[i64]) -> Result<HostTensor> {
        let mut tensor = self.placement(1, false)?.zeros(dtype, &[values.len() as i64]);
        tensor.assign(|i| values[i] as f64);
        Ok(tensor)
    }
}

/// Fails unless an output is right and nothing around it was touched.
pub fn expect(name: &str, result: &Comparison, found: &HostTensor) {
    right(name, result, found).unwrap_or_else(|fault| panic!("{fault}"));
}

/// Fails if a byte of a tensor is not what outputs are poisoned with.
pub fn expect_untouched(name: &str, tensor: &HostTensor) {
    untouched(name, tensor).unwrap_or_else(|fault| panic!("{fault}"));
}

/// What a call has to say: an error if there is a mistake in it, nothing otherwise. True if it ran.
pub fn expect_outcome(outcome: causeway::Result<()>, mistake: Option<&String>) -> bool {
    match (&outcome, mistake) {
        (Ok(()), None) => true,
        (Err(_), Some(_)) => false,
        (Ok(()), Some(mistake)) => panic!("not refused: {mistake}"),
        (Err(error), None) => panic!("refused: {error}"),
    }
}
