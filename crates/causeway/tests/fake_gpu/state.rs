//! The fake's accounts: what is live, what was called, what has to fail.

use std::alloc::Layout;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CString, c_int, c_void};
use std::sync::{Arc, Mutex};

use crate::simulated::{self, CodeObject};
use crate::{CAPTURE_INVALIDATED, CAPTURE_UNSUPPORTED, COMPILATION, INVALID_VALUE, MEMORY, NO_MEMORY, Raw};

#[derive(Default)]
pub struct State {
    /// Calls made so far, and the one to fail with a status.
    pub calls: u64,
    pub fault: Option<(u64, c_int)>,
    /// The call that was made to fail, and how many launches there had been.
    pub failed: Option<(&'static str, u64)>,
    /// The call that is being made ends something and reports a failure.
    pub failing: bool,
    pub lost: bool,
    /// Every call since the last fault was set, with its arguments.
    pub log: Vec<String>,
    next: usize,
    /// Live objects by handle.
    live: HashMap<usize, &'static str>,
    counts: HashMap<&'static str, u64>,
    /// References to primary contexts, by device.
    pub contexts: HashMap<c_int, u64>,
    pub memory: BTreeMap<u64, Block>,
    pub used: usize,
    pub programs: HashMap<usize, Program>,
    /// Modules and functions of the simulator.
    pub code: HashMap<usize, Arc<CodeObject>>,
    /// Recorded streams: the recording's number, or 0 for a broken one.
    pub recordings: HashMap<usize, u64>,
    pub launches: u64,
    pub last_argument: Vec<u8>,
    pub pending_error: c_int,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    /// This thread's stack of CUDA contexts, and its HIP device.
    pub static CURRENT: RefCell<(Vec<usize>, c_int)> = const { RefCell::new((Vec::new(), 0)) };
}

pub fn state<T>(work: impl FnOnce(&mut State) -> T) -> T {
    work(STATE.lock().unwrap().get_or_insert_with(State::default))
}

/// Makes a call: records it, and fails it if it is its turn.
pub fn call(name: &'static str, arguments: String, work: impl FnOnce() -> c_int) -> c_int {
    let Some(code) = state(|state| state.begin(name, arguments)) else { return work() };
    // As drivers do: what ends something ends it, and reports an earlier failure.
    if ["Destroy", "Free", "Unload", "Release", "PopCurrent", "EndCapture"]
        .iter()
        .any(|end| name.contains(end))
    {
        state(|state| state.failing = true);
        work();
        state(|state| state.failing = false);
    }
    code
}

impl State {
    /// Counts a call; the status that it has to fail with, if any.
    fn begin(&mut self, name: &'static str, arguments: String) -> Option<c_int> {
        self.calls += 1;
        self.log.push(format!("{name}({arguments})"));
        let fault = self.fault.filter(|(at, _)| *at == self.calls).map(|(_, code)| code);
        // A lost device has a compiler still.
        let code = if self.lost && !name.contains("rtc") { 700 } else { fault? };
        self.failed = Some((name, self.launches));
        // HIP keeps errors for whoever asks; the others do not.
        if name.starts_with("hip") && !name.starts_with("hiprtc") {
            self.pending_error = code;
        }
        Some(code)
    }

    pub fn make(&mut self, kind: &'static str) -> usize {
        self.next += 0x100;
        self.live.insert(self.next, kind);
        *self.counts.entry(kind).or_default() += 1;
        self.next
    }

    pub fn end(&mut self, kind: &'static str, handle: Raw) -> c_int {
        if !self.has(kind, handle) {
            return INVALID_VALUE;
        }
        self.live.remove(&(handle as usize));
        *self.counts.entry(kind).or_default() -= 1;
        0
    }

    pub fn end_module(&mut self, module: Raw) -> c_int {
        self.code.remove(&(module as usize));
        self.end("module", module)
    }

    pub fn has(&self, kind: &'static str, handle: Raw) -> bool {
        self.live.get(&(handle as usize)) == Some(&kind)
    }

    pub fn count(&self, kind: &str) -> u64 {
        self.counts.get(kind).copied().unwrap_or(0)
    }

    /// A number for a recording.
    pub fn number(&mut self) -> u64 {
        self.next += 0x100;
        self.next as u64
    }

    /// 0 if work can be put on a stream.
    pub fn stream(&self, stream: Raw) -> c_int {
        if !stream.is_null() && !self.has("stream", stream) {
            return INVALID_VALUE;
        }
        if self.recordings.get(&(stream as usize)) == Some(&0) { CAPTURE_INVALIDATED } else { 0 }
    }

    /// Breaks a recording for a question that it does not take.
    pub fn refuse_recorded(&mut self, stream: Raw) -> c_int {
        match self.recordings.get_mut(&(stream as usize)) {
            Some(number) => {
                *number = 0;
                CAPTURE_UNSUPPORTED
            }
            None => self.stream(stream),
        }
    }

    /// Takes a launch whose argument's first bytes are kept. Those of all kernels have this size at least.
    pub fn launch(&mut self, function: Raw, threads: u32, stream: Raw, arguments: *mut *mut c_void) -> c_int {
        if !self.has("module", function) || threads > 1024 {
            return INVALID_VALUE;
        }
        let code = self.stream(stream);
        if code == 0 {
            self.last_argument =
                unsafe { std::slice::from_raw_parts((*arguments).cast::<u8>(), 24) }.to_vec();
            self.launches += 1;
        }
        code
    }

    pub fn allocate(&mut self, bytes: usize) -> Result<u64, c_int> {
        if bytes > MEMORY - self.used {
            return Err(NO_MEMORY);
        }
        self.used += bytes.max(1);
        let block = Block::new(bytes);
        let address = block.address as u64;
        self.memory.insert(address, block);
        Ok(address)
    }

    pub fn free(&mut self, address: u64) -> c_int {
        let Some(block) = self.memory.remove(&address) else { return INVALID_VALUE };
        self.used -= block.layout.size();
        0
    }

    /// The bytes at an address, which may lie inside a block.
    pub fn bytes(&mut self, address: u64, length: usize) -> Option<&mut [u8]> {
        let (start, block) = self.memory.range_mut(..=address).next_back()?;
        let offset = usize::try_from(address - start).ok()?;
        block.bytes().get_mut(offset..offset.checked_add(length)?)
    }
}

/// A program of the compilers.
pub struct Program {
    pub text: CString,
    pub log: CString,
    pub code: Vec<u8>,
}

impl Program {
    /// What a text is made into is the text itself, where nothing runs it.
    pub fn compile(&mut self, simulated: bool) -> c_int {
        if !simulated {
            self.code = self.text.as_bytes_with_nul().to_vec();
            return 0;
        }
        match simulated::compile(self.text.to_str().unwrap()) {
            Ok(code) => {
                self.code = code;
                0
            }
            Err(log) => {
                self.log = CString::new(log).unwrap();
                COMPILATION
            }
        }
    }
}

/// Memory aligned as a device's.
pub struct Block {
    address: *mut u8,
    layout: Layout,
}

// The memory is this block's alone.
unsafe impl Send for Block {}

impl Block {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.max(1), 256).unwrap();
        let block = Block { address: unsafe { std::alloc::alloc(layout) }, layout };
        assert!(!block.address.is_null());
        unsafe { block.address.write_bytes(0xa5, layout.size()) };
        block
    }

    fn bytes(&mut self) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.address, self.layout.size()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        unsafe { std::alloc::dealloc(self.address, self.layout) };
    }
}
