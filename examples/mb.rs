use glm5::{ops::linear::*, quant::*, tensor::*};
use std::time::Instant;
fn main() {
    let mut s = 1u64;
    let mut rnd = || {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        s
    };
    for threads in [1, 2] {
        let dev = Device::cpu(Some(threads)).unwrap();
        println!("{}", dev.name());
        for ty in [
            GgmlType::Q4_K,
            GgmlType::Q5_K,
            GgmlType::Q6_K,
            GgmlType::Q8_0,
            GgmlType::Q5_0,
            GgmlType::F32,
            GgmlType::IQ2_XXS,
        ] {
            for (n, k) in [(1024usize, 256usize), (4096, 256), (2048, 6144)] {
                let bytes: Vec<u8> =
                    (0..n * ty.row_bytes(k as u64).unwrap() as usize).map(|_| (rnd() & 0x3f) as u8).collect();
                let w = Matrix::new(&dev, Weight::new(ty, [1, n, k], bytes.into()).unwrap()).unwrap();
                for m in [1usize, 2, 3, 4, 8, 400] {
                    if m == 400 && k == 6144 {
                        continue;
                    }
                    let x =
                        Tensor::from_vec(&dev, m, k, (0..m * k).map(|i| (i as f32).sin()).collect()).unwrap();
                    let mut y = Tensor::zeros(&dev, m, n);
                    let reps = (400_000_000 / (n * k * m)).max(3);
                    let Device::Cpu(c) = &dev else { unreachable!() };
                    let dt = c.install(|| {
                        linear(&w, &x, &mut y, Precision::Exact).unwrap();
                        let t = Instant::now();
                        for _ in 0..reps {
                            linear(&w, &x, &mut y, Precision::Exact).unwrap();
                        }
                        t.elapsed().as_secs_f64() / reps as f64
                    });
                    print!(
                        "{ty} {n}x{k} m={m}: {:.1} us {:.2} GMAC/s | ",
                        dt * 1e6,
                        (n * k * m) as f64 / dt / 1e9
                    );
                }
                println!();
            }
        }
    }
}
