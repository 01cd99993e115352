//! What a [`Gpu`] asks of its runtime: which launches may overlap, whose turn it is, what is told when memory runs out. On an
//! emulated device that is watched.
#![allow(unsafe_code)] // passes calls on

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use glm5::cuda::Gpu;
use glm5::cuda::runtime::{Launch, Memory, Properties, Recorded, Runtime};
use glm5::kernels::{self, Entry};
use glm5::ops::norm::config::{NormConfig, NormProblem};
use glm5::ops::norm::{layer_norm, rms_norm};
use glm5::quant::{ActBlockSize, GgmlType};
use glm5::sys::{norm_quantize_params, quantize_rows_params, row_act};
use glm5::tensor::{Device, Tensor};
use glm5::{Error, Result};
use glm5_emu::{Emulator, Options};

/// What was seen.
#[derive(Debug, Default)]
struct Seen {
    /// Of each launch, whether it may overlap.
    overlaps: Mutex<Vec<bool>>,
    /// Between the begin and the end of a capture.
    capturing: AtomicBool,
    /// Launches within captures.
    recorded: AtomicU32,
    /// Whether there is no memory for launches.
    full: AtomicBool,
}

#[derive(Debug)]
struct Watched {
    emulator: Emulator,
    seen: Arc<Seen>,
}

fn watched() -> (Gpu, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    let emulator = Emulator::new(Options { memory: 1 << 20, ..Options::default() });
    (Gpu::new(Box::new(Watched { emulator, seen: seen.clone() })), seen)
}

impl Runtime for Watched {
    fn properties(&self) -> &Properties {
        self.emulator.properties()
    }
    fn memory(&self) -> Result<Memory> {
        self.emulator.memory()
    }
    fn alloc(&self, bytes: usize, label: &'static str) -> Result<u64> {
        self.emulator.alloc(bytes, label)
    }
    unsafe fn free(&self, address: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.emulator.free(address) }
    }
    unsafe fn upload(&self, to: u64, from: &[u8], progress: &mut dyn FnMut(usize)) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.emulator.upload(to, from, progress) }
    }
    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.emulator.download(from, to) }
    }
    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.emulator.copy(from, to, bytes) }
    }
    unsafe fn fill(&self, at: u64, byte: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.emulator.fill(at, byte, bytes) }
    }
    fn prepare(&self, entry: Entry) -> Result<()> {
        self.emulator.prepare(entry)
    }
    unsafe fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        if self.seen.full.load(Ordering::SeqCst) {
            let Memory { free, total } = self.memory()?;
            let (label, gpu) = (format!("launch of {}", launch.entry), self.properties().to_string());
            return Err(Error::OutOfMemory { label, needed: None, gpu, free, total, held: Vec::new() });
        }
        self.seen.overlaps.lock().unwrap().push(launch.overlaps);
        if self.seen.capturing.load(Ordering::SeqCst) {
            self.seen.recorded.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: the caller's promise.
        unsafe { self.emulator.launch(launch) }
    }
    fn synchronize(&self) -> Result<()> {
        self.emulator.synchronize()
    }
    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Duration> {
        self.emulator.time(work)
    }
    fn begin_capture(&self) -> Result<()> {
        self.emulator.begin_capture()?;
        self.seen.capturing.store(true, Ordering::SeqCst);
        Ok(())
    }
    fn end_capture(&self, reuse: Option<Box<dyn Recorded>>) -> Result<Box<dyn Recorded>> {
        self.seen.capturing.store(false, Ordering::SeqCst);
        self.emulator.end_capture(reuse)
    }
}

const N: usize = 64;

/// A row of ones.
fn row(gpu: &Gpu) -> Tensor {
    Tensor::from_vec(&Device::Cuda(gpu.clone()), 1, N, vec![1.0; N]).unwrap()
}

/// Whether each launch of `work` may overlap with those before it.
fn overlaps(seen: &Seen, work: impl FnOnce() -> Result<()>) -> Vec<bool> {
    seen.overlaps.lock().unwrap().clear();
    work().unwrap();
    seen.overlaps.lock().unwrap().clone()
}

/// A launch waits for all before it only where its prologue could read what they write, and behind graphs.
#[test]
fn launches_overlap_where_they_may() {
    let (gpu, seen) = watched();
    let (x, v, b) = (row(&gpu), row(&gpu), row(&gpu));
    let [mut w, mut y, mut z] = [0; 3].map(|_| row(&gpu));
    let written = overlaps(&seen, || {
        rms_norm(&x, &v, 1e-5, &mut w)?;
        rms_norm(&x, &w, 1e-5, &mut y)?; // reads what was just written
        rms_norm(&y, &v, 1e-5, &mut z)?; // so does this, but not early
        rms_norm(&x, &w, 1e-5, &mut y)?;
        layer_norm(&mut z, &v, &w, 1e-5)
    });
    assert_eq!(written, [true, false, true, false, false]);
    type Point<'a> = (&'a str, Box<dyn Fn(&mut Tensor) -> Result<()> + 'a>);
    let points: [Point<'_>; 6] = [
        ("a wait", Box::new(|_| gpu.synchronize())),
        ("a download", Box::new(|_| x.to_vec().map(|_| ()))),
        ("an upload", Box::new(|z| z.cuda_mut()?.upload(3, &[1.0]))),
        ("a fill", Box::new(|z| z.cuda_mut()?.fill_bytes(0..1, 1))),
        ("a copy", Box::new(|z| z.cuda_mut()?.copy_from(0, x.cuda()?, 0..1))),
        ("a copy within", Box::new(|z| z.cuda_mut()?.copy_within(0..1, 1))),
    ];
    for (what, point) in &points {
        let constant = overlaps(&seen, || {
            rms_norm(&x, &v, 1e-5, &mut w)?;
            point(&mut z)?;
            rms_norm(&x, &w, 1e-5, &mut y)?;
            layer_norm(&mut y, &w, &b, 1e-5)
        });
        assert_eq!(constant, [true; 3], "{what}");
    }
    // No such points: nothing was written, another device waited, an upload that is none.
    let (other, _) = watched();
    let still = overlaps(&seen, || {
        rms_norm(&x, &v, 1e-5, &mut w)?;
        y.cuda_mut()?.upload(0, &[])?;
        other.synchronize()?;
        rms_norm(&x, &w, 1e-5, &mut y)
    });
    assert_eq!(still, [true, false]);
    // A kernel that `progress` launches comes behind the copy.
    gpu.synchronize().unwrap();
    let called_back = overlaps(&seen, || {
        y.cuda_mut()?.upload_with(0, &[1.0], &mut |_| rms_norm(&x, &v, 1e-5, &mut w).unwrap())?;
        rms_norm(&x, &w, 1e-5, &mut z)
    });
    assert_eq!(called_back, [true, false]);
}

/// A kernel writes a weight, others follow, and one reads the weight before its wait, as if it had always been there. `between`: whether each of
/// those waits before it lets the next one begin.
fn read_early(between: &[bool], recorded: bool) -> Result<()> {
    let (gpu, _) = watched();
    let (x, v) = (row(&gpu), row(&gpu));
    let [mut w, mut y, mut z] = [0; 3].map(|_| row(&gpu));
    let mut rounded = gpu.zeros::<u8>("test", size_of::<row_act>())?;
    let problem = NormProblem { rows: 1, n: N, out: GgmlType::F32, block: ActBlockSize::B32, aligned: true };
    let norm = NormConfig::pick(problem, gpu.properties().sms)?;
    let quantize = kernels::quantize_rows::INSTANCES[0].entry;
    gpu.synchronize()?;
    let mut run = || {
        rms_norm(&x, &v, 1e-5, &mut w)?;
        for waits in between {
            match waits {
                false => rms_norm(&x, &v, 1e-5, &mut y)?,
                true => {
                    let (x, out) = (x.cuda()?.as_ptr(), rounded.as_mut_ptr().cast());
                    let (sorted, places) = (ptr::null(), ptr::null());
                    let params = quantize_rows_params { x, out, sorted, places, m: 1, k: N as u32, top_k: 1 };
                    // SAFETY: one row of `N` values, for which there is room.
                    unsafe { gpu.launch(quantize, [1, 1, 1], &params) }?;
                }
            }
        }
        let params = norm_quantize_params {
            x: x.cuda()?.as_ptr().cast_mut(),
            r: ptr::null(),
            w: w.cuda()?.as_ptr(), // not as what is read early
            y: z.cuda_mut()?.as_mut_ptr().cast(),
            qs: ptr::null_mut(),
            scales: ptr::null_mut(),
            sums: ptr::null_mut(),
            x_stride: N as u64,
            y_stride: N as u64,
            n: N as u32,
            eps: 1e-5,
        };
        // SAFETY: rows of `N` values, for which the kernel was chosen. Whether `w` is there is what is asked.
        unsafe { gpu.launch(norm.entry, [norm.grid, 1, 1], &params) }
    };
    match recorded {
        false => run(),
        true => gpu.capture(run)?.launch(),
    }
}

/// What was written before a kernel that waits before it lets the next one begin can be read early behind it, and nothing else.
#[test]
fn early_reads_follow_a_kernel_that_waited() {
    for recorded in [false, true] {
        for (between, right) in [
            (&[][..], false),
            (&[false], false),
            (&[true], true),
            (&[false, true], true),
            (&[true, false], true),
            (&[false, false], false),
        ] {
            let result = read_early(between, recorded);
            let early = matches!(&result, Err(e) if e.to_string().contains("too early"));
            assert!(result.is_ok() == right && early != right, "{between:?}, {recorded}: {result:?}");
        }
    }
}

#[test]
fn what_follows_a_graph_waits_for_its_end() {
    let (gpu, seen) = watched();
    let (x, v) = (row(&gpu), row(&gpu));
    let [mut w, mut y] = [0; 2].map(|_| row(&gpu));
    let mut graph = None;
    let recorded = overlaps(&seen, || {
        rms_norm(&x, &v, 1e-5, &mut w)?;
        graph = Some(gpu.capture(|| {
            rms_norm(&x, &w, 1e-5, &mut y)?; // a graph begins when all before it has ended
            rms_norm(&x, &v, 1e-5, &mut w)?;
            rms_norm(&x, &w, 1e-5, &mut y)?;
            w.cuda_mut()?.fill_bytes(0..1, 1)?;
            rms_norm(&x, &w, 1e-5, &mut y)
        })?);
        rms_norm(&x, &w, 1e-5, &mut y) // the first launch may still be running
    });
    assert_eq!(recorded, [true, true, true, false, true, false]);
    let behind = overlaps(&seen, || {
        gpu.synchronize()?;
        graph.as_mut().unwrap().launch()?;
        rms_norm(&x, &v, 1e-5, &mut y)?;
        rms_norm(&x, &w, 1e-5, &mut y)
    });
    assert_eq!(behind, [false, true]);
}

/// Work of another thread is not recorded by a capture, and what it frees meanwhile is freed.
#[test]
fn a_capture_is_of_one_thread() {
    let (gpu, seen) = watched();
    let x = row(&gpu);
    let ones = x.to_vec().unwrap();
    let (captured, others, stop) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    thread::scope(|s| {
        let other = s.spawn(|| {
            let (v, mut y) = (row(&gpu), row(&gpu));
            while !stop.load(Ordering::SeqCst) {
                drop(gpu.zeros::<u8>("gone", 100).unwrap());
                rms_norm(&x, &v, 0.0, &mut y).unwrap();
                assert_eq!(y.to_vec().unwrap(), ones);
                y.cuda_mut().unwrap().fill_bytes(0..N, 0xff).unwrap();
                others.fetch_add(1, Ordering::SeqCst);
            }
        });
        let (v, mut y) = (row(&gpu), row(&gpu));
        let enough = || captured.load(Ordering::SeqCst) >= 50 && others.load(Ordering::SeqCst) >= 10;
        while !enough() && !other.is_finished() {
            let mut graph = gpu
                .capture(|| {
                    thread::sleep(Duration::from_millis(1));
                    rms_norm(&x, &v, 0.0, &mut y)?;
                    thread::sleep(Duration::from_millis(1));
                    Ok(())
                })
                .unwrap();
            captured.fetch_add(1, Ordering::SeqCst);
            assert_eq!(graph.buffers(), 3);
            graph.launch().unwrap();
        }
        stop.store(true, Ordering::SeqCst);
    });
    assert_eq!(seen.recorded.load(Ordering::SeqCst), captured.into_inner());
    assert!(gpu.held().contains(&("gone", 0)), "{:?}", gpu.held());
    gpu.synchronize().unwrap();
}

/// The mark that a buffer is being written lies between the points of its own thread, whatever others do.
#[test]
fn turns_keep_addresses_and_launch_together() {
    let (gpu, _) = watched();
    let mut w = row(&gpu);
    let (taken, waited) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|s| {
        let turn = gpu.turn();
        s.spawn(|| {
            while !taken.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            gpu.synchronize().unwrap();
            waited.store(true, Ordering::SeqCst);
        });
        let address = w.cuda_mut().unwrap().as_mut_ptr();
        taken.store(true, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(20));
        assert!(!address.is_null() && !waited.load(Ordering::SeqCst));
        drop(turn);
    });
    assert!(waited.into_inner());
}

/// Memory that a launch lacks, for code or a graph, is told with the breakdown, and the device lives on.
#[test]
fn launches_may_lack_memory() {
    let (gpu, seen) = watched();
    let (x, v, mut y) = (row(&gpu), row(&gpu), row(&gpu));
    seen.full.store(true, Ordering::SeqCst);
    let direct = rms_norm(&x, &v, 0.0, &mut y).unwrap_err();
    let captured = gpu.capture(|| rms_norm(&x, &v, 0.0, &mut y)).unwrap_err();
    for e in [direct, captured] {
        assert!(matches!(&e, Error::OutOfMemory { held, .. } if held == &[("activations", 768)]), "{e:?}");
        let text = e.to_string();
        assert!(
            text.contains("no memory for launch of norm_quantize_f32") && text.contains("activations 0.0"),
            "{text}"
        );
    }
    seen.full.store(false, Ordering::SeqCst);
    gpu.capture(|| rms_norm(&x, &v, 0.0, &mut y)).unwrap().launch().unwrap();
    assert_eq!(y.to_vec().unwrap(), [1.0; N]);
}
