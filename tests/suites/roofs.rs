//! The kernels that measure memory: copy and reduce. On GPUs only.

use glm5::Result;
use glm5::cuda::roofs::{Roofs, Vector, copy, partials, reduce};
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
        copy_is_exact_and_stays_inside(case), reduce_is_the_wrapping_sum(case);
        nothing_is_no_work, a_graph_repeats_the_work, rates_are_measured, refuses_what_does_not_fit }
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
        let Roofs { bytes, read, copy, .. } = Roofs::measure(gpu, Some(20_000))?;
        assert_eq!(bytes, 20_000);
        assert!(read.is_finite() && read > 0.0 && copy.is_finite() && copy > 0.0, "read {read}, copy {copy}");
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
        refused(vec![
            ("dst", copy(copies, &src, &mut dst)),
            ("partial", reduce(reduces, &src, &mut partial).map(|_| ())),
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
