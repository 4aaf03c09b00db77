//! AMD code for every architecture that kernels are written for and that this machine's clang knows.

#[path = "common/clang.rs"]
mod clang;

use causeway::backend::gpu::causal_conv1d::backward::plan_halo;
use causeway::backend::gpu::compiler::{Program, Target};
use causeway::backend::gpu::message;
use causeway::backend::gpu::plan::{DeviceFacts, Plan};
use causeway::causal_conv1d::{Activation, Backward};
use causeway::tensor::Dims;
use causeway::{DType, Location, TensorMut, TensorRef};

/// Clang alone knows no `__global__`: attributes say it.
const SCALE: &str = "
struct Arguments { const float* in; float* out; float factor; unsigned count; };
extern \"C\" __attribute__((global)) void scale(Arguments a) {
    unsigned i = __builtin_amdgcn_workgroup_id_x() * CAUSEWAY_WAVE_SIZE + __builtin_amdgcn_workitem_id_x();
    if (i < a.count) a.out[i] = a.in[i] * a.factor;
}
";

#[test]
fn clang_gives_code_objects_for_every_architecture() {
    if !clang::is_present() {
        return;
    }
    for name in ["gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"] {
        let directory = tempfile::tempdir().unwrap();
        let program = Program {
            header: "",
            others: Vec::new(),
            arguments: String::new(),
            instantiation: SCALE.to_string(),
            entry: "scale",
        };
        let target = Target::parse(name).unwrap();
        let object =
            clang::compile(&program, &target, directory.path()).unwrap_or_else(|log| panic!("{name}: {log}"));
        let bytes = std::fs::read(object).unwrap();
        assert!(bytes.starts_with(b"\x7fELF") && bytes.windows(5).any(|w| w == b"scale"), "{name}");

        let broken = Program { instantiation: "flaot x;".to_string(), ..program };
        let log = clang::compile(&broken, &target, directory.path()).unwrap_err();
        assert!(log.contains("instantiation:1"), "{log}");
    }
}

/// No suite has messages, which the tables of machine code are made from.
#[test]
fn messages_compile_for_every_architecture() {
    if !clang::is_present() {
        return;
    }
    for name in ["gfx90a", "gfx942", "gfx1030", "gfx1100", "gfx1101", "gfx1102", "gfx1200", "gfx1201"] {
        let target = Target::parse(name).unwrap();
        for plan in messages(&DeviceFacts::of_target(&target)) {
            let directory = tempfile::tempdir().unwrap();
            clang::compile(&Program::of(&plan.choice), &target, directory.path())
                .unwrap_or_else(|log| panic!("{name}, {plan}: {log}"));
        }
    }
}

/// Messages of each size of element, and the gradient of a halo.
fn messages(facts: &DeviceFacts) -> Vec<Plan> {
    let on = Location::Hip(0);
    let shape = [1, 64, 3];
    // SAFETY: planners never touch the memory.
    let read = |dtype, shape: &[i64]| unsafe {
        let strides = Dims::new(shape).unwrap().contiguous_strides();
        TensorRef::from_raw(64 as *const u8, dtype, shape, &strides, on).unwrap()
    };
    // SAFETY: as above.
    let written = |dtype, shape: &[i64]| unsafe {
        let strides = Dims::new(shape).unwrap().contiguous_strides();
        TensorMut::from_raw(64 as *mut u8, dtype, shape, &strides, on).unwrap()
    };
    let mut plans = Vec::new();
    for dtype in [DType::BF16, DType::F32, DType::I64] {
        plans.extend(message::send(&read(dtype, &shape), 4096));
        plans.extend(message::receive(&written(dtype, &shape), 4096));
    }
    let rows = [1, 64, 20];
    let of = |name: &str| match name {
        "x" | "dy" => Some(read(DType::BF16, &rows)),
        "weight" => Some(read(DType::BF16, &[64, 4])),
        "initial_states" => Some(read(DType::BF16, &shape)),
        "seq_idx" => Some(read(DType::I32, &[1, 20])),
        _ => None,
    };
    let to = |name: &str| match name {
        "dx" => Some(written(DType::BF16, &rows)),
        "dweight" => Some(written(DType::BF16, &[64, 4])),
        "dinitial_states" => Some(written(DType::BF16, &shape)),
        _ => None,
    };
    let call = Backward::from_named(Activation::Silu, false, None, of, to);
    plans.extend(plan_halo(&call, &call.validate().unwrap(), None, 4096, facts).unwrap());
    plans
}
