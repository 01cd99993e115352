//! What binds everything else: upload over the bus, memory copied and read by kernels that do nothing else, what a launch
//! costs within a graph.

use std::time::Instant;

use criterion::Criterion;
use glm5::cuda::roofs::{Vector, copy, partials, reduce};
use glm5::kernels;

use super::data::results;
use super::report::{Memory, Work};
use super::{Bench, Row};

const GROUP: &str = "roofs";

/// Bytes copied, read and uploaded: beyond the caches, and some staging buffers' worth.
const BYTES: usize = 256 << 20;

/// Vectors that make a row where results are compared.
const COLS: usize = 4096;

/// Uploads that are timed.
const UPLOADS: usize = 5;

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let bytes = if bench.measured { BYTES } else { 1 << 20 };
    uploads(bench, bytes);
    let size = format!("{} MiB", bytes >> 20);
    for instance in kernels::copy::INSTANCES {
        copies(bench, c, format!("{} of {size}", instance.entry), instance, bytes);
    }
    for instance in kernels::reduce::INSTANCES {
        reads(bench, c, format!("{} of {size}", instance.entry), instance, bytes);
    }
    copies(bench, c, "a launch: copy of 256 bytes".into(), &kernels::copy::INSTANCES[0], 256);
}

/// Times by the clock. The first upload of a process also pins the staging buffers.
fn uploads(bench: &Bench, bytes: usize) {
    for (name, times) in [("first upload", 1), ("upload", UPLOADS)] {
        if !bench.wants(GROUP, name) {
            continue;
        }
        let values = vec![1u8; bytes];
        let mut buffer = bench.gpu().alloc::<u8>("bench", bytes).unwrap();
        let mut upload = || {
            let start = Instant::now();
            buffer.upload(0, &values).unwrap();
            bench.gpu().synchronize().unwrap();
            start.elapsed().as_secs_f64()
        };
        let times = (0..times).map(|_| upload()).collect();
        assert_eq!(buffer.to_vec(bytes - 1..bytes).unwrap(), [1], "{name}");
        if bench.measured {
            let work = Work { bytes, operations: None, memory: None };
            bench.report.row(&format!("{GROUP}/{name}"), work, None, &[], times);
        }
    }
}

fn copies(bench: &Bench, c: &mut Criterion, name: String, instance: &kernels::copy::Instance, bytes: usize) {
    if !bench.wants(GROUP, &name) {
        return;
    }
    let n = bytes / size_of::<Vector>();
    let values: Vec<Vector> = (0..n as u64).map(|i| [i, !i]).collect();
    let src = bench.gpu().upload("bench", &values).unwrap();
    let mut dst = bench.gpu().zeros("bench", n).unwrap();
    copy(instance, &src, &mut dst).unwrap();
    let rows = n.div_ceil(COLS);
    assert!(
        results(&dst, rows) == results(&src, rows) && dst.to_vec(n - 1..n).unwrap() == values[n - 1..],
        "{name}"
    );
    let mut launch = |_| copy(instance, &src, &mut dst);
    bench.row(
        c,
        GROUP,
        Row { name, work: Work::copying(2 * bytes), case: None, sets: 1, launch: &mut launch },
    );
}

fn reads(bench: &Bench, c: &mut Criterion, name: String, instance: &kernels::reduce::Instance, bytes: usize) {
    if !bench.wants(GROUP, &name) {
        return;
    }
    let n = bytes / size_of::<Vector>();
    let values: Vec<Vector> = (0..n as u64).map(|i| [i, i << 32]).collect();
    let src = bench.gpu().upload("bench", &values).unwrap();
    let mut partial = bench.gpu().zeros("bench", partials(bench.gpu(), instance, n)).unwrap();
    let sums = reduce(instance, &src, &mut partial).unwrap();
    let sum = |words: &[u64]| words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
    assert_eq!(sum(&partial.to_vec(0..sums).unwrap()), sum(values.as_flattened()), "{name}");
    let mut launch = |_| reduce(instance, &src, &mut partial).map(|_| ());
    let work = Work { bytes, operations: None, memory: Some(Memory::Read) };
    bench.row(c, GROUP, Row { name, work, case: None, sets: 1, launch: &mut launch });
}
