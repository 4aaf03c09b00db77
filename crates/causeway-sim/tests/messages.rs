//! Messages between GPUs: what was sent is received, whatever the strides on either side, and nothing else is touched. Faults in the kernel have to be
//! noticed.

use std::path::Path;
use std::process::Command;

use causeway::backend::gpu::Executor;
use causeway::backend::gpu::message::{self, FLAG_BYTES};
use causeway::tensor::Dims;
use causeway::{DType, Location, TensorMut, TensorRef};
use causeway_sim::{Edit, Simulator};
use rayon::prelude::*;

/// Memory of so many bytes, each of them drawn, at a multiple of 16.
fn drawn(bytes: usize, state: &mut u32) -> Vec<u128> {
    let mut memory = vec![0_u128; bytes.div_ceil(16)];
    for byte in bytemuck::cast_slice_mut::<_, u8>(&mut memory) {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *byte = (*state >> 24) as u8;
    }
    memory
}

/// Strides of a shape whose axes lie in an order, the first outermost, with a gap behind each step of the innermost.
fn strides(shape: &[i64], order: &[usize], gap: i64) -> Dims {
    let mut strides = Dims::new(shape).unwrap().contiguous_strides().to_vec();
    let mut step = gap;
    for &axis in order.iter().rev() {
        strides[axis] = step;
        step *= shape[axis].max(1);
    }
    Dims::new(&strides).unwrap()
}

/// The offsets of a tensor's elements, in their order.
fn offsets(shape: &[i64], strides: &[i64]) -> Vec<usize> {
    let count: i64 = shape.iter().product();
    let offset = |mut element: i64| {
        let mut offset = 0;
        for (size, stride) in shape.iter().zip(strides).rev() {
            offset += element % size * stride;
            element /= size;
        }
        offset as usize
    };
    (0..count).map(offset).collect()
}

fn flags(buffer: &[u128]) -> Vec<u32> {
    bytemuck::cast_slice::<_, u32>(&buffer[..FLAG_BYTES as usize / 16]).iter().step_by(8).copied().collect()
}

fn exchange(simulator: &Simulator) {
    let mut state = 1;
    let shapes: [&[i64]; 6] = [&[1, 5, 3], &[2, 1, 7], &[3, 700, 3], &[2, 9], &[1, 45_000, 3], &[1, 1, 1]];
    // One buffer for all: messages of other sizes and dtypes come after each other.
    let mut buffer = drawn(FLAG_BYTES as usize + 45_000 * 3 * 8 + 16, &mut state);
    buffer[..FLAG_BYTES as usize / 16].fill(0);
    let address = buffer.as_mut_ptr() as u64;
    for (at, shape) in shapes.into_iter().enumerate() {
        for dtype in [DType::BF16, DType::F32, DType::I32, DType::I64] {
            let size = dtype.size();
            let order: &[usize] = if shape.len() == 3 { &[0, 2, 1] } else { &[1, 0] };
            let natural: Vec<usize> = (0..shape.len()).collect();
            let (from, to) = if at % 2 == 0 { (order, &natural[..]) } else { (&natural[..], order) };
            let (from, to) = (strides(shape, from, 2), strides(shape, to, 1 + at as i64 % 2));
            let (sent, taken) = (offsets(shape, &from), offsets(shape, &to));
            let bytes = |offsets: &[usize]| (offsets.iter().max().unwrap() + 1) * size;
            let source = drawn(bytes(&sent), &mut state);
            let before = drawn(bytes(&taken), &mut state);
            let (mut target, place) = (before.clone(), Location::Cuda(0));
            // SAFETY: `offsets` has shown how far the elements reach.
            let (tensor, result) = unsafe {
                (
                    TensorRef::from_raw(source.as_ptr().cast(), dtype, shape, &from, place).unwrap(),
                    TensorMut::from_raw(target.as_mut_ptr().cast(), dtype, shape, &to, place).unwrap(),
                )
            };
            let behind = buffer[(FLAG_BYTES as usize + sent.len() * size).div_ceil(16)..].to_vec();
            let plan = message::send(&tensor, address).unwrap();
            let blocks = plan.grid[0] as usize;
            // SAFETY: the buffer has the size of the largest message.
            unsafe { simulator.execute(&plan) }.unwrap();
            let expected = |block| u32::from(block < blocks);
            assert_eq!(flags(&buffer), (0..64).map(expected).collect::<Vec<_>>(), "{dtype} {shape:?}");
            let end = (FLAG_BYTES as usize + sent.len() * size).div_ceil(16);
            assert!(buffer[end..] == behind, "{dtype} {shape:?}: the memory behind the message");
            // SAFETY: as above.
            unsafe { simulator.execute(&message::receive(&result, address).unwrap()) }.unwrap();
            assert_eq!(flags(&buffer), [0; 64], "{dtype} {shape:?}");
            let mut expected = before;
            let (source, target) =
                (bytemuck::cast_slice::<_, u8>(&source), bytemuck::cast_slice::<_, u8>(&target));
            let bytes = bytemuck::cast_slice_mut::<_, u8>(&mut expected);
            for (from, to) in sent.iter().zip(&taken) {
                bytes[to * size..][..size].copy_from_slice(&source[from * size..][..size]);
            }
            assert!(bytes == target, "{dtype} {shape:?}: another tensor was received");
        }
    }
}

/// Two launches of one kind: the second one has nobody to wait for, and the simulator ends the process.
fn again(simulator: &Simulator, sends: bool) {
    let mut buffer = vec![0_u128; FLAG_BYTES as usize / 16 + 1];
    let (address, mut element) = (buffer.as_mut_ptr() as u64, [7_i32]);
    if sends {
        let plan = message::send(&TensorRef::new(&element, &[1]).unwrap(), address).unwrap();
        for _ in 0..2 {
            // SAFETY: the buffer has space for the element.
            unsafe { simulator.execute(&plan).unwrap() };
        }
    } else {
        let plan = message::receive(&TensorMut::new(&mut element, &[1]).unwrap(), address).unwrap();
        // SAFETY: as above.
        unsafe { simulator.execute(&plan).unwrap() };
    }
}

#[test]
fn what_was_sent_is_received() {
    for device in ["sim:32", "sim:64"] {
        exchange(&Simulator::open(device).unwrap());
    }
}

const FILE: &str = "message.cuh";

/// What is wrong, a text that the file has once, and what stands there with the fault.
const FAULTS: &[(&str, &str, &str)] = &[
    (
        "nobody waits to send",
        "await_flag(flag, Tile::sends ? 0 : 1);",
        "if (!Tile::sends) await_flag(flag, 1);",
    ),
    (
        "nobody waits to receive",
        "await_flag(flag, Tile::sends ? 0 : 1);",
        "if (Tile::sends) await_flag(flag, 0);",
    ),
    ("the flag is not set", "set_flag(flag, Tile::sends ? 1 : 0);", ""),
    ("all blocks have one flag", "room + block_index<0>() * Tile::flag_bytes", "room"),
    (
        "a block takes one turn",
        "const u64 step = (u64)a.blocks",
        "const u64 step = a.elements + (u64)a.blocks",
    ),
    ("elements lie over flags", "room + Tile::flags * Tile::flag_bytes + first", "room + first"),
    (
        "a neighbour is in no other row",
        "if (++place.position < (i64)a.seqlen) continue;",
        "++place.position; continue;",
    ),
    ("a neighbour is in no other entry", "++place.batch;", ""),
    ("one element too many", "a.elements - first < COUNT ? (int)(a.elements - first) : COUNT", "COUNT"),
    ("a packet has its first element twice", "k == 0 ? places[0] : places[COUNT - 1]", "places[0]"),
    ("a second element is sent over the first", "element.word[0] << (16 * k)", "element.word[0]"),
    (
        "a second element is that of the first",
        "packet.word[0] >> (16 * k) & 0xffffu",
        "packet.word[0] & 0xffffu",
    ),
    ("positions are taken to be dense", "place.position * a.seqlen_stride", "place.position"),
];

const FAULT: &str = "CAUSEWAY_TEST_FAULT";

/// With a fault by its number, or without one.
fn simulator() -> Simulator {
    let simulator = Simulator::open("sim:32").unwrap();
    let Ok(number) = std::env::var(FAULT) else { return simulator };
    let (_, right, wrong) = FAULTS[number.parse::<usize>().unwrap()];
    simulator.with_edit(Edit { right: right.to_string(), wrong: wrong.to_string() })
}

#[test]
#[ignore = "run by faults_are_noticed"]
fn one_exchange() {
    exchange(&simulator());
}

#[test]
#[ignore = "run by faults_are_noticed, and ends its process"]
fn a_second_send() {
    again(&simulator(), true);
}

#[test]
#[ignore = "run by faults_are_noticed, and ends its process"]
fn an_early_receive() {
    again(&simulator(), false);
}

/// Whether messages are what they should be, each check in a process of its own.
fn is_right(fault: Option<usize>) -> bool {
    let passes = |test: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture"]);
        command.envs(fault.map(|number| (FAULT, number.to_string())));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains("SimulatorCompiler"), "it does not compile: {said}");
        output.status.success()
    };
    passes("one_exchange") && !passes("a_second_send") && !passes("an_early_receive")
}

#[test]
fn faults_are_noticed() {
    assert!(is_right(None), "the kernel as it is");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels").join(FILE);
    let text = std::fs::read_to_string(path).expect("the kernel's file can be read");
    let survives = |(number, (fault, right, _)): (usize, &(&str, &str, &str))| {
        let found = text.matches(right).count();
        if found != 1 {
            return Some(format!("kernels/{FILE} has {right:?} {found} times: mend FAULTS"));
        }
        is_right(Some(number)).then(|| format!("not noticed: {fault}"))
    };
    let survivors: Vec<_> = FAULTS.par_iter().enumerate().filter_map(survives).collect();
    assert!(survivors.is_empty(), "{}", survivors.join("\n"));
}
