//! The kernels that measure a GPU: copy, reduce and mma. On GPUs only.

use glm5::Result;
use glm5::cuda::roofs::{Fragments, Roofs, Vector, copy, mma_f16, mma_s8, partials, reduce};
use glm5::cuda::{Buffer, Gpu};
use glm5::kernels;
use glm5::tensor::Device;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;
use super::inputs::refused;

macro_rules! roofs_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { roofs, $devices, $cases;
        copy_is_exact_and_stays_inside(case), reduce_is_the_wrapping_sum(case),
        mma_is_the_product_times_the_steps(mma_case);
        nothing_is_no_work, a_graph_repeats_the_work, rates_are_measured,
        launches_are_counted_by_kernel, refuses_what_does_not_fit }
    };
}
pub(crate) use roofs_properties;

/// Vectors, more or less than whole tiles of any instance, and a seed for their values.
pub fn case() -> impl Strategy<Value = (usize, u64)> {
    let tile = 4 * 256;
    let edges = vec![1usize, 31, 255, 256, tile - 1, tile, tile + 1, 2 * tile + 17, 5 * tile];
    (prop_oneof![prop::sample::select(edges), 1usize..4 * tile], any::<u64>())
}

fn vectors(n: usize, seed: u64) -> Vec<Vector> {
    let mut rng = Rng(seed);
    (0..n).map(|_| [rng.next(), rng.next()]).collect()
}

const POISON: u64 = 0x7fc0_dead_7fc0_dead;

/// Each instance on each device must give what `run` is expected to.
fn on_each(devices: &[Device], run: impl Fn(&Gpu) -> Result<()>) -> TestCaseResult {
    for d in devices {
        let name = d.name();
        run(d.gpu().unwrap()).map_err(|e| TestCaseError::fail(format!("{name}: {e}")))?;
    }
    Ok(())
}

pub fn copy_is_exact_and_stays_inside(devices: &[Device], (n, seed): (usize, u64)) -> TestCaseResult {
    let values = vectors(n, seed);
    on_each(devices, |gpu| {
        let src = gpu.upload("src", &values)?;
        for instance in kernels::copy::INSTANCES {
            let mut dst = gpu.upload("dst", &vec![[POISON; 2]; n])?;
            copy(instance, &src, &mut dst)?;
            assert!(dst.to_vec(0..n)? == values, "{}", instance.entry);
        }
        assert!(src.to_vec(0..n)? == values, "the source changed");
        Ok(())
    })
}

pub fn reduce_is_the_wrapping_sum(devices: &[Device], (n, seed): (usize, u64)) -> TestCaseResult {
    let values = vectors(n, seed);
    let want = values.as_flattened().iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
    on_each(devices, |gpu| {
        let src = gpu.upload("src", &values)?;
        for instance in kernels::reduce::INSTANCES {
            // A place too many, which must stay as it is.
            let blocks = partials(gpu, instance, n);
            let mut partial = gpu.upload("partial", &vec![POISON; blocks + 1])?;
            assert_eq!(reduce(instance, &src, &mut partial)?, blocks);
            let sums = partial.to_vec(0..blocks + 1)?;
            let got = sums[..blocks].iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
            assert_eq!((got, sums[blocks]), (want, POISON), "{}", instance.entry);
        }
        Ok(())
    })
}

/// Blocks, steps, seed.
pub fn mma_case() -> impl Strategy<Value = (usize, u32, u64)> {
    (1usize..4, 0u32..9, any::<u64>())
}

/// Small whole numbers, so that sums are exact: `a` `[16, k]` and `b` `[tiles, k, 8]`.
fn operands(tiles: usize, k: usize, seed: u64) -> (Vec<i32>, Vec<i32>) {
    let mut rng = Rng(seed);
    let mut draw = |n: usize| (0..n).map(|_| rng.below(15) as i32 - 7).collect();
    (draw(16 * k), draw(tiles * k * 8))
}

/// As fragments: `per` elements of `bits` in a register, in the order that `cuda/common/intrin.cuh` states.
fn fragments(gpu: &Gpu, a: &[i32], b: &[i32], k: usize, bits: impl Fn(i32) -> u32) -> Result<Fragments> {
    let per = k / 8;
    let pack = |value: &dyn Fn(usize) -> i32| {
        (0..per).fold(0, |register, e| register | bits(value(e)) << (32 / per * e))
    };
    let lanes = || (0..32).map(|lane| (lane / 4, lane % 4));
    let a: Vec<u32> = (0..4)
        .flat_map(|r| lanes().map(move |(g, t)| (g + 8 * (r % 2), per * t + 4 * per * (r / 2))))
        .map(|(row, col)| pack(&|e| a[row * k + col + e]))
        .collect();
    let b: Vec<u32> = (0..b.len() / (8 * k))
        .flat_map(|tile| {
            (0..2).flat_map(move |r| lanes().map(move |(g, t)| (tile * k + per * t + 4 * per * r, g)))
        })
        .map(|(row, col)| pack(&|e| b[(row + e) * 8 + col]))
        .collect();
    Ok(Fragments { a: gpu.upload("a", &a)?, b: gpu.upload("b", &b)? })
}

/// `steps * a b` in the order of accumulators, `[tiles, 4, 32]`.
fn product(a: &[i32], b: &[i32], k: usize, steps: u32) -> Vec<i32> {
    let mut d = Vec::new();
    for b in b.chunks(8 * k) {
        for r in 0..4 {
            for lane in 0..32 {
                let (row, col) = (lane / 4 + 8 * (r / 2), 2 * (lane % 4) + r % 2);
                let sum: i32 = (0..k).map(|i| a[row * k + i] * b[i * 8 + col]).sum();
                d.push(sum * steps as i32);
            }
        }
    }
    d
}

pub fn mma_is_the_product_times_the_steps(
    devices: &[Device],
    (blocks, steps, seed): (usize, u32, u64),
) -> TestCaseResult {
    on_each(devices, |gpu| {
        for instance in kernels::mma_s8::INSTANCES {
            let (tiles, warps, k) = (instance.tiles as usize, instance.warps as usize, 32);
            let (a, b) = operands(tiles, k, seed);
            let operands = fragments(gpu, &a, &b, k, |v| v as u8 as u32)?;
            let mut d = gpu.upload("d", &vec![i32::MIN; blocks * warps * tiles * 128])?;
            let done = mma_s8(instance, &operands, steps, &mut d)?;
            let want = product(&a, &b, k, steps);
            assert!(d.to_vec(0..d.len())?.chunks(want.len()).all(|got| got == want), "{}", instance.entry);
            assert_eq!(done, (2 * 16 * 8 * k * tiles * warps * blocks) as f64 * f64::from(steps));
        }
        for instance in kernels::mma_f16::INSTANCES {
            let (tiles, warps, k) = (instance.tiles as usize, instance.warps as usize, 16);
            let (a, b) = operands(tiles, k, seed);
            let bits = |v| u32::from(half::f16::from_f32(v as f32).to_bits());
            let operands = fragments(gpu, &a, &b, k, bits)?;
            let mut d = gpu.upload("d", &vec![f32::NAN; blocks * warps * tiles * 128])?;
            mma_f16(instance, &operands, steps, &mut d)?;
            let want: Vec<_> = product(&a, &b, k, steps).iter().map(|v| *v as f32).collect();
            assert!(d.to_vec(0..d.len())?.chunks(want.len()).all(|got| got == want), "{}", instance.entry);
        }
        Ok(())
    })
}

pub fn nothing_is_no_work(devices: &[Device]) {
    on_each(devices, |gpu| {
        let (src, mut dst) = (gpu.alloc::<Vector>("src", 0)?, gpu.alloc("dst", 0)?);
        copy(&kernels::copy::INSTANCES[0], &src, &mut dst)?;
        assert_eq!(reduce(&kernels::reduce::INSTANCES[0], &src, &mut gpu.alloc("partial", 0)?)?, 0);
        gpu.synchronize()
    })
    .unwrap();
}

/// Captured work does not run; each launch of the graph does it, with the contents of then; an update replaces it.
pub fn a_graph_repeats_the_work(devices: &[Device]) {
    let instance = &kernels::copy::INSTANCES[0];
    let n = 700;
    let (first, second) = (vectors(n, 1), vectors(n, 2));
    let whole = |buffer: &Buffer<Vector>| buffer.to_vec(0..n);
    on_each(devices, |gpu| {
        let mut src = gpu.upload("src", &first)?;
        let (mut a, mut b) = (gpu.zeros::<Vector>("a", n)?, gpu.zeros("b", n)?);
        let mut graph = gpu.capture(|| {
            copy(instance, &src, &mut a)?;
            b.copy_from(0, &a, 0..n)
        })?;
        assert!(whole(&b)? == vec![[0; 2]; n], "it ran while it was captured");
        for values in [&first, &second] {
            src.upload(0, values)?;
            graph.launch()?;
            assert!(whole(&b)? == *values);
        }
        let mut c = gpu.upload("c", &first)?;
        graph.update(|| {
            c.fill_bytes(0..n, 0)?;
            copy(instance, &src, &mut c)
        })?;
        a.fill_bytes(0..n, 0)?;
        graph.launch()?;
        assert!(whole(&c)? == second && whole(&a)? == vec![[0; 2]; n]);
        // Memory that a graph uses outlives its buffers.
        drop((src, c));
        graph.launch()?;
        gpu.synchronize()?;
        drop(graph);

        let refused = gpu.capture(|| gpu.alloc::<u8>("within", 1).map(|_| ()));
        assert!(matches!(refused, Err(glm5::Error::Unsupported { .. })), "{refused:?}");
        whole(&b).map(|_| ()) // and the device goes on
    })
    .unwrap();
}

pub fn rates_are_measured(devices: &[Device]) {
    on_each(devices, |gpu| {
        let roofs = Roofs::measure(gpu, Some(300_000))?;
        let Roofs { bytes, read, copy, f16, s8, .. } = roofs;
        assert_eq!(bytes, 300_000);
        assert_eq!(roofs.reads.iter().map(|r| r.bytes).collect::<Vec<_>>(), [1 << 18, 300_000]);
        let reads = roofs.reads.iter().map(|r| r.rate);
        assert!([read, copy, f16, s8].into_iter().chain(reads).all(|r| r.is_finite() && r > 0.0), "{roofs}");
        assert_eq!((roofs.read_of(1 << 18), roofs.read_of(300_000)), (roofs.reads[0].rate, read));
        Ok(())
    })
    .unwrap();
}

pub fn launches_are_counted_by_kernel(devices: &[Device]) {
    on_each(devices, |gpu| {
        let (copies, reduces) = (&kernels::copy::INSTANCES[0], &kernels::reduce::INSTANCES[0]);
        let src = gpu.upload("src", &vectors(300, 4))?;
        let (mut dst, mut short) = (gpu.zeros("dst", 300)?, gpu.zeros("short", 299)?);
        let mut partial = gpu.zeros("partial", partials(gpu, reduces, 300))?;
        let none = gpu.zeros("none", 0)?;
        let before = gpu.launches();
        let counted = |entry| {
            let of = |counts: &[(_, u64)]| counts.iter().find(|(e, _)| *e == entry).map_or(0, |(_, n)| *n);
            of(&gpu.launches()) - of(&before)
        };
        copy(copies, &src, &mut dst)?;
        copy(copies, &src, &mut dst)?;
        // Neither is issued.
        copy(copies, &none, &mut gpu.zeros("none", 0)?)?;
        copy(copies, &src, &mut short).unwrap_err();
        let mut graph = gpu.capture(|| reduce(reduces, &src, &mut partial).map(|_| ()))?;
        for _ in 0..3 {
            graph.launch()?;
        }
        assert_eq!((counted(copies.entry), counted(reduces.entry)), (2, 1));
        let counts = gpu.launches();
        assert!(counts.is_sorted_by_key(|(entry, _)| *entry as usize) && counts.iter().all(|(_, n)| *n > 0));
        Ok(())
    })
    .unwrap();
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    on_each(devices, |gpu| {
        let (copies, reduces) = (&kernels::copy::INSTANCES[0], &kernels::reduce::INSTANCES[0]);
        let src = gpu.upload("src", &vectors(3000, 3))?;
        let mut dst = gpu.upload("dst", &[[POISON; 2]; 2999])?;
        let mut partial = gpu.upload("partial", &vec![POISON; partials(gpu, reduces, 3000) - 1])?;
        let short = Fragments { a: gpu.zeros("a", 127)?, b: gpu.zeros("b", 512)? };
        let mut registers = gpu.zeros("d", 8 * 8 * 128)?;
        refused(vec![
            ("dst", copy(copies, &src, &mut dst)),
            ("partial", reduce(reduces, &src, &mut partial).map(|_| ())),
            ("a", mma_s8(&kernels::mma_s8::INSTANCES[0], &short, 1, &mut registers).map(|_| ())),
            ("download", src.download(2000, &mut [[0; 2]; 1001])),
            ("upload", dst.upload(usize::MAX, &[[0; 2]; 2])),
            ("fill", dst.fill_bytes(0..3000, 0)),
            ("copy", dst.copy_from(2500, &src, 0..500)),
            ("copy within", dst.copy_within(0..20, 10)),
        ]);
        assert!(dst.to_vec(0..2999)?.as_flattened().iter().all(|word| *word == POISON));
        assert!(partial.to_vec(0..partial.len())?.iter().all(|word| *word == POISON));
        Ok(())
    })
    .unwrap();
}
