//! Kernels that may begin before those in front of them have ended, on what those write. On GPUs only.

use glm5::ops::dequantize::dequantize;
use glm5::ops::norm::{layer_norm, norm_quantize, rms_norm};
use glm5::quant::{ActBlockSize, Weight};
use glm5::tensor::{Device, QuantizedRows, Tensor};

use super::blocks::Rng;
use super::inputs::{Bits, host, matrix, poisoned, scales, tensor};

macro_rules! overlap_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { overlap, $devices, $cases; ;
        waits_for_earlier_kernels, weights_may_come_from_kernels, a_replayed_chain_is_the_same_step_by_step }
    };
}
pub(crate) use overlap_properties;

/// Inputs that a kernel has just written: nothing of them may be read before it is sure to have ended.
pub fn waits_for_earlier_kernels(devices: &[Device]) {
    let (m, n) = (3, 512);
    let rng = &mut Rng(5);
    let (x, r, w) = (rng.normals(m * n), rng.normals(m * n), rng.normals(n));
    for d in devices {
        let (w, b) = (tensor(d, n, &w), tensor(d, n, &rng.normals(n)));
        let from = |values: &[f32]| matrix(d, &Weight::from_f32([1, m, n], values).unwrap());
        let (from_x, from_r) = (from(&x), from(&r));
        let results = |computed: bool| {
            let (mut x, mut r) = (tensor(d, n, &x), tensor(d, n, &r));
            let mut y = poisoned(d, m, n);
            let mut q = QuantizedRows::new(d, m, n, ActBlockSize::B32).unwrap();
            if computed {
                dequantize(&from_x, 0, 0..m, &mut x).unwrap();
                dequantize(&from_r, 0, 0..m, &mut r).unwrap();
            }
            norm_quantize(&mut x, Some(&r), &w, 1e-5, Some(&mut y), Some(&mut q)).unwrap();
            layer_norm(&mut y, &w, &b, 1e-5).unwrap();
            (host(&x), host(&y), q.to_activations().unwrap().bits())
        };
        assert_eq!(results(true), results(false), "{}", d.name());
    }
}

/// Weights that a kernel has just written, which kernels that overlap with it must not read early: launched one by one, in a
/// graph, and written in a graph but read behind it.
pub fn weights_may_come_from_kernels(devices: &[Device]) {
    let n = 512;
    let rng = &mut Rng(6);
    let (x, v) = (rng.normals(2 * n), rng.normals(n));
    for d in devices {
        let (x, v, ones) = (tensor(d, n, &x), tensor(d, n, &v), tensor(d, n, &vec![1.0; n]));
        let gpu = d.gpu().unwrap();
        let write = |w: &mut Tensor| rms_norm(&v, &ones, 1e-5, w);
        let read = |w: &Tensor, y: &mut Tensor, z: &mut Tensor| {
            rms_norm(&x, w, 1e-5, y)?;
            layer_norm(z, w, w, 1e-5)
        };
        let run = |how: usize| {
            let mut w = poisoned(d, 1, n);
            let (mut y, mut z) = (poisoned(d, 2, n), x.try_clone().unwrap());
            let result = match how {
                0 => write(&mut w).and_then(|()| gpu.synchronize()).and_then(|()| read(&w, &mut y, &mut z)),
                1 => write(&mut w).and_then(|()| read(&w, &mut y, &mut z)),
                2 => gpu
                    .capture(|| write(&mut w).and_then(|()| read(&w, &mut y, &mut z)))
                    .and_then(|mut graph| graph.launch()),
                _ => gpu
                    .capture(|| write(&mut w))
                    .and_then(|mut graph| graph.launch())
                    .and_then(|()| read(&w, &mut y, &mut z)),
            };
            result.unwrap();
            (host(&y), host(&z))
        };
        let want = run(0);
        for how in 1..4 {
            assert_eq!(run(how), want, "{}, way {how}", d.name());
        }
    }
}

/// Kernels that may begin before those in front of them have ended, each on what the one before has written, with a fill and a
/// copy between.
struct Chain {
    start: Tensor,
    w: Tensor,
    b: Tensor,
    x: Tensor,
    y: Tensor,
    z: Tensor,
    q: QuantizedRows,
}

impl Chain {
    fn new(d: &Device, m: usize, n: usize, rng: &mut Rng) -> Chain {
        let [x, y, z] = [0; 3].map(|_| poisoned(d, m, n));
        let [start, b] = [m, 1].map(|m| tensor(d, n, &rng.normals(m * n)));
        let q = QuantizedRows::new(d, m, n, ActBlockSize::B32).unwrap();
        Chain { start, w: tensor(d, n, &scales(n, rng)), b, x, y, z, q }
    }

    /// Three launches a step; `wait` is called behind each.
    fn issue(&mut self, steps: usize, wait: impl Fn() -> glm5::Result<()>) -> glm5::Result<()> {
        let Chain { start, w, b, x, y, z, q } = self;
        let half = x.rows() * x.cols() / 2;
        x.cuda_mut()?.copy_from(0, start.cuda()?, 0..2 * half)?;
        for step in 0..steps {
            norm_quantize(x, (step > 0).then_some(&*z), w, 1e-5, Some(&mut *y), Some(&mut *q))?;
            wait()?;
            layer_norm(y, w, b, 1e-5)?;
            wait()?;
            rms_norm(y, w, 1e-5, z)?;
            wait()?;
            if step == steps / 2 {
                y.cuda_mut()?.fill_bytes(0..half, 0)?;
                z.cuda_mut()?.copy_from(half, y.cuda()?, 0..half)?;
            }
        }
        Ok(())
    }

    fn results(&self) -> [Vec<u32>; 4] {
        let q = self.q.to_activations().unwrap();
        [host(&self.x).bits(), host(&self.y).bits(), host(&self.z).bits(), q.bits()]
    }
}

/// Replays of a graph, and of one that was updated, have the bits of the same launches one at a time.
pub fn a_replayed_chain_is_the_same_step_by_step(devices: &[Device]) {
    for d in devices {
        let gpu = d.gpu().unwrap();
        // The emulator takes seconds for what a GPU does in microseconds.
        let (steps, m, n) = if d.name().contains("emulator") { (4, 2, 256) } else { (34, 300, 6144) };
        let rng = &mut Rng(7);
        let mut chain = Chain::new(d, m, n, rng);
        let mut graph = gpu.capture(|| chain.issue(steps, || Ok(()))).unwrap();
        for (round, steps) in [(0, steps), (1, steps), (2, steps + 1)] {
            match round {
                0 => {}
                1 => chain.start.cuda_mut().unwrap().upload(0, &rng.normals(m * n)).unwrap(),
                _ => graph.update(|| chain.issue(steps, || Ok(()))).unwrap(),
            }
            chain.issue(steps, || gpu.synchronize()).unwrap();
            let want = chain.results();
            for replay in 0..4 {
                graph.launch().unwrap();
                // Sometimes one replay right behind the other.
                if replay != 1 {
                    assert!(chain.results() == want, "{}: round {round}, replay {replay}", d.name());
                }
            }
        }
    }
}
