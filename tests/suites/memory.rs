//! Buffers of a GPU: large uploads, lack of memory, what is refused while a graph is captured. On GPUs only.

use std::time::Duration;

use glm5::Error;
use glm5::cuda::Gpu;
use glm5::tensor::{CacheType, Device, PAGE_ROWS, PagedRows, RaggedRows, Tensor};

macro_rules! memory_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { memory, $devices, $cases; ;
        large_uploads_arrive_and_report_progress, sources_may_change_at_once, parts_are_addressed, too_little_memory_is_told_and_harmless,
        captures_refuse_what_cannot_be_recorded, recorded_rows_move_within_their_caches, time_passes }
    };
}
pub(crate) use memory_properties;

fn gpus(devices: &[Device]) -> impl Iterator<Item = &Gpu> {
    devices.iter().map(|d| d.gpu().unwrap())
}

/// More than two staging buffers, and not a whole number of anything.
pub fn large_uploads_arrive_and_report_progress(devices: &[Device]) {
    let values: Vec<u32> = (0..9_000_001u32).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
    for gpu in gpus(devices) {
        let mut buffer = gpu.alloc("large", values.len() + 1).unwrap();
        buffer.upload(0, &[7]).unwrap();
        let mut seen = vec![0];
        buffer.upload_with(1, &values, &mut |bytes| seen.push(bytes)).unwrap();
        assert!(seen.is_sorted_by(|a, b| a < b) && seen.last() == Some(&(4 * values.len())), "{seen:?}");
        assert_eq!(buffer.to_vec(0..1).unwrap(), [7]);
        assert!(buffer.to_vec(1..values.len() + 1).unwrap() == values);
    }
}

/// More uploads of each size than there are buffers for them, from memory that changes when a call has returned; and one within
/// another.
pub fn sources_may_change_at_once(devices: &[Device]) {
    for gpu in gpus(devices) {
        for n in [3usize, 16 << 10, (16 << 10) + 1, 300_000] {
            let mut source = vec![0u32; n];
            let mut buffers: Vec<_> = (0..40).map(|_| gpu.alloc::<u32>("small", n).unwrap()).collect();
            for (i, buffer) in buffers.iter_mut().enumerate() {
                source.fill(i as u32 + 1);
                buffer.upload(0, &source).unwrap();
                source.fill(u32::MAX);
            }
            for (i, buffer) in buffers.iter().enumerate() {
                assert!(buffer.to_vec(0..n).unwrap().iter().all(|v| *v == i as u32 + 1), "{n} values, {i}");
            }
        }
        let (mut outer, mut inner) = (gpu.zeros::<u32>("a", 1).unwrap(), gpu.zeros::<u32>("b", 1).unwrap());
        outer.upload_with(0, &[1], &mut |_| inner.upload(0, &[2]).unwrap()).unwrap();
        assert_eq!([outer, inner].map(|b| b.to_vec(0..1).unwrap()), [[1], [2]]);
    }
}

pub fn parts_are_addressed(devices: &[Device]) {
    for gpu in gpus(devices) {
        let mut a = gpu.zeros::<u16>("a", 10).unwrap();
        a.upload(3, &[1, 2, 3]).unwrap();
        a.copy_within(3..6, 7).unwrap();
        let mut b = gpu.upload::<u16>("b", &[9; 4]).unwrap();
        b.copy_from(1, &a, 4..6).unwrap();
        b.fill_bytes(0..1, 0xff).unwrap();
        assert_eq!(a.to_vec(0..10).unwrap(), [0, 0, 0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(b.to_vec(0..4).unwrap(), [0xffff, 2, 3, 9]);
        assert!(a.as_ptr().addr().is_multiple_of(256));
        let empty = gpu.alloc::<u64>("empty", 0).unwrap();
        assert!(empty.is_empty() && empty.to_vec(0..0).unwrap().is_empty());
    }
}

pub fn too_little_memory_is_told_and_harmless(devices: &[Device]) {
    for gpu in gpus(devices) {
        let kept = gpu.upload("kept", &[1u64; 1000]).unwrap();
        let total = gpu.memory().unwrap().total;
        match gpu.alloc::<u8>("too much", total as usize + 1) {
            Err(Error::OutOfMemory { label, needed, total: all, held, .. }) => {
                assert_eq!((label.as_str(), needed, all), ("too much", Some(total + 1), total));
                assert!(held.iter().any(|(label, bytes)| *label == "kept" && *bytes >= 8000), "{held:?}");
            }
            other => panic!("{other:?}"),
        }
        assert!(kept.to_vec(0..1000).unwrap() == [1; 1000]);
    }
}

pub fn captures_refuse_what_cannot_be_recorded(devices: &[Device]) {
    for gpu in gpus(devices) {
        let mut buffer = gpu.zeros::<u32>("buffer", 4).unwrap();
        let refused: [&dyn Fn() -> glm5::Result<()>; 5] = [
            &|| gpu.synchronize(),
            &|| gpu.memory().map(|_| ()),
            &|| gpu.upload("x", &[1u8]).map(|_| ()),
            &|| gpu.capture(|| Ok(())).map(|_| ()),
            &|| gpu.time(|| Ok(())).map(|_| ()),
        ];
        for call in refused {
            let result = gpu.capture(call);
            assert!(matches!(result, Err(Error::Unsupported { .. })), "{result:?}");
        }
        let result = gpu.capture(|| buffer.upload(0, &[1]));
        assert!(matches!(result, Err(Error::Unsupported { .. })), "{result:?}");
        // A buffer that goes away meanwhile is freed afterwards; then all is as before.
        let gone = gpu.zeros::<u32>("gone", 4).unwrap();
        let graph = gpu.capture(|| {
            drop(gone);
            Ok(())
        });
        assert_eq!(graph.unwrap().buffers(), 0);
        assert_eq!(buffer.to_vec(0..4).unwrap(), [0; 4]);
    }
}

/// While a graph is there its rows are given others of as many keys in pages of its caches, and nothing that would have it read or write
/// elsewhere.
pub fn recorded_rows_move_within_their_caches(devices: &[Device]) {
    for d in devices {
        let (mut small, mut large) = (
            PagedRows::new(d, 3, 4, CacheType::F32).unwrap(),
            PagedRows::new(d, 5, 4, CacheType::F32).unwrap(),
        );
        let x = Tensor::from_vec(d, 2, 4, vec![1.0; 8]).unwrap();
        let mut rows = RaggedRows::default();
        rows.reserve(10 * PAGE_ROWS);
        let upload = |rows: &mut RaggedRows, start, n, pages: &[u32]| {
            rows.clear();
            rows.push(start, n, pages).unwrap();
            rows.upload(d)
        };
        upload(&mut rows, 0, 2, &[0, 1]).unwrap();
        let mut graph = d
            .gpu()
            .unwrap()
            .capture(|| {
                large.write(&rows, &x)?;
                small.write(&rows, &x)
            })
            .unwrap();
        upload(&mut rows, PAGE_ROWS - 1, 2, &[1, 2]).unwrap();
        graph.launch().unwrap();
        let written = |cache: &PagedRows| -> Vec<usize> {
            (0..cache.slots()).filter(|slot| cache.row(*slot as u32).unwrap() == [1.0; 4]).collect()
        };
        let want = [2 * PAGE_ROWS - 1, 2 * PAGE_ROWS];
        assert_eq!([written(&small), written(&large)], [want, want]);
        for (what, start, n, pages) in [
            ("a page that one of the caches lacks", 0, 2, &[3, 0][..]),
            ("a longer table", 0, 2, &[0, 1, 2]),
            ("more rows", 0, 3, &[0, 1]),
            ("fewer rows", 0, 1, &[0, 1]),
        ] {
            let refused = upload(&mut rows, start, n, pages);
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{what}: {refused:?}");
            let not_there = large.write(&rows, &Tensor::zeros(d, n, 4).unwrap());
            assert!(matches!(not_there, Err(Error::Unsupported { .. })), "{what}: {not_there:?}");
        }
        graph.launch().unwrap();
        assert_eq!([written(&small), written(&large)], [want, want]);
        // Left to the graph the rows stay as they are, until it is recorded anew.
        rows.detach();
        let x = Tensor::from_vec(d, 3, 4, vec![1.0; 12]).unwrap();
        upload(&mut rows, 0, 3, &[4, 3, 0]).unwrap();
        graph.launch().unwrap();
        assert_eq!([written(&small), written(&large)], [want, want]);
        graph.update(|| large.write(&rows, &x)).unwrap();
        graph.launch().unwrap();
        let more: Vec<usize> = want.into_iter().chain((0..3).map(|i| 4 * PAGE_ROWS + i)).collect();
        assert_eq!((written(&small), written(&large)), (want.to_vec(), more));
        drop(graph);
        upload(&mut rows, 0, 2, &[0, 1, 2, 3, 4]).unwrap();
        large.write(&rows, &Tensor::zeros(d, 2, 4).unwrap()).unwrap();
    }
}

pub fn time_passes(devices: &[Device]) {
    for gpu in gpus(devices) {
        let mut buffer = gpu.alloc::<u8>("buffer", 1 << 20).unwrap();
        let time = gpu.time(|| buffer.fill_bytes(0..1 << 20, 1)).unwrap();
        assert!(time > Duration::ZERO && time < Duration::from_secs(10), "{time:?}");
        assert!(matches!(gpu.time(|| Err(Error::NoGpu("a test".into()))), Err(Error::NoGpu(_))));
    }
}
