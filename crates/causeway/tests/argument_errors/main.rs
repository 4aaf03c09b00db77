//! Every wrong argument of the convolutions: which error, which sentence, and that nothing was written.
//!
//! Each row changes one thing of a call that is right.

mod conv1d;
mod update;
mod views;

use causeway::{DType, Error, HostTensor, TensorRef};

/// What outputs hold before a call: NaN in every floating-point dtype.
const POISON: u8 = 0xff;

/// The arguments of a call by name.
struct Arguments(Vec<(&'static str, HostTensor)>);

impl Arguments {
    fn at(&mut self, name: &str) -> &mut HostTensor {
        &mut self.0.iter_mut().find(|(key, _)| *key == name).expect("a name of the call").1
    }

    fn get(&self, name: &str) -> Option<TensorRef<'_>> {
        self.0.iter().find(|(key, _)| *key == name).map(|(_, tensor)| tensor.view())
    }

    fn take(&mut self, name: &str) -> Option<HostTensor> {
        let at = self.0.iter().position(|(key, _)| *key == name)?;
        Some(self.0.swap_remove(at).1)
    }

    fn replace(&mut self, name: &str, dtype: DType, shape: &[i64]) {
        *self.at(name) = zeros(dtype, shape);
    }
}

type Change = fn(&mut Arguments);

fn zeros(dtype: DType, shape: &[i64]) -> HostTensor {
    HostTensor::zeros(dtype, shape).unwrap()
}

fn integers(dtype: DType, values: &[i64]) -> HostTensor {
    HostTensor::from_fn(dtype, &[values.len() as i64], |i| values[i] as f64).unwrap()
}

/// An output whose every byte is poison.
fn poisoned(mut tensor: HostTensor) -> HostTensor {
    tensor.fill_bytes(POISON);
    tensor
}

fn expect(row: usize, result: Result<(), Error>, sentence: &str, outputs: &[&HostTensor]) {
    let error = result.expect_err(sentence);
    assert_eq!(error.to_string(), sentence, "row {row}");
    for output in outputs {
        let untouched = output.bytes().iter().all(|&byte| byte == POISON);
        assert!(untouched, "row {row}: {sentence:?}, but something was written");
    }
}

type Run = fn(usize, Change) -> (Result<(), Error>, Vec<HostTensor>);

fn check(run: Run, rows: &[(Change, &str)]) {
    run(0, |_| {}).0.unwrap();
    for (row, &(change, sentence)) in rows.iter().enumerate() {
        let (result, outputs) = run(row + 1, change);
        expect(row, result, sentence, &outputs.iter().collect::<Vec<_>>());
    }
}
