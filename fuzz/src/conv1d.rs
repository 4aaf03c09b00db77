//! Forward, backward and update against the oracle.

use arbitrary::{Result, Unstructured};
use causeway::causal_conv1d::Activation;
use causeway::{DType, Device, HostTensor};
use causeway_verify::oracle::Expected;

use crate::calls::{Gates, Gradients, Incoming, Inputs, Outputs, UpdateInputs};
use crate::draw::{Draw, expect, expect_outcome, expect_untouched};

pub fn check(bytes: &mut Unstructured<'_>) -> Result<()> {
    let draw = &mut Draw::new(bytes)?;
    if draw.one_of(&[true, false, false])? {
        return check_update(draw);
    }
    let call = Call::draw(draw)?;
    if draw.flag()? { call.check_forward(draw) } else { call.check_backward(draw) }
}

fn check_output(name: &str, truth: &Expected, found: &HostTensor) {
    expect(name, &truth.compare(&found.view(), None), found);
}

/// What all three operations have.
struct Common {
    device: Device,
    dtype: DType,
    weight_dtype: DType,
    activation: Activation,
    dim: i64,
    width: i64,
}

impl Common {
    fn draw(draw: &mut Draw<'_, '_>) -> Result<Self> {
        let dtype = draw.one_of(&[DType::F32, DType::F16, DType::BF16, DType::F64])?;
        Ok(Common {
            device: draw.device()?,
            dtype,
            weight_dtype: match dtype {
                DType::F64 => DType::F64,
                _ => draw.one_of(&[DType::F32, DType::F16, DType::BF16])?,
            },
            activation: draw.one_of(&[Activation::None, Activation::Silu])?,
            dim: if draw.rarely()? { draw.size(70)? } else { draw.size(20)? },
            width: if draw.rarely()? { draw.between(1, 256)? } else { draw.between(1, 9)? },
        })
    }
}

/// A forward or backward call, without outputs.
struct Call {
    common: Common,
    shape: [i64; 3],
    states: [i64; 3],
    inputs: Inputs,
}

impl Call {
    fn draw(draw: &mut Draw<'_, '_>) -> Result<Self> {
        let common = Common::draw(draw)?;
        let packed = draw.one_of(&[true, false, false])?;
        let batch = if packed { 1 } else { draw.size(3)? };
        let seqlen = if draw.rarely()? { draw.size(300)? } else { draw.size(40)? };
        let shape = [batch, common.dim, seqlen];
        let cu_seqlens = packed.then(|| boundaries(draw, seqlen)).transpose()?;
        let sequences = cu_seqlens.as_ref().map_or(batch, |tensor| tensor.shape()[0] - 1);
        let states = [sequences.max(0), common.dim, common.width - 1];
        let (with_bias, with_states, with_seq_idx) = (draw.flag()?, draw.flag()?, draw.rarely()?);
        let seq_idx = draw.optional(with_seq_idx, "seq_idx", DType::I32, &[batch, seqlen])?;
        let seq_idx = seq_idx.map(|mut tensor| {
            let mut index = draw.values.below(4) - 1;
            tensor.assign(|_| {
                if draw.values.below(5) == 0 {
                    index = draw.values.below(4) - 1;
                }
                index as f64
            });
            tensor
        });
        let inputs = Inputs {
            x: draw.base(common.dtype, &shape)?,
            // Its width is its own; its dim is that of x.
            weight: draw.base(common.weight_dtype, &[common.dim, common.width])?,
            bias: draw.optional(with_bias, "bias", common.weight_dtype, &[common.dim])?,
            initial_states: draw.optional(with_states, "initial_states", common.dtype, &states)?,
            seq_idx,
            cu_seqlens,
            residual: None,
            gates: Gates::default(),
            activation: common.activation,
        };
        Ok(Call { common, shape, states, inputs })
    }

    fn check_forward(mut self, draw: &mut Draw<'_, '_>) -> Result<()> {
        let dtype = self.common.dtype;
        let (with_residual, with_final) = (draw.flag()?, draw.flag()?);
        self.inputs.residual = draw.optional(with_residual, "residual", dtype, &self.shape)?;
        let mut outputs = Outputs {
            y: draw.output("y", dtype, &self.shape)?,
            final_states: draw.optional_output(with_final, "final_states", dtype, &self.states)?,
        };
        let outcome = self.inputs.forward(&mut outputs, &self.common.device);
        if expect_outcome(outcome, draw.mistake.as_ref()) {
            let truth = self.inputs.true_outputs();
            outputs.judged(&truth).for_each(|(name, truth, found)| check_output(name, truth, found));
        } else {
            outputs.named().for_each(|(name, found)| expect_untouched(name, found));
        }
        Ok(())
    }

    fn check_backward(self, draw: &mut Draw<'_, '_>) -> Result<()> {
        let Common { dtype, weight_dtype, dim, width, .. } = self.common;
        let dweight_dtype = if dtype != DType::F64 && draw.flag()? { DType::F32 } else { weight_dtype };
        let with_final = draw.flag()?;
        let (with_dbias, with_dinitial) = (self.inputs.bias.is_some(), self.inputs.initial_states.is_some());
        let incoming = Incoming {
            dy: draw.independent("dy", dtype, &self.shape)?,
            dfinal_states: draw.optional(with_final, "dfinal_states", dtype, &self.states)?,
        };
        let mut gradients = Gradients {
            dx: draw.output("dx", dtype, &self.shape)?,
            dweight: draw.output("dweight", dweight_dtype, &[dim, width])?,
            dbias: draw.optional_output(with_dbias, "dbias", dweight_dtype, &[dim])?,
            dinitial_states: draw.optional_output(with_dinitial, "dinitial_states", dtype, &self.states)?,
            dgates: Gates::default(),
        };
        let outcome = self.inputs.backward(&incoming, &mut gradients, &self.common.device);
        if expect_outcome(outcome, draw.mistake.as_ref()) {
            let truth = self.inputs.true_gradients(&incoming, dweight_dtype);
            gradients.judged(&truth).for_each(|(name, truth, found)| check_output(name, truth, found));
        } else {
            gradients.named().for_each(|(name, found)| expect_untouched(name, found));
        }
        Ok(())
    }
}

/// Boundaries of sequences, now and then wrong.
fn boundaries(draw: &mut Draw<'_, '_>, total: i64) -> Result<HostTensor> {
    let cuts = draw.between(0, 4)?;
    let mut values = vec![0];
    for _ in 0..cuts {
        let cut = draw.between(0, total)?;
        values.push(cut);
    }
    values.push(total);
    if !draw.rarely()? {
        values.sort_unstable();
    } else {
        match draw.between(0, 3)? {
            0 => values[0] = draw.between(-2, 2)?,
            1 => *values.last_mut().expect("not empty") += draw.between(-1, 1)?,
            2 => values.clear(),
            _ => {}
        }
    }
    let rising = values.windows(2).all(|pair| pair[0] <= pair[1]);
    if values.first() != Some(&0) || values.last() != Some(&total) || !rising {
        draw.mistake = Some(format!("cu_seqlens is {values:?} of {total}"));
    }
    let dtype = draw.one_of(&[DType::I32, DType::I64])?;
    draw.indices(dtype, &values)
}

fn check_update(draw: &mut Draw<'_, '_>) -> Result<()> {
    let Common { device, dtype, weight_dtype, activation, dim, width } = Common::draw(draw)?;
    let (batch, seqlen, flat) = (draw.size(4)?, draw.size(6)?, draw.flag()?);
    let shape = if flat { vec![batch, dim] } else { vec![batch, dim, seqlen] };
    let state_len = width - 1 + draw.size(4)?;
    let (with_indices, with_lengths, with_bias) = (draw.flag()?, draw.flag()?, draw.flag()?);
    let rows = if with_indices { batch + draw.size(2)? } else { batch };

    let mut indices = None;
    if with_indices {
        // Rows in turn from one on, with some left out, and now and then anything.
        let (first, anything) = (draw.size(8)?, draw.rarely()?);
        let mut values = Vec::new();
        for entry in 0..batch {
            let kind = draw.size(7)?;
            values.push(match kind {
                0 => -1 - entry,
                1 if anything => draw.between(-1, rows + 1)?,
                _ if rows == 0 => -1,
                _ => (first + entry) % rows,
            });
        }
        let mut used: Vec<_> = values.iter().filter(|row| **row >= 0).collect();
        used.sort_unstable();
        if used.windows(2).any(|pair| pair[0] == pair[1]) || used.last().is_some_and(|row| **row >= rows) {
            draw.mistake = Some(format!("conv_state_indices is {values:?} of {rows} rows"));
        }
        indices = Some(draw.indices(DType::I32, &values)?);
    }
    let mut lengths = None;
    if with_lengths {
        let mut values = Vec::new();
        for _ in 0..batch {
            let value = if draw.rarely()? { draw.between(-1, i64::from(i32::MAX))? } else { draw.size(40)? };
            values.push(value);
        }
        if values.iter().any(|value| *value < 0) {
            draw.mistake = Some(format!("cache_seqlens is {values:?}"));
        }
        lengths = Some(draw.indices(DType::I32, &values)?);
    }
    let inputs = UpdateInputs {
        x: draw.base(dtype, &shape)?,
        weight: draw.base(weight_dtype, &[dim, width])?,
        bias: draw.optional(with_bias, "bias", weight_dtype, &[dim])?,
        cache_seqlens: lengths,
        conv_state_indices: indices,
        activation,
    };
    // A place for each element, and poison between them.
    let values = draw.base(dtype, &[rows, dim, state_len])?.to_contiguous().expect("it is small");
    let mut conv_state = draw.output("conv_state", dtype, &[rows, dim, state_len])?;
    let mut y = draw.output("y", dtype, &shape)?;
    if draw.mistake.is_none() {
        let values = values.to_f64();
        conv_state.assign(|i| values[i]);
    } else if conv_state.shape() == [rows, dim, state_len + 1] {
        // A longer state is a state too.
        return Ok(());
    }
    let before = conv_state.clone();
    // More rows than batch entries are right where indices choose among them.
    if with_indices && conv_state.shape() == [rows + 1, dim, state_len] {
        return Ok(());
    }
    let outcome = inputs.update(&mut conv_state, &mut y, &device);
    if expect_outcome(outcome, draw.mistake.as_ref()) {
        let truth = inputs.truth(&before);
        check_output("y", truth.of("y"), &y);
        check_output("conv_state", truth.of("conv_state"), &conv_state);
    } else {
        assert!(before.bytes() == conv_state.bytes(), "conv_state was written although the call was refused");
        expect_untouched("y", &y);
    }
    Ok(())
}
