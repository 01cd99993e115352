//! [`Emulator`]: the runtime of an emulated GPU. Everything is done when a call returns.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use glm5::cuda::runtime::{Launch, Memory, Properties, Recorded, Runtime};
use glm5::kernels::Entry;
use glm5::{Error, Result};

use crate::memory::{Arena, GUARD, Live};
use crate::{EmuBuffer, EmuLaunch, FUNCTIONS, MAX_BUFFERS, Options};

/// `emu_status` values by name, without `EMU_OK`.
const STATUS: &[&str] =
    &["bad launch", "deadlock", "divergence", "bad address", "mbarrier misuse", "race", "trap", "too early"];

/// An emulated GPU.
#[derive(Debug)]
pub struct Emulator {
    properties: Properties,
    /// A family whose kernels are said not to be there.
    refused: Option<&'static str>,
    /// Locked for whole calls: a stream does one thing at a time.
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    name: String,
    arena: Arena,
    seed: u64,
    launches: u64,
    recording: Option<Vec<Work>>,
}

/// What a graph is made of.
#[derive(Debug)]
enum Work {
    Launch { entry: Entry, grid: [u32; 3], params: Vec<MaybeUninit<u8>>, overlaps: bool },
    Copy { from: u64, to: u64, bytes: usize },
    Fill { at: u64, byte: u8, bytes: usize },
}

impl Emulator {
    /// A device with nothing in its memory.
    pub fn new(options: Options) -> Self {
        let Options { seed, memory, sms, compute_capability, smem_per_block, smem_per_sm, refused } = options;
        let properties = Properties {
            name: format!("emulator, GLM5_EMU_SEED={seed}"),
            compute_capability,
            sms,
            memory,
            l2: 1 << 16,
            smem_per_block,
            smem_per_sm,
            driver: (0, 0),
        };
        let state = State {
            name: properties.to_string(),
            arena: Arena::new(memory),
            seed,
            launches: 0,
            recording: None,
        };
        Emulator { properties, refused, state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn error(&self, call: &str, message: String) -> Error {
        Error::Driver { gpu: self.name.clone(), call: call.into(), message }
    }

    fn check_range(&self, call: &str, address: u64, bytes: usize) -> Result<()> {
        self.arena.check_range(address, bytes).map_err(|message| self.error(call, message))
    }

    /// Runs it now, or records it.
    ///
    /// # Safety
    /// As [`State::run`], then or whenever the graph is launched.
    unsafe fn issue(&mut self, work: Work) -> Result<()> {
        match &mut self.recording {
            Some(recording) => recording.push(work),
            // SAFETY: the caller's promise.
            None => unsafe { self.run(&work) }?,
        }
        Ok(())
    }

    /// # Safety
    /// What the work says of memory is true. (Ranges of copies and fills are checked.)
    unsafe fn run(&mut self, work: &Work) -> Result<()> {
        match work {
            Work::Launch { entry, grid, params, overlaps } => {
                if !overlaps {
                    self.arena.forget_written(); // it begins when all before it have ended
                }
                let launch = Launch { entry: *entry, grid: *grid, params, overlaps: *overlaps };
                // SAFETY: the caller's promise.
                unsafe { self.launch(&launch) }
            }
            Work::Copy { from, to, bytes } => {
                self.arena.forget_written(); // copies and fills wait for kernels, and kernels for them
                self.check_range("copy", *from, *bytes)?;
                self.check_range("copy", *to, *bytes)?;
                // SAFETY: both ranges were checked; they are apart, which is the caller's promise.
                unsafe { ptr::copy_nonoverlapping(host(*from).cast_const(), host(*to), *bytes) };
                Ok(())
            }
            Work::Fill { at, byte, bytes } => {
                self.arena.forget_written();
                self.check_range("fill", *at, *bytes)?;
                // SAFETY: the range was checked.
                unsafe { host(*at).write_bytes(*byte, *bytes) };
                Ok(())
            }
        }
    }

    /// # Safety
    /// `params` is what the kernel takes, and what it says of memory is true.
    unsafe fn launch(&mut self, launch: &Launch<'_>) -> Result<()> {
        let Launch { entry, grid, params, overlaps } = *launch;
        let Some((_, function)) = FUNCTIONS.get(entry as usize).filter(|(name, _)| *name == entry.name())
        else {
            let built_for = format!("{} kernels of another table", FUNCTIONS.len());
            return Err(Error::NoKernelImage { entry: entry.name(), gpu: self.name.clone(), built_for });
        };
        // Which of them the kernel may touch its params do not say, so all are named; if they are too many, the newest. Guards
        // of the others are compared afterwards.
        let live = self.arena.newest(MAX_BUFFERS);
        let mut named: Vec<_> = live
            .iter()
            .map(|Live { address, bytes, written, .. }| EmuBuffer {
                data: host(*address).cast(),
                bytes: *bytes as u64,
                guard_bytes: GUARD as u64,
                writable: 1,
                written: u32::from(*written),
            })
            .collect();
        let (mut report, mut early) = ([0u8; 2048], 0);
        let launch = EmuLaunch {
            grid,
            block: [entry.threads(), 1, 1],
            shared_bytes: entry.smem_bytes(),
            params_bytes: params.len() as u32,
            pdl: u32::from(overlaps),
            resident_blocks: 0,
            // Each launch has its own, so that one launched twice does not run in the same order twice.
            seed: self.seed.wrapping_add(self.launches.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            buffers: named.as_mut_ptr(),
            n_buffers: named.len() as u64,
            report: report.as_mut_ptr().cast(),
            report_bytes: report.len() as u64,
            early: &raw mut early,
        };
        self.launches += 1;
        // SAFETY: the function is of this entry, `launch` is whole and lives until it returns; the params are the caller's
        // promise.
        let status = unsafe { function(params.as_ptr().cast(), &launch) };
        for (live, _) in live.iter().zip(&named).filter(|(_, named)| named.written & 2 != 0) {
            self.arena.note_written(live.address, self.launches);
        }
        if early == 0 {
            self.arena.forget_written_before(self.launches);
        }
        let call = || format!("{entry}, grid {grid:?}, launch {}", self.launches);
        if status != 0 {
            let text = CStr::from_bytes_until_nul(&report).unwrap_or_default().to_string_lossy();
            let what = STATUS.get(status as usize - 1).unwrap_or(&"unknown status");
            return Err(self.error(&call(), format!("{what}: {text}{}", named_in(&text, &live))));
        }
        self.arena.check().map_err(|damage| self.error(&call(), damage))
    }
}

/// What the buffer is for that a report speaks of by number.
fn named_in(report: &str, live: &[Live]) -> String {
    let number = report.split_once("of buffer ").map_or("", |(_, rest)| rest);
    let number: String = number.chars().take_while(char::is_ascii_digit).collect();
    let buffer = number.parse().ok().and_then(|number: usize| live.get(number));
    buffer.map_or(String::new(), |buffer| format!(" (it is for \"{}\")", buffer.label))
}

impl Runtime for Emulator {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn memory(&self) -> Result<Memory> {
        let (free, total) = self.state().arena.free_and_total();
        Ok(Memory { free, total })
    }

    fn alloc(&self, bytes: usize, label: &'static str) -> Result<u64> {
        let mut state = self.state();
        let (free, total) = state.arena.free_and_total();
        let gpu = state.name.clone();
        let needed = Some(bytes as u64);
        state.arena.alloc(bytes, label).ok_or(Error::OutOfMemory {
            label: label.into(),
            needed,
            gpu,
            free,
            total,
            held: Vec::new(),
        })
    }

    unsafe fn free(&self, address: u64) -> Result<()> {
        let mut state = self.state();
        state.arena.free(address).map_err(|message| state.error("free", message))
    }

    unsafe fn upload(&self, to: u64, from: &[u8], progress: &mut dyn FnMut(usize)) -> Result<()> {
        let mut state = self.state();
        state.arena.forget_written();
        state.check_range("upload", to, from.len())?;
        // SAFETY: the range was checked.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), host(to), from.len()) };
        drop(state);
        progress(from.len());
        Ok(())
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        let mut state = self.state();
        state.arena.forget_written();
        state.check_range("download", from, to.len())?;
        // SAFETY: the range was checked.
        unsafe { ptr::copy_nonoverlapping(host(from).cast_const(), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.state().issue(Work::Copy { from, to, bytes }) }
    }

    unsafe fn fill(&self, at: u64, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.state().issue(Work::Fill { at, byte, bytes }) }
    }

    fn prepare(&self, entry: Entry) -> Result<()> {
        match self.refused.is_some_and(|family| entry.family() == family) {
            true => Err(Error::NoKernelImage {
                entry: entry.name(),
                gpu: self.properties.to_string(),
                built_for: "another device".into(),
            }),
            false => Ok(()),
        }
    }

    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        let Launch { entry, grid, params, overlaps } = *launch;
        self.prepare(entry)?;
        // SAFETY: the caller's promise.
        unsafe { self.state().issue(Work::Launch { entry, grid, params: params.to_vec(), overlaps }) }
    }

    fn synchronize(&self) -> Result<()> {
        self.state().arena.forget_written();
        Ok(())
    }

    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        let start = Instant::now();
        work()?;
        Ok(start.elapsed())
    }

    fn begin_capture(&self) -> Result<()> {
        let mut state = self.state();
        if state.recording.is_some() {
            return Err(state.error("begin capture", "a recording is under way".into()));
        }
        state.recording = Some(Vec::new());
        Ok(())
    }

    fn end_capture(&self, _reuse: Option<Box<dyn Recorded>>) -> Result<Box<dyn Recorded>> {
        let mut state = self.state();
        match state.recording.take() {
            Some(works) => Ok(Box::new(Recording { works, state: self.state.clone() })),
            None => Err(state.error("end capture", "there is no recording".into())),
        }
    }
}

#[derive(Debug)]
struct Recording {
    works: Vec<Work>,
    state: Arc<Mutex<State>>,
}

impl Recorded for Recording {
    unsafe fn launch(&mut self) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.arena.forget_written(); // a graph begins when all before it has ended
        // SAFETY: the caller's promise, and that of those who issued the work.
        self.works.iter().try_for_each(|work| unsafe { state.run(work) })
    }
}

/// Memory by address.
fn host(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address as usize)
}
