//! Tensors, matrices and cache pages: what is put on a device comes back, and growing keeps what was there.

use glm5::quant::{GgmlType, SharedBytes, Weight};
use glm5::tensor::{CacheType, Device, Matrix, PAGE_ROWS, PagedRows, RaggedRows, Tensor};

use super::blocks::Rng;
use super::inputs::{host, tensor};

macro_rules! tensor_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { tensor, $devices, $cases; ;
        values_come_back, growing_keeps_values_and_adds_zeros, other_values_take_their_place, rows_are_copied, pages_are_copied,
        caches_go_to_other_devices, mixtures_are_refused }
    };
}
pub(crate) use tensor_properties;

pub fn values_come_back(devices: &[Device]) {
    for d in devices {
        let values = Rng(1).normals(15);
        let mut t = tensor(d, 5, &values);
        assert_eq!((t.shape(), host(&t)), ([3, 5], values.clone()));
        let copy = t.try_clone().unwrap();
        t.fill(7.5).unwrap();
        assert_eq!((host(&t), host(&copy)), (vec![7.5; 15], values));
        assert_eq!(Tensor::<u32>::zeros(d, 2, 3).unwrap().to_vec().unwrap(), [0; 6]);
        for (rows, cols) in [(0, 4), (4, 0)] {
            assert!(host(&Tensor::zeros(d, rows, cols).unwrap()).is_empty());
        }
    }
}

/// From the host, within a device, and back: the same rows.
pub fn caches_go_to_other_devices(devices: &[Device]) {
    let cpu = Device::cpu(Some(1)).unwrap();
    let types = [
        (CacheType::F32, 3),
        (CacheType::Bf16, 3),
        (CacheType::F16, 3),
        (CacheType::Fp8, 576),
        (CacheType::Int8, 128),
    ];
    for (d, (ty, width)) in devices.iter().flat_map(|d| types.map(|ty| (d, ty))) {
        let mut cache = PagedRows::new(&cpu, 2, width, ty).unwrap();
        let slots = [0, 63, 64, 127];
        let mut rows = RaggedRows::default();
        for slot in slots {
            rows.push(slot as usize % PAGE_ROWS, 1, &[slot / PAGE_ROWS as u32]).unwrap();
        }
        cache.write(&rows, &tensor(&cpu, width, &Rng(2).normals(4 * width))).unwrap();
        let there = cache.to_device(d).unwrap().to_device(d).unwrap();
        let back = there.to_device(&cpu).unwrap();
        assert_eq!((there.ty(), there.slots(), back.slots()), (ty, 128, 128));
        for slot in slots.into_iter().chain([1, 65]) {
            let row = cache.row(slot).unwrap();
            assert_eq!((there.row(slot).unwrap(), back.row(slot).unwrap()), (row.clone(), row));
        }
    }
}

pub fn growing_keeps_values_and_adds_zeros(devices: &[Device]) {
    for d in devices {
        let mut t = tensor(d, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        t.resize(1).unwrap();
        assert_eq!(host(&t), [1.0, 2.0, 3.0]);
        t.resize(3).unwrap(); // over what is left from before, and beyond
        assert_eq!(host(&t), [1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        t.resize(1).unwrap();
        t.append(&tensor(d, 3, &[7.0, 8.0, 9.0])).unwrap();
        t.append(&tensor(d, 3, &[0.5; 30])).unwrap();
        assert_eq!(host(&t), [&[1.0, 2.0, 3.0, 7.0, 8.0, 9.0][..], &[0.5; 30]].concat());
        assert_eq!(t.shape(), [12, 3]);
        let before = host(&t);
        assert!(t.append(&tensor(d, 2, &[0.0; 4])).is_err() && t.resize(usize::MAX).is_err());
        assert_eq!(host(&t), before);
    }
}

pub fn other_values_take_their_place(devices: &[Device]) {
    for d in devices {
        let mut t = tensor(d, 3, &[1.0; 6]);
        for rows in [1, 4, 0, 2] {
            let values = Rng(rows).normals(3 * rows as usize);
            t.assign(&values).unwrap();
            assert_eq!((t.shape(), host(&t)), ([rows as usize, 3], values));
        }
        let before = host(&t);
        assert!(t.assign(&[1.0; 4]).is_err() && Tensor::zeros(d, 2, 0).unwrap().assign(&[1.0]).is_err());
        assert_eq!(host(&t), before);
    }
}

pub fn rows_are_copied(devices: &[Device]) {
    for d in devices {
        let from: Vec<f32> = (0..15).map(|i| i as f32).collect();
        let (mut t, from) = (tensor(d, 3, &[-1.0; 12]), tensor(d, 3, &from));
        t.copy_rows(1, &from, 3..5).unwrap();
        t.copy_rows(4, &from, 2..2).unwrap();
        let want = [-1.0, -1.0, -1.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, -1.0, -1.0, -1.0];
        assert_eq!(host(&t), want);
        #[allow(clippy::reversed_empty_ranges)]
        for (to, rows) in [(0, 4..6), (3, 0..2), (5, 0..0), (usize::MAX, 0..1), (0, 3..2)] {
            assert!(t.copy_rows(to, &from, rows.clone()).is_err(), "{rows:?} to {to}");
        }
        assert!(t.copy_rows(0, &tensor(d, 4, &[0.0; 4]), 0..1).is_err());
        assert_eq!((t.shape(), host(&t)), ([4, 3], want.to_vec()));
    }
}

/// A page copied is a page of zeros here; the suite of caches copies what was written.
pub fn pages_are_copied(devices: &[Device]) {
    for d in devices {
        for ty in [CacheType::F32, CacheType::Bf16, CacheType::F16] {
            let mut rows = PagedRows::new(d, 3, 5, ty).unwrap();
            assert_eq!((rows.ty(), rows.slots(), rows.width()), (ty, 3 * PAGE_ROWS, 5));
            rows.copy_page(2, 0).unwrap();
            assert_eq!(rows.row(PAGE_ROWS as u32 - 1).unwrap(), [0.0; 5]);
            assert!(rows.row(3 * PAGE_ROWS as u32).is_err());
        }
    }
}

pub fn mixtures_are_refused(devices: &[Device]) {
    let cpu = Device::cpu(Some(1)).unwrap();
    for d in devices {
        let weight = Weight::new(GgmlType::F32, [1, 1, 2], SharedBytes::from(vec![0; 8])).unwrap();
        let matrix = Matrix::new(d, weight).unwrap();
        let (mut here, there) = (tensor(d, 2, &[1.0, 2.0]), tensor(&cpu, 2, &[3.0, 4.0]));
        assert_eq!(matrix.shape(), [1, 1, 2]);
        match d {
            Device::Cpu(_) => assert!(here.cuda().is_err() && matrix.cuda().is_err() && d.gpu().is_err()),
            _ => {
                assert!(here.cpu().is_err() && here.cpu_mut().is_err() && matrix.cpu().is_err());
                assert!(matrix.cuda().unwrap().blocks.to_vec(0..8).unwrap() == [0; 8]);
                assert!(here.append(&there).unwrap_err().to_string().contains("cpu"));
                assert!(here.copy_rows(0, &there, 0..1).unwrap_err().to_string().contains("cpu"));
            }
        }
        assert_eq!(host(&here), [1.0, 2.0]);
    }
}
