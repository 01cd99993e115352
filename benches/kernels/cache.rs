//! cache_write: latent rows and keys of the indexer to paged caches. Goal: the rate of memory for many rows, a launch for few.

use criterion::Criterion;
use glm5::tensor::{CacheType, Device, PagedRows, Tensor};

use super::blocks::Rng;
use super::data::{DISTINCT, tiled};
use super::report::Work;
use super::rope::rows;
use super::{Bench, Row};

pub fn benches(bench: &Bench, c: &mut Criterion) {
    let tokens: &[usize] = if bench.measured { &[1, 8, 32, 512, 2048] } else { &[3] };
    for m in tokens.iter().copied() {
        for (width, ty) in
            [(576, CacheType::Bf16), (576, CacheType::F16), (576, CacheType::F32), (128, CacheType::Bf16)]
        {
            write(bench, c, m, width, ty);
        }
    }
}

fn write(bench: &Bench, c: &mut Criterion, m: usize, width: usize, ty: CacheType) {
    let name = format!("write {m} rows of {width}, {ty}");
    if !bench.wants("cache", &name) {
        return;
    }
    let d = &bench.device;
    let rows = rows(d, 1000, m);
    let bytes = m * (4 + 4 * width + ty.row_bytes(width).unwrap());
    let sets = bench.few_sets(bytes);
    let few = Rng(5).normals(m.min(DISTINCT) * width);
    let pages = rows.max_slot() / 64 + 1;
    let mut all: Vec<_> =
        (0..sets).map(|_| (tiled(d, &few, m, width), PagedRows::new(d, pages, width, ty).unwrap())).collect();
    let (x, cache) = &mut all[0];
    cache.write(&rows, x).unwrap();
    let mut on_host = PagedRows::new(&Device::cpu(Some(1)).unwrap(), pages, width, ty).unwrap();
    on_host
        .write(&rows, &Tensor::from_vec(on_host.device(), m, width, x.to_vec().unwrap()).unwrap())
        .unwrap();
    for slot in [0, m / 2, m - 1].map(|t| rows.slots()[t]) {
        assert!(cache.row(slot).unwrap() == on_host.row(slot).unwrap(), "{name}: slot {slot}");
    }
    let mut launch = |i: usize| {
        let (x, cache) = &mut all[i];
        cache.write(&rows, x)
    };
    let work = Work::copying(bytes);
    bench.row(c, "cache", Row { name, work, case: None, sets, launch: &mut launch });
}
