//! What the tests ask and set.

use std::ffi::c_int;

use crate::state::{CURRENT, State, state};

/// Makes the call number `after` from now on fail once with a status; 0 for none.
#[unsafe(no_mangle)]
extern "C" fn fake_fail(after: u64, code: c_int) {
    state(|state| {
        state.fault = (after > 0).then_some((state.calls + after, code));
        state.failed = None;
        state.log.clear();
        state.pending_error = 0;
    });
}

/// Every call from now on fails as on a lost device.
#[unsafe(no_mangle)]
extern "C" fn fake_lose() {
    state(|state| state.lost = true);
}

/// Writes a text as it fits, and returns how long it is.
unsafe fn write(text: &str, out: *mut u8, length: usize) -> usize {
    unsafe { out.copy_from(text.as_ptr(), text.len().min(length)) };
    text.len()
}

/// Writes the calls since the last fault was set, one to a line.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_log(out: *mut u8, length: usize) -> usize {
    state(|state| unsafe { write(&state.log.join("\n"), out, length) })
}

/// Writes the name of the call that was made to fail, or nothing.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_failed(out: *mut u8, length: usize) -> usize {
    state(|state| unsafe { write(state.failed.map_or("", |(name, _)| name), out, length) })
}

/// Launches since a call was made to fail.
#[unsafe(no_mangle)]
extern "C" fn fake_launches_since() -> u64 {
    state(|state| state.failed.map_or(0, |(_, before)| state.launches - before))
}

/// Writes the fake's accounts, a name and a number to a line.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_accounts(out: *mut u8, length: usize) -> usize {
    state(|state| unsafe { write(&accounts(state), out, length) })
}

fn accounts(state: &State) -> String {
    let kinds = ["stream", "event", "graph", "executable", "module", "pool", "program"];
    let mut text: String = kinds.iter().map(|kind| format!("{kind} {}\n", state.count(kind))).collect();
    // Contexts on this thread's stack, or HIP's current device.
    let current = CURRENT.with_borrow(|(stack, device)| stack.len() as u64 + *device as u64);
    for (name, number) in [
        ("context", state.contexts.values().sum()),
        ("allocation", state.memory.len() as u64),
        ("recording", state.recordings.len() as u64),
        ("current", current),
        ("launches", state.launches),
        ("pending_error", state.pending_error as u64),
    ] {
        text += &format!("{name} {number}\n");
    }
    text
}

/// Writes the first 24 bytes of the last launch's argument.
#[unsafe(no_mangle)]
unsafe extern "C" fn fake_last_argument(out: *mut u8) {
    state(|state| unsafe { out.copy_from(state.last_argument.as_ptr(), state.last_argument.len()) });
}
