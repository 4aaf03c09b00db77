//! Kernels that do what a GPU leaves undefined: each has to fail, with the line that did it.

use causeway::Error;
use causeway::backend::gpu::Executor;
use causeway::backend::gpu::choice::Choice;
use causeway::backend::gpu::plan::Plan;
use causeway_sim::Simulator;

/// A launch of one kernel, whose argument is the address of its output.
fn plan(body: &str, threads: u32, blocks: u32, output: &mut [u32]) -> Plan {
    let text = format!(
        "struct Arguments {{ unsigned* output; unsigned* counters; }};\nCAUSEWAY_KERNEL({threads}, 1) probe(const Arguments a) {{\nusing namespace causeway;\n{body}\n}}\n"
    );
    let arguments: Vec<u8> = [output.as_mut_ptr() as u64, 0].into_iter().flat_map(u64::to_ne_bytes).collect();
    Plan {
        grid: [blocks, 1, 1],
        block: [threads, 1, 1],
        shared_bytes: 4096,
        counters: 1,
        counters_at: vec![8],
        ..Plan::new(Choice::of_text("reduction.cuh", "probe", text), &arguments, 0, 0)
    }
}

fn run_on(device: &str, body: &str, threads: u32, blocks: u32) -> (Result<(), Error>, Vec<u32>) {
    let mut output = vec![0; 1024];
    let plan = plan(body, threads, blocks, &mut output);
    // One block after the other, so that a result does not depend on the machine.
    let simulator = Simulator::open(device).unwrap().with_workers(1);
    // SAFETY: the plan's only address is that of `output`, which holds what the kernels of this file write.
    let result = unsafe { simulator.execute(&plan) };
    (result, output)
}

fn fault(body: &str, threads: u32) -> String {
    match run_on("sim:32", body, threads, 1).0 {
        Err(Error::SimulatedFault { message, .. }) => message,
        other => panic!("{other:?} of {body}"),
    }
}

/// What the blocks of a cluster do wrong, and what is said about it.
#[test]
fn messages_in_a_cluster_are_reported_by_source_line() {
    let table = [
        ("send(0u, 512, 1u, 0);", "sends at instantiation:4 before all mailboxes of the cluster are open"),
        (
            "open_mailbox(0);\nawait_mailboxes(0, 0, thread_index() == 0);\nsend(2u, 512, 1u, 0);",
            "sends at instantiation:6 to a block that the cluster does not have",
        ),
        (
            "open_mailbox(0);\nif (block_index<0>() == 0)\nreturn;\nawait_mailboxes(0, 0, true);\nsend(0u, 512, 1u, 0);",
            "sends at instantiation:8 to a block that has ended",
        ),
        (
            "open_mailbox(0);\nawait_mailboxes(0, 0, thread_index() == 0);\nsend(0u, 4096, 1u, 0);",
            "sends at instantiation:6 to a place past the end of shared memory",
        ),
        ("open_mailbox(4);", "mailbox at byte 4 at instantiation:4"),
        ("open_mailbox(0);\nawait_mailboxes(8, 0, true);", "no mailbox at byte 8 at instantiation:5"),
        (
            "open_mailbox(0);\nwrite_shared(4, 1.0f);\nawait_mailboxes(0, 0, true);",
            "mailbox written over before instantiation:6",
        ),
        (
            "open_mailbox(0);\nawait_mailboxes(0, 8, thread_index() == 0);\nreceive(0);",
            "waits for ever: threads wait 32 at instantiation:6",
        ),
    ];
    for order in ["", ":shuffled:3"] {
        for (body, expected) in table {
            let mut output = vec![0; 1024];
            let plan = Plan { cluster: 2, ..plan(body, 32, 2, &mut output) };
            let simulator = Simulator::open(&format!("sim:clusters{order}")).unwrap().with_workers(1);
            // SAFETY: none of these kernels touches memory but shared memory.
            match unsafe { simulator.execute(&plan) } {
                Err(Error::SimulatedFault { message, .. }) => {
                    assert!(message.contains(expected), "{message}\n{body}")
                }
                other => panic!("{other:?} of {body}"),
            }
        }
    }
}

/// What each body does wrong, and what is said about it. A body begins at line 4 of the instantiation.
#[test]
fn divergence_is_reported_by_source_line() {
    let table = [
        (
            "if (thread_index() < 5)\nblock_barrier();\nelse\nblock_barrier();",
            64,
            "thread 5: block barrier at instantiation:7 while 5 of 64 threads wait at instantiation:5",
        ),
        (
            "if (lane_index() == 3)\na.output[0] = shuffle(1u, 0);\nelse\na.output[1] = wave_all(true);",
            32,
            "thread 3: shuffle at instantiation:5 while 3 of 32 threads wait at instantiation:7",
        ),
        (
            "if (thread_index() == 40)\nreturn;\nwave_barrier();",
            64,
            "thread 40: returned while its wave waits at instantiation:6",
        ),
        (
            "if (thread_index() == 0)\nreturn;\na.output[0] = wave_count(true);",
            64,
            "thread 1: wave exchange at instantiation:6 after a lane of the wave has returned",
        ),
        (
            "if (thread_index() < 32)\nblock_barrier();\nelse if (thread_index() < 40)\nwave_barrier();\nelse\nblock_barrier();",
            64,
            "block barrier at instantiation:9 while 32 of 64 threads wait at instantiation:5",
        ),
        (
            "if (thread_index() >= 32 && lane_index() < 8)\nwave_barrier();\nelse if (thread_index() >= 32)\n{ if (lane_index() >= 8) block_barrier(); }",
            64,
            "waits for ever: threads wait 8 at instantiation:5 and 24 at instantiation:7",
        ),
        (
            "a.output[0] = shuffle(1u, lane_index() < 8 ? 8 : 0);",
            40,
            "shuffle at instantiation:4 reads lane 8 of a wave of 8 threads",
        ),
    ];
    for (body, threads, sentence) in table {
        let message = fault(body, threads);
        assert!(message.contains(sentence), "{message:?} does not say {sentence:?}");
    }
}

#[test]
fn threads_that_have_returned_hold_up_no_barrier() {
    let body = "if (thread_index() >= 32) return;\nblock_barrier();\na.output[thread_index()] = 1;";
    for device in ["sim:32", "sim:64", "sim:32:descending", "sim:32:shuffled"] {
        let (result, output) = run_on(device, body, 64, 2);
        result.unwrap();
        assert_eq!(output.iter().sum::<u32>(), 32, "{device}");
    }
}

/// A thread reads what another writes before a barrier that is not there: one order hides it, another shows it.
#[test]
fn a_missing_barrier_shows_in_some_order() {
    let missing = "store_shared<4>(thread_index() * 4, Packet<4>{{thread_index()}});\n\
                   a.output[thread_index()] = load_shared<4>((thread_index() / 2) * 4).word[0];";
    let present = missing.replace('\n', "\nblock_barrier();\n");
    let expected: Vec<u32> = (0..64).map(|thread| thread / 2).collect();
    let right = |device: &str, body: &str| run_on(device, body, 64, 1).1[..64] == expected[..];
    assert!(right("sim:32", missing), "in ascending order the thread before has written");
    assert!(!right("sim:32:descending", missing));
    for device in ["sim:32", "sim:32:descending", "sim:32:shuffled", "sim:64:shuffled:9"] {
        assert!(right(device, &present), "{device}");
    }
}

/// A block that counts itself before all of its threads have written: seen only when blocks take turns.
#[test]
fn arriving_too_early_shows_when_blocks_interleave() {
    let count = "if (thread_index() == 0) {\n\
                 const bool last = __atomic_add_fetch(a.counters, 1u, __ATOMIC_ACQ_REL) == 8;\n\
                 if (last) *a.counters = 0;\n\
                 store_shared<4>(0, Packet<4>{{last}});\n}\nblock_barrier();\n\
                 if (load_shared<4>(0).word[0] && thread_index() == 0) {\n\
                 for (int i = 0; i < 512; ++i) a.output[512] += a.output[i];\n}\n";
    let write = "a.output[block_index<0>() * 64 + thread_index()] = 1;\n";
    let sum = |device: &str, body: &str| run_on(device, body, 64, 8).1[512];
    let seeds = || (1..=8).map(|seed| format!("sim:32:shuffled:{seed}"));
    // Thread 0 writes before it counts in both; what the others write is ordered by the barrier alone.
    let early = format!("{write}{count}");
    assert_eq!(sum("sim:32", &early), 512, "one block after the other hides it");
    assert!(seeds().any(|device| sum(&device, &early) != 512));
    let right = format!("{write}block_barrier();\n{count}");
    assert!(seeds().all(|device| sum(&device, &right) == 512));
}

#[test]
fn an_asynchronous_copy_is_there_once_it_is_waited_for() {
    let body = |pending: u32| {
        format!(
            "if (thread_index() == 0) {{\n\
             for (unsigned i = 0; i < 4; ++i) a.output[i] = 7 + i;\n\
             async_copy<4>(0, a.output, true);\nasync_commit();\n\
             async_copy<4>(4, a.output + 1, true);\nasync_commit();\n\
             async_copy<4>(8, a.output + 2, false);\nasync_commit();\n\
             async_wait<{pending}>();\n\
             for (unsigned i = 0; i < 3; ++i) a.output[8 + i] = load_shared<4>(4 * i).word[0];\n}}"
        )
    };
    for (pending, expected) in [(0, [7, 8, 0]), (1, [7, 8, u32::MAX]), (2, [7, u32::MAX, u32::MAX])] {
        let (result, output) = run_on("sim:32", &body(pending), 32, 1);
        result.unwrap();
        assert_eq!(output[8..11], expected, "{pending} groups may be in flight");
    }
}

#[test]
fn reading_unwritten_shared_memory_gives_nan() {
    let (result, output) =
        run_on("sim:64", "a.output[thread_index()] = load_shared<4>(thread_index() * 4).word[0];", 64, 1);
    result.unwrap();
    assert!(output[..64].iter().all(|&bits| f32::from_bits(bits).is_nan()));
}

#[test]
fn a_plan_of_another_kernel_is_refused() {
    let mut output = vec![0; 64];
    let mut plan = plan("", 32, 1, &mut output);
    plan.arguments.push(0);
    let simulator = Simulator::open("sim:32").unwrap();
    // SAFETY: nothing is launched.
    let error = unsafe { simulator.execute(&plan) }.unwrap_err().to_string();
    assert!(error.contains("argument block has 17 bytes and the kernel's 16"), "{error}");
    plan.arguments.pop();
    plan.shared_bytes = 1 << 20;
    // SAFETY: as above.
    let error = unsafe { simulator.execute(&plan) }.unwrap_err().to_string();
    assert!(error.contains("1048576 bytes of shared memory are more than"), "{error}");
    plan.shared_bytes = 0;
    plan.choice = Choice::of_text("reduction.cuh", "probe", plan.choice.source() + "not C++");
    // SAFETY: as above.
    let error = unsafe { simulator.execute(&plan) }.unwrap_err();
    assert!(matches!(error, Error::SimulatorCompiler { .. }), "{error}");
}

#[test]
fn an_altered_object_is_refused_and_made_anew() {
    let mut output = vec![0; 1024];
    let plan = plan("if (thread_index() == 0) a.output[7] = 70707;", 32, 1, &mut output);
    let simulator = Simulator::open("sim:32").unwrap();
    let first = simulator.check(&plan).unwrap().unwrap();
    assert!(first.refused.is_empty() && first.checks == 1, "{first:?}");
    let file = std::path::PathBuf::from(first.file.unwrap());

    // The loaded object stays mapped: the file is replaced, as whoever alters it would have to.
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, &bytes).unwrap();
    let mended = simulator.check(&plan).unwrap().unwrap();
    assert_eq!(mended.refused, [format!("{}: its digest does not match", file.display())]);
    assert!(mended.compiled && mended.id == first.id);
    assert!(!file.exists(), "nobody finds the altered file any more");
    assert!(simulator.check(&plan).unwrap().unwrap().refused.is_empty());
    // SAFETY: the plan's only address is that of `output`, which holds what the kernel writes.
    unsafe { simulator.execute(&plan) }.unwrap();
    assert_eq!(output[7], 70707);

    // One that was altered before a process came is not loaded.
    let file = std::path::PathBuf::from(mended.file.unwrap());
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, &bytes).unwrap();
    let other = Simulator::open("sim:32").unwrap().check(&plan).unwrap().unwrap();
    assert!(other.compiled && other.refused.is_empty(), "{other:?}");
}

#[test]
fn a_note_that_does_not_fit_its_object_is_written_anew() {
    let mut output = vec![0; 1024];
    let plan = plan("if (thread_index() == 0) a.output[3] = 30303;", 32, 1, &mut output);
    let simulator = Simulator::open("sim:32").unwrap();
    let first = simulator.check(&plan).unwrap().unwrap();
    let (file, key) = (std::path::PathBuf::from(first.file.unwrap()), first.cache_key.unwrap());
    let note = file.with_file_name(format!("{key}.note"));
    let sound = std::fs::read_to_string(&note).unwrap();
    let other = Simulator::open("sim:32").unwrap().check(&plan).unwrap().unwrap();
    if other.file.map(std::path::PathBuf::from) != Some(file.clone()) {
        eprintln!("skipped: nothing is kept from one simulator to the next");
        return;
    }
    // With a digest that is right.
    let note_of = |keys: &str| {
        let facts = format!("{}\n{keys}", file.file_name().unwrap().to_str().unwrap());
        format!("{facts}\n{}\n", blake3::hash(facts.as_bytes()).to_hex())
    };
    assert_eq!(note_of(&key), sound);
    let wrong =
        [note_of(&format!("{key}\nanother")), note_of(&format!("another\n{key}")), note_of("another")];
    for wrong in wrong {
        std::fs::write(&note, &wrong).unwrap();
        output[3] = 0;
        let simulator = Simulator::open("sim:32").unwrap();
        // SAFETY: the plan's only address is that of `output`, which holds what the kernel writes.
        unsafe { simulator.execute(&plan) }.unwrap();
        assert_eq!(output[3], 30303, "{wrong}");
        assert_eq!(std::fs::read_to_string(&note).unwrap(), sound, "{wrong}");
    }
}
