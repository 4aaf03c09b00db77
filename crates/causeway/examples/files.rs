//! Tensors through a file, and a matrix product whose bits are the same on every device.
//!
//! ```text
//! cargo run --release -p causeway --example files
//! ```

use std::error::Error;

use causeway::files::{self, Metadata, TensorFile};
use causeway::gemm::{Algorithm, Forward};
use causeway::{DType, Device, HostTensor};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::temp_dir().join("causeway-example");
    std::fs::create_dir_all(&directory)?;
    let path = directory.join("operands.safetensors");

    let a = HostTensor::from_fn(DType::F16, &[3, 5], |i| (i as f64 * 0.4).sin())?;
    let b = HostTensor::from_fn(DType::F16, &[5, 2], |i| (i as f64 * 0.3).cos())?;
    files::write(&path, &[("A", &a), ("B", &b)], &Metadata::new())?;

    let mut file = TensorFile::open(&path)?;
    println!("{} holds {:?}", path.file_name().unwrap_or_default().display(), file.names());
    let (Some(a), Some(b)) = (file.read("A")?, file.read("B")?) else {
        return Err("A or B is missing".into());
    };

    let mut c = HostTensor::zeros(DType::F16, &[3, 2])?;
    Forward { a: a.view(), b: b.view(), algorithm: Algorithm::Exact, c: c.view_mut() }.run(&Device::cpu())?;

    let bits: Vec<String> = c.bytes()[..12].chunks(2).map(|b| format!("{:02x}{:02x}", b[1], b[0])).collect();
    println!("C    {:?}", c.to_f64());
    println!("bits {}", bits.join(" "));
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}
