//! Mixtures of experts in blocks on GPUs: every type, for tiles of one place and of eight, of which an expert has several.

use glm5::ops::moe::moe;
use glm5::ops::router::Routing;
use glm5::tensor::{Device, Precision, Tensor};

use super::blocks::{Rng, SUPPORTED, random_weight};
use super::close::{EPS, close};
use super::ffn::Layer;
use super::inputs::*;

macro_rules! moe_blocks_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { moe_blocks, $devices, $cases; ; every_type_is_multiplied }
    };
}
pub(crate) use moe_blocks_properties;

/// All types in turn for gate, up and down. Expert 2 has no tokens, expert 1 those of all.
pub fn every_type_is_multiplied(devices: &[Device]) {
    let (experts, hidden, ff, k) = (3, 256, 256, 2);
    for (i, precision) in
        (0..SUPPORTED.len()).step_by(3).zip([Precision::Exact, Precision::Fast].into_iter().cycle())
    {
        let ty = |j: usize| SUPPORTED[(i + j) % SUPPORTED.len()];
        let layer = Layer {
            gate: random_weight(ty(0), experts, ff, hidden, i as u64),
            up: random_weight(ty(1), experts, ff, hidden, i as u64 + 100),
            down: random_weight(ty(2), experts, hidden, ff, i as u64 + 200),
        };
        let values = layer.values();
        for m in [1usize, 2, 11] {
            let mut rng = Rng(m as u64);
            let x = rng.normals(m * hidden);
            let ids: Vec<u32> = [1, 0].repeat(m);
            let weights = rng.normals(m * k);
            let (mut want, mut off) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            for (pair, id) in ids.iter().enumerate() {
                let (t, weight) = (pair / k, f64::from(weights[pair]));
                let (row, row_off) = values.expected(*id as usize, &x[t * hidden..][..hidden], precision);
                for c in 0..hidden {
                    let v = weight * row[c];
                    want[t * hidden + c] += v;
                    off[t * hidden + c] += weight.abs() * row_off[c] + 12.0 * EPS * v.abs();
                }
            }
            for d in devices {
                let mut routing = Routing::new(d, experts, k).unwrap();
                routing.ids = Tensor::from_vec(d, m, k, ids.clone()).unwrap();
                routing.weights = Tensor::from_vec(d, m, k, weights.clone()).unwrap();
                let mut y = poisoned(d, m, hidden);
                moe(&layer.on(d), None, &tensor(d, hidden, &x), &routing, &mut y, precision).unwrap();
                close("y", &host(&y), &want, |i| off[i])
                    .unwrap_or_else(|e| panic!("{}, {}, {}, {m} tokens: {e}", ty(0), ty(1), ty(2)));
            }
        }
    }
}
