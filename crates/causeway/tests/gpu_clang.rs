//! AMD code for every architecture that kernels are written for and that this machine's clang knows.

#[path = "common/clang.rs"]
mod clang;

use causeway::backend::gpu::compiler::{Program, Target};

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
