//! What a run showed and did not show, in words: made from the facts of a report and from nothing else.

use std::collections::{BTreeMap, BTreeSet};

use super::words::{bytes, count, percent, shortened};
use super::{Backend, Benchmark, Content, Report, Service, Verification};
use crate::suite::CaseReport;
use crate::suite::random_calls::RandomCalls;

/// A noise above this is worth a word.
const NOISY: f64 = 0.03;

/// What was done.
pub(super) fn evidence(report: &Report) -> Vec<String> {
    let mut sentences = match &report.content {
        Content::Verification(verification) => verified(report, verification),
        Content::Benchmark(benchmark) => measured(report, benchmark),
        Content::Service(service) => served(report, service),
    };
    sentences.extend(code_that_ran(report));
    sentences
}

/// What it does not show.
pub(super) fn non_claims(report: &Report) -> Vec<String> {
    let mut sentences = vec![format!("Nothing is shown for any device but {}.", report.device)];
    sentences.extend(match &report.content {
        Content::Verification(verification) => not_verified(verification),
        Content::Benchmark(benchmark) => not_measured(report, benchmark),
        Content::Service(_) => vec![
            "No result was compared with an oracle: a server computes. `causeway verify` on this device compares."
                .to_string(),
        ],
    });
    match &report.backend {
        Some(Backend::Cpu { others, .. }) => {
            sentences.push(format!("The CPU code for other vector levels ({}) did not run.", others.join(", ")));
        }
        Some(Backend::Simulated) => sentences.push(
            "No GPU ran: the kernels' source was compiled for this processor, with every thread a fiber. What a \
             GPU compiler makes of it, and what GPUs do that the source does not say, is not shown \
             (docs/verification.md)."
                .to_string(),
        ),
        Some(Backend::Gpu) | None => {}
    }
    sentences.extend(unknown_origin(report));
    sentences
}

fn verified_at_random(report: &Report, run: &RandomCalls) -> Vec<String> {
    let mut sentences = vec![
        format!(
            "{} drawn at random with seed {} ({}) ran on {} with {} threads of {}: {} passed, {} failed.",
            count(run.count(), "call"),
            run.seed,
            run.by_operation(),
            report.device,
            report.threads,
            processor(report),
            run.count() - run.failures.len(),
            run.failures.len(),
        ),
        format!(
            "Every one of {} elements of {} outputs was compared with a float64 oracle that shares no code with the \
             backend. Outputs were filled with NaN before each call, and the memory around and between their elements \
             was compared after it.",
            run.elements, run.outputs,
        ),
    ];
    if run.kernels > 0 {
        sentences.push(format!("The calls launched {}.", count(run.kernels, "distinct kernel")));
    }
    let closest = run.worst.iter().max_by(|a, b| a.1.total_cmp(b.1));
    if let Some((output, fraction)) = closest {
        let part = percent(*fraction);
        sentences
            .push(format!("The largest part of an error bound that any element used is {part} ({output})."));
    }
    sentences
}

fn not_verified_at_random(run: &RandomCalls) -> Vec<String> {
    let mut sentences = vec![
        "What was drawn is a sample: that a call that was not drawn is right is not shown.".to_string(),
        "No speed is claimed. `causeway bench` measures.".to_string(),
        "Every call was made once: that it gives the same bits each time is not shown (`--repeat` does)."
            .to_string(),
    ];
    // With a part p of wrong calls, n right ones in a row have a probability of (1 - p)^n, which is 5 % at p = 3/n.
    if run.failures.is_empty() && run.count() > 0 {
        let most = percent(3.0 / run.count() as f64);
        sentences.push(format!(
            "With 95 % confidence, less than {most} of the calls that are drawn so are wrong: not that none is."
        ));
    }
    if run.count() < run.asked {
        let (asked, ran) = (run.asked, run.count());
        sentences.push(format!("{asked} calls were asked for; the run ended after {ran}."));
    }
    if !run.failures.is_empty() {
        sentences.push("Correctness is not shown: see the failed calls.".to_string());
    }
    sentences
}

fn verified(report: &Report, run: &Verification) -> Vec<String> {
    if let Some(random) = &run.random {
        return verified_at_random(report, random);
    }
    let (cases, failed) = (run.cases.len(), run.failed());
    let elements: u64 = run.outputs().map(|(_, output)| output.comparison.elements).sum();
    let outside: u64 = run.outputs().map(|(_, output)| output.comparison.failures).sum();
    let stray: u64 = run.outputs().map(|(_, output)| output.stray_bytes).sum();
    let mut sentences = vec![
        format!(
            "{cases} cases of {} ran on {} with {} threads of {}: {} passed, {failed} failed.",
            run.suites.join(", "),
            report.device,
            report.threads,
            processor(report),
            cases - failed,
        ),
        format!(
            "{elements} elements of {} outputs were compared with a float64 oracle that shares no code with the \
             backend; {outside} were outside their bound.",
            run.outputs().count(),
        ),
        format!(
            "Every output was filled with NaN before the call, and the memory around and between its elements was \
             compared after it: {stray} bytes had changed that should not have."
        ),
    ];
    if run.repeats > 1 {
        let differed = run.outputs().filter(|(_, output)| output.differed).count();
        sentences.push(format!(
            "Every call was made {} times, its outputs filled with NaN before each, and every byte of every output \
             compared with the first run's: {differed} outputs differed.",
            run.repeats,
        ));
    }
    let sampled = run.cases.iter().filter(|case| case.sampled).count();
    if sampled > 0 {
        sentences.push(format!(
            "Of {sampled} large cases a sample of channels, both ends included, was compared with the oracle, and \
             every element was checked for having been written."
        ));
    }
    let closest = run.outputs().max_by(|a, b| a.1.comparison.fraction.total_cmp(&b.1.comparison.fraction));
    if let Some((case, output)) = closest {
        sentences.push(format!(
            "The largest part of an error bound that any element used is {} ({} of {}).",
            percent(output.comparison.fraction),
            output.name,
            case.name,
        ));
    }
    sentences.push(format!(
        "Covered: dtypes {}; layouts {}; operations {}.",
        distinct(run, |case| case.dtype.as_str()),
        distinct(run, |case| case.layout.as_str()),
        distinct(run, |case| case.operation.as_str()),
    ));
    sentences
}

fn distinct<'a>(run: &'a Verification, of: impl Fn(&'a CaseReport) -> &'a str) -> String {
    let values: BTreeSet<_> = run.cases.iter().map(of).collect();
    values.into_iter().collect::<Vec<_>>().join(", ")
}

fn not_verified(run: &Verification) -> Vec<String> {
    if let Some(random) = &run.random {
        return not_verified_at_random(random);
    }
    let mut sentences = vec![
        "Nothing is shown for shapes, dtypes, layouts and options that no case has.".to_string(),
        "No speed is claimed: times are of single calls, on data that was just made. `causeway bench` measures."
            .to_string(),
        "The bounds of dweight and dbias assume that rounding errors of long sums are independent, as they are \
         for the random data of the suites (docs/verification.md)."
            .to_string(),
    ];
    for (reason, names) in &run.skipped {
        sentences.push(format!("{} did not run: {reason}.", shortened(names)));
    }
    if run.repeats == 1 {
        sentences.push(
            "Every call was made once: that it gives the same bits each time is not shown (`--repeat` does)."
                .to_string(),
        );
    }
    if let Some(text) = &run.case_filter {
        sentences.push(format!("Cases without {text:?} in their name did not run."));
    }
    if !run.passed {
        sentences.push("Correctness is not shown: see the failed cases.".to_string());
    }
    sentences
}

fn measured(report: &Report, run: &Benchmark) -> Vec<String> {
    let wrong = run.wrong();
    let mut sentences = vec![format!(
        "Timed: {} of suite {} on {} with {} threads of {}; {} gave right results, {wrong} wrong ones.",
        count(run.rows.len(), "call"),
        run.suite,
        report.device,
        report.threads,
        processor(report),
        run.rows.len() - wrong,
    )];
    let (products, others): (Vec<_>, Vec<_>) = run.rows.iter().partition(|row| row.operations.is_some());
    sentences.extend(range(&others, "Every call was timed in turns with its floor", "the floor's time"));
    if let Some(product) = products.first() {
        let timed = format!("Every product was timed in turns with {}", product.measurement.floor_method);
        sentences.extend(range(&products, &timed, "that library's time"));
    }
    if let Some(fewest) = run.rows.iter().map(|row| row.measurement.time.calls).min() {
        sentences.push(format!("Each time is the median of {fewest} measurements or more."));
    }
    if run.host_cost.is_some() {
        sentences.push(
            "What a call costs the host, and the first call of a process, were measured too.".to_string(),
        );
    }
    sentences
}

/// The rows that take least and most of the time of what they were timed in turns with.
fn range(rows: &[&super::Row], timed: &str, by: &str) -> Option<String> {
    let by_ratio = |a: &&&super::Row, b: &&&super::Row| a.measurement.ratio.total_cmp(&b.measurement.ratio);
    let (least, most) = (rows.iter().min_by(by_ratio)?, rows.iter().max_by(by_ratio)?);
    Some(format!(
        "{timed}. At best a call takes {:.2} × {by} ({} of {}), at worst {:.2} × ({} of {}).",
        least.measurement.ratio, least.call, least.case, most.measurement.ratio, most.call, most.case,
    ))
}

fn not_measured(report: &Report, run: &Benchmark) -> Vec<String> {
    let mut sentences = vec![
        "Not a speed claim for other shapes, dtypes, layouts and options than those of its rows.".to_string(),
        "Results were compared with an oracle or a library in samples only. `causeway verify` compares every element."
            .to_string(),
        "Calls found their tensors in memory: not a claim for tensors that the cache still holds.".to_string(),
    ];
    let noisy = run.rows.iter().filter(|row| row.measurement.noise > NOISY).count();
    if noisy > 0 {
        sentences.push(format!(
            "{} had a noise of more than {}: smaller differences there mean nothing.",
            count(noisy, "row"),
            percent(NOISY),
        ));
    }
    if report.device_evidence.is_some() {
        sentences.push(
            "The device's clocks were neither fixed nor recorded: the highest ones are listed, not those of the run."
                .to_string(),
        );
    }
    if run.wrong() > 0 {
        sentences.push("A row with wrong results shows no speed of anything.".to_string());
    }
    sentences
}

fn served(report: &Report, service: &Service) -> Vec<String> {
    let refused: u64 = service.refused.values().sum();
    let mut sentences = vec![format!(
        "A server with the protocol {} answered {} on {} with {} threads of {}, and refused {refused}.",
        service.protocol,
        count(service.answered() as usize, "request"),
        report.device,
        report.threads,
        processor(report),
    )];
    for (operation, counted) in &service.operations {
        sentences.push(format!(
            "{operation}: {}, {} of the device in all, {} at most.",
            count(counted.answered as usize, "answer"),
            super::words::seconds(counted.seconds),
            super::words::seconds(counted.longest),
        ));
    }
    if !service.refused.is_empty() {
        let codes: Vec<_> = service.refused.iter().map(|(code, count)| format!("{code} {count} ×")).collect();
        sentences.push(format!("Refused: {}.", codes.join(", ")));
    }
    sentences
}

/// The machine code: kernels in files, and the program.
fn code_that_ran(report: &Report) -> Vec<String> {
    let mut sentences = Vec::new();
    let kernels = &report.kernels.0;
    if !kernels.is_empty() {
        let compiled = kernels.iter().filter(|kernel| kernel.compiled).count();
        // An object of the simulator holds several kernels.
        let files: BTreeMap<_, _> = kernels.iter().map(|kernel| (&kernel.digest, kernel.bytes)).collect();
        let size = files.values().sum();
        sentences.push(format!(
            "{} ran, {} of code: {compiled} compiled by this process, {} read from the cache.",
            count(kernels.len(), "kernel"),
            bytes(size),
            kernels.len() - compiled,
        ));
        let checks: u64 = kernels.iter().map(|kernel| kernel.checks).sum();
        if checks > 0 {
            sentences.push(format!(
                "Right before launches the files of these kernels were read again, {checks} times in all, and their \
                 digests compared with those of the code that was loaded."
            ));
        }
        let refused: Vec<_> = kernels.iter().flat_map(|kernel| &kernel.refused).cloned().collect();
        sentences.push(match refused.as_slice() {
            [] => "No file of a kernel had been altered.".to_string(),
            several => format!(
                "{} had been altered, {} refused, and its kernel made anew before the launch: {}.",
                count(several.len(), "file"),
                if several.len() == 1 { "was" } else { "were" },
                several.join("; "),
            ),
        });
    }
    if let Some(program) = &report.program {
        let state = match &program.changed_to {
            None => "the same after the run".to_string(),
            Some(digest) => format!("after the run {digest}: the file has CHANGED meanwhile"),
        };
        sentences.push(format!("The program was {}, BLAKE3 {}, {state}.", program.file, program.digest));
    }
    sentences
}

/// What is not known about where the code came from.
fn unknown_origin(report: &Report) -> Vec<String> {
    let mut sentences = Vec::new();
    if report.causeway.contains("-dirty") {
        sentences.push(
            "The program was built from a working tree with changes that no commit holds: its source cannot be \
             looked up."
                .to_string(),
        );
    } else if report.causeway.contains("unknown") {
        sentences.push("The program does not know the commit that it was built from.".to_string());
    }
    let in_no_file = report.kernels.0.iter().filter(|kernel| kernel.file.is_none()).count();
    if in_no_file > 0 {
        sentences.push(format!(
            "The code of {} is in no file: the cache was off or could not be written. Only its digest is known.",
            count(in_no_file, "kernel"),
        ));
    }
    if report.device_evidence.as_ref().is_some_and(|device| device.compiler_digest.is_none()) {
        sentences.push("Which compiler made the kernels is not known.".to_string());
    }
    if report.program.as_ref().is_some_and(|program| program.changed_to.is_some()) {
        sentences.push("Which program ran is not certain: its file changed during the run.".to_string());
    }
    sentences
}

fn processor(report: &Report) -> &str {
    report.host.processor.as_deref().unwrap_or("an unnamed processor")
}

#[cfg(test)]
#[path = "sentences_tests.rs"]
pub(super) mod tests;
