//! Any bytes as requests of the text protocol: each reply is lines with results, or an error with its status.
#![no_main]

use causeway_server::Protocol;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for reply in causeway_fuzz::frames::serve(Protocol::Text, data) {
        let reply = String::from_utf8(reply).expect("replies are text");
        match reply.strip_prefix("ERROR=") {
            Some(rest) => {
                let status = rest.split(' ').next().unwrap_or_default();
                assert!(matches!(status, "2" | "3" | "4" | "7" | "8" | "9" | "10"), "{reply}");
                assert!(reply.ends_with('\n') && reply.lines().count() == 1, "{reply}");
            }
            None => assert!(reply.contains("RESULTS=") && reply.contains("KERNEL_TIME_MS="), "{reply}"),
        }
    }
});
