//! Edges of mixtures of experts in tiles: ids and rows at their limits, two types, sizes of full models, and what is refused.

use super::*;

/// Ids end before that of no expert. A shard of the last ones has all others nowhere, and does not take no expert for its last.
pub fn takes_a_shard_of_the_last_ids(devices: &[Device]) {
    let first = NO_EXPERT as usize - 2;
    for (m, shared) in [(1, false), (2, true), (9, false), (9, true)] {
        let c = plain(m, 2, SMALL, shared);
        let options = || MoeOptions { first_expert: Some(first), ..MoeOptions::default() };
        let run = |inputs: &Inputs, what: &str| {
            let got = on_each(devices, |d| inputs.run_with(d, options()));
            let got = got.unwrap_or_else(|e| panic!("{what} of {m} tokens: {e}"));
            let (want, off) = inputs.expected_shard(first, inputs.format(&devices[0]));
            close(what, &got, &want, |i| off[i]).unwrap();
            got
        };
        // Both experts are NaN, as no id is that of one.
        let mut none = c.with_ids([0, 1, NO_EXPERT - 3, NO_EXPERT].repeat(m));
        for w in [&mut none.experts.gate, &mut none.experts.up, &mut none.experts.down] {
            *w = spoil_unused(w, &[]);
        }
        none.weights.fill(f32::NAN);
        let got = run(&none, "ids of others");
        if !shared {
            equal("y of no experts", &got, &vec![0.0; got.len()]).unwrap();
        }
        let both = Inputs {
            ids: [1, NO_EXPERT - 1, NO_EXPERT, NO_EXPERT - 2].repeat(m),
            weights: [f32::NAN, 0.5, f32::NAN, -0.25].repeat(m),
            k: 4,
            ..c.inputs()
        };
        run(&both, "ids of both");
    }
}

/// Up to 128 pairs of 8 tokens and more of them, which other kernels take.
pub fn an_expert_named_twice_counts_twice(devices: &[Device]) {
    let ids = |m: usize, k: usize, experts: usize| {
        let mut rng = Rng((m * k) as u64);
        (0..m * k).map(|_| rng.below(experts) as u32).collect::<Vec<_>>()
    };
    let all: [(usize, Vec<u32>); 9] = [
        (1, vec![2, 2]),
        (1, vec![3; 16]),
        (3, vec![0, 1, 0, 1, 1, 1, 3, 0, 3]),
        (8, vec![1; 128]),
        (8, ids(8, 16, 5)),
        (8, vec![1; 136]),
        (8, ids(8, 17, 5)),
        (1, ids(1, 140, 5)),
        (20, [1, 1, 2].repeat(20)),
    ];
    for (i, (m, ids)) in all.into_iter().enumerate() {
        let types = [TYPES[i % TYPES.len()], TYPES[(i + 2) % TYPES.len()]];
        let inputs = plain(m, 5, types, i % 2 == 0).with_ids(ids);
        let checked = inputs.is_the_reference(devices);
        checked.unwrap_or_else(|e| panic!("{:?} of {m} tokens: {e}", inputs.ids));
    }
}

/// Full tiles and such that are not, of one expert; another one has few rows besides, and one none.
pub fn experts_take_any_number_of_rows(devices: &[Device]) {
    for (i, rows) in [8usize, 9, 16, 31, 32, 33, 48, 49, 64, 65, 130].into_iter().enumerate() {
        let types = [TYPES[i % TYPES.len()], TYPES[(i + 3) % TYPES.len()]];
        let others = 3 + i % 6;
        let ids = iter::repeat_n(1, rows).chain(iter::repeat_n(2, others)).collect();
        let inputs = plain(rows + others, 3, types, i % 4 == 0).with_ids(ids);
        inputs.is_the_reference(devices).unwrap_or_else(|e| panic!("{rows} rows, {types:?}: {e}"));
    }
}

/// Gate and up of two types, of experts, of the shared one or of both: for one token and more, some of whose experts have few rows.
pub fn gate_and_up_may_be_of_two_types(devices: &[Device]) {
    for (i, (m, of_experts, of_shared)) in
        [(1, true, false), (3, false, true), (8, true, true), (20, true, true), (70, true, false)]
            .into_iter()
            .enumerate()
    {
        let types = [TYPES[i % TYPES.len()], TYPES[(i + 2) % TYPES.len()]];
        let c = Case { hidden: 512, ..plain(m, 5, types, true) };
        let other =
            TYPES.into_iter().cycle().skip(i).find(|ty| ![types[0], c.types[2]].contains(ty)).unwrap();
        let up = [(of_experts, types[0]), (of_shared, c.types[2])];
        let up = up.map(|(is_other, ty)| if is_other { other } else { ty });
        let mut inputs =
            Case { up: Some(up), ..c }.with_ids((0..2 * m).map(|p| [0, 1, 0, 4][p % 4]).collect());
        (inputs.ids[1], inputs.weights[1]) = (NO_EXPERT, f32::NAN);
        inputs.is_the_reference(devices).unwrap_or_else(|e| panic!("{m} tokens, {types:?}, up {up:?}: {e}"));
    }
}

/// A shared expert in blocks, or one with a matrix in blocks, is a layer of its own; three weights are in tiles only together.
pub fn the_shared_expert_may_be_in_blocks(devices: &[Device]) {
    for (i, m) in [1, 8, 20].into_iter().enumerate() {
        let c = Case {
            types: [GgmlType::Q4_K, GgmlType::Q5_K, GgmlType::F16, GgmlType::Q8_0],
            ..plain(m, 3, SMALL, true)
        };
        let c = Case { hidden: 256, ff: [256, 64], ..c };
        let inputs = c.with_ids([0, 2].repeat(m));
        for d in devices {
            let experts = in_tiles(d, &inputs.experts);
            let Layer { gate, up, down } = inputs.shared.clone().unwrap();
            // Of three one whose type has tiles, which it has if it was loaded by itself.
            let shared = match i {
                0 => Ffn::for_fast_linear(d, gate, up, down).unwrap(),
                _ => Ffn::new(matrix(d, &gate), matrix(d, &up), Matrix::for_fast_linear(d, down).unwrap())
                    .unwrap(),
            };
            let mut y = poisoned(d, m, c.hidden);
            let x = tensor(d, c.hidden, &inputs.x);
            let routing = inputs.routing(d);
            moe_with(MoeOptions::default(), &experts, Some(&shared), &x, &routing, &mut y, Precision::Fast)
                .unwrap();
            // What blocks make of rounded activations, added to what experts in tiles give without it.
            let mut of_shared = poisoned(d, m, c.hidden);
            ffn(&shared, &x, &mut of_shared, Precision::Fast).unwrap();
            let alone = Inputs { shared: None, ..inputs.clone() };
            let (want, off) = alone.expected(ActivationFormat::Int8);
            let of_shared = host(&of_shared);
            let want: Vec<f64> = want.iter().zip(&of_shared).map(|(y, s)| y + f64::from(*s)).collect();
            close("y", &host(&y), &want, |i| off[i] + 4.0 * EPS * f64::from(of_shared[i].abs())).unwrap();
            let mut scratch = MoeScratch::new(d).unwrap();
            let refused = d.gpu().unwrap().capture(|| {
                let options = MoeOptions { scratch: Some(&mut scratch), ..MoeOptions::default() };
                moe_with(options, &experts, Some(&shared), &x, &routing, &mut y, Precision::Fast)
            });
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
        }
    }
}

/// Ids and weights that kernels of the same stream have just written, which kernels for few tokens read before they wait: two mixtures by one
/// routing, which another router changes between, have the same bits as from the host, launched and in a graph.
pub fn takes_what_the_router_chose(devices: &[Device]) {
    let (experts, k, hidden) = (12, 8, 256);
    let config = RouterConfig { n_experts_per_tok: k, ..GLM5 };
    // 32 pairs are sorted by one warp, 64 by a block of threads, more by a kernel.
    for m in [1, 2, 4, 5, 8, 9] {
        let first = Case { hidden, k, ..plain(m, experts, SMALL, m % 2 == 1) }.inputs();
        let second = Inputs { x: Rng(5).normals(m * hidden), ..first.clone() };
        let w = random_weight(GgmlType::F32, 1, experts, hidden, 7);
        for d in devices {
            let (router_w, bias) = (matrix(d, &w), tensor(d, experts, &vec![0.0; experts]));
            let want = |inputs: &Inputs| {
                let mut routing = Routing::new(d, experts, k).unwrap();
                router(&router_w, &bias, &tensor(d, hidden, &inputs.x), &config, &mut routing).unwrap();
                let (ids, weights) = (routing.ids.to_vec().unwrap(), routing.weights.to_vec().unwrap());
                (ids.clone(), Inputs { ids, weights, ..inputs.clone() }.run(d).unwrap())
            };
            let wants = [want(&first), want(&second)];
            assert_ne!(wants[0].0, wants[1].0, "the second chooses as the first");
            let (weights, shared) = first.layers(d);
            let xs = [&first, &second].map(|inputs| tensor(d, hidden, &inputs.x));
            let mut ys = [0; 2].map(|_| poisoned(d, m, hidden));
            let mut routing = Routing::new(d, experts, k).unwrap();
            let mut scratch = MoeScratch::new(d).unwrap();
            let mut both = |ys: &mut [Tensor; 2]| {
                for (x, y) in xs.iter().zip(ys) {
                    router(&router_w, &bias, x, &config, &mut routing)?;
                    let options = MoeOptions { scratch: Some(&mut scratch), ..MoeOptions::default() };
                    moe_with(options, &weights, shared.as_ref(), x, &routing, y, Precision::Fast)?;
                }
                Ok(())
            };
            let check = |ys: &[Tensor; 2], what: &str| {
                for (y, (_, want)) in ys.iter().zip(&wants) {
                    equal(what, &host(y), want).unwrap_or_else(|e| panic!("{m} tokens: {e}"));
                }
            };
            both(&mut ys).unwrap(); // makes room
            both(&mut ys).unwrap();
            check(&ys, "launched");
            let mut graph = d.gpu().unwrap().capture(|| both(&mut ys)).unwrap();
            for _ in 0..4 {
                graph.launch().unwrap();
            }
            check(&ys, "replayed");
        }
    }
}

/// As many experts as there may be; each has one row, or few of them have.
pub fn experts_of_one_row_each(devices: &[Device]) {
    for (m, k) in [(8, 16), (8, 2), (64, 8), (512, 1)] {
        let c = Case { hidden: 32, ff: [32, 32], ..plain(m, 512, SMALL, false) };
        // 5 and 512 have no common divisor: all are distinct.
        let inputs = c.with_ids((0..m * k).map(|p| ((5 * p + 511) % 512) as u32).collect());
        inputs.is_the_reference(devices).unwrap_or_else(|e| panic!("{m} tokens, {k} experts each: {e}"));
    }
}

/// Where products underflow or overflow, zeros, and NaN; others are beside them.
pub fn activations_may_be_of_any_size(devices: &[Device]) {
    let scales = [1.0, 1e-30, 1e30, 0.0, f32::NAN, 1e-12, 1e12, 1.0];
    for (i, m) in [(0, 8), (1, 8), (2, 24)] {
        let types = [TYPES[i], TYPES[i + 2]];
        let c = plain(m, 4, types, i != 1);
        let mut inputs = c.with_ids((0..2 * m).map(|p| (p % 3) as u32).collect());
        inputs.x = Rng(3).normals(m * c.hidden);
        for (t, x) in inputs.x.chunks_mut(c.hidden).enumerate() {
            x.iter_mut().for_each(|x| *x *= scales[t % 8]);
        }
        let got = inputs.is_the_reference(devices).unwrap();
        for (t, y) in got.chunks(c.hidden).enumerate() {
            let scale = scales[t % 8];
            let lost = y.iter().any(|y| y.is_finite()) != (scale < 1e30);
            assert!(!lost && (scale != 0.0 || y.iter().all(|y| *y == 0.0)), "token {t}, {scale:e}: {y:?}");
        }
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    use GgmlType::{Q4_K, Q5_0, Q8_0};
    let d = &devices[0];
    let (hidden, ff) = (256, 256);
    let tiles =
        |ty, slabs, rows, cols| Matrix::for_fast_linear(d, random_weight(ty, slabs, rows, cols, 1)).unwrap();
    let blocks = |ty, slabs, rows, cols| matrix(d, &random_weight(ty, slabs, rows, cols, 1));
    let stack = |slabs, hidden, ff| {
        let down = tiles(Q8_0, slabs, hidden, ff);
        Ffn::new(tiles(Q4_K, slabs, ff, hidden), tiles(Q4_K, slabs, ff, hidden), down).unwrap()
    };
    let (experts, one) = (stack(4, hidden, ff), stack(1, hidden, 96));
    for m in [2, 10] {
        let ids = [0, 3].repeat(m);
        let (x, wide) = (tensor(d, hidden, &vec![1.0; m * hidden]), tensor(d, 512, &vec![1.0; m * 512]));
        let good = routing(d, m, &ids, &vec![1.0; 2 * m]);
        let short = routing(d, 1, &ids[..2], &[1.0; 2]);
        let mut uneven = routing(d, m, &ids, &vec![1.0; 2 * m]);
        uneven.weights = short.weights.try_clone().unwrap();
        let [mut y, mut tall, mut other] =
            [(m, hidden), (m + 1, hidden), (m, 512)].map(|(rows, cols)| poisoned(d, rows, cols));
        let call =
            |experts: &Ffn, shared: Option<&Ffn>, x: &Tensor, r: &Routing, y: &mut Tensor, precision| {
                moe_with(MoeOptions::default(), experts, shared, x, r, y, precision)
            };
        let fast = Precision::Fast;
        refused(vec![
            ("x", call(&experts, None, &wide, &good, &mut y, fast)),
            ("y rows", call(&experts, None, &x, &good, &mut tall, fast)),
            ("y cols", call(&experts, None, &x, &good, &mut other, fast)),
            ("ids", call(&experts, None, &x, &short, &mut y, fast)),
            ("weights", call(&experts, None, &x, &uneven, &mut y, fast)),
            ("shared stack", call(&experts, Some(&stack(2, hidden, 96)), &x, &good, &mut y, fast)),
            ("shared width", call(&experts, Some(&stack(1, 512, 96)), &x, &good, &mut y, fast)),
        ]);

        // One of the three in blocks, though its type has tiles, or because it has none.
        let mixed = |slabs: usize, which: usize, ty: GgmlType| {
            let shape = |i: usize| if i == 2 { (hidden, ff) } else { (ff, hidden) };
            let [gate, up, down] = [0, 1, 2].map(|i| match i == which {
                true => blocks(ty, slabs, shape(i).0, shape(i).1),
                false => tiles(Q4_K, slabs, shape(i).0, shape(i).1),
            });
            Ffn::new(gate, up, down).unwrap()
        };
        let narrow = |ty, slabs, rows, cols| tiles(ty, slabs, rows, cols);
        let many =
            Ffn::new(narrow(Q5_0, 513, 32, 256), narrow(Q5_0, 513, 32, 256), narrow(Q5_0, 513, 256, 32));
        let mut unsupported = vec![
            ("exact".to_string(), call(&experts, None, &x, &good, &mut y, Precision::Exact)),
            ("exact, shared".into(), call(&experts, Some(&one), &x, &good, &mut y, Precision::Exact)),
            ("513 experts".into(), call(&many.unwrap(), None, &x, &good, &mut y, fast)),
        ];
        for which in 0..3 {
            for ty in [Q4_K, GgmlType::Q3_K] {
                let result = call(&mixed(4, which, ty), None, &x, &good, &mut y, fast);
                unsupported.push((format!("{ty} in blocks, {which}"), result));
            }
        }
        for (what, result) in unsupported {
            assert!(matches!(result, Err(Error::Unsupported { .. })), "{what}, {m} tokens: {result:?}");
        }
        // The last of four would have the id of none, or one beyond all ids.
        for first in [NO_EXPERT as usize - 3, NO_EXPERT as usize, usize::MAX] {
            let options = MoeOptions { first_expert: Some(first), ..MoeOptions::default() };
            let result = moe_with(options, &experts, Some(&one), &x, &good, &mut y, fast);
            assert!(matches!(result, Err(Error::Argument { .. })), "experts from {first} on: {result:?}");
        }
        assert!([&y, &tall, &other].into_iter().all(untouched), "a refused call wrote something");
        // And what they were to refuse is not how the good ones differ.
        call(&experts, Some(&one), &x, &good, &mut y, fast).unwrap();
        assert!(host(&y).iter().all(|y| y.is_finite()));
    }
    let elsewhere = MoeScratch::new(&Device::cpu(Some(1)).unwrap());
    assert!(matches!(elsewhere, Err(Error::Unsupported { .. })), "{elsewhere:?}");
}

/// Whether a device is one for large tests; if not it says why.
fn is_large(d: &Device) -> bool {
    if d.name().contains("emulator") {
        println!("left to GPUs: the emulator takes too long");
        return false;
    }
    let total = d.gpu().unwrap().memory().unwrap().total;
    if total < 16 << 30 {
        println!("left to GPUs with 16 GiB: this one has {} MiB", total >> 20);
    }
    total >= 16 << 30
}

/// An expert of few rows behind more than 2^20 places of another: they are right, or all of it is refused.
pub fn more_places_than_fit_in_20_bits(devices: &[Device]) {
    let (m, k) = ((1 << 17) + 40, 8);
    for d in devices.iter().filter(|d| is_large(d)) {
        let c = Case { hidden: 32, ff: [32, 32], ..plain(m, 2, SMALL, false) };
        let mut ids = vec![0; m * k];
        *ids.last_mut().unwrap() = 1;
        let inputs = c.with_ids(ids);
        let got = match inputs.run(d) {
            Ok(got) => got,
            Err(Error::Capacity { .. } | Error::Unsupported { .. }) => continue,
            Err(e) => panic!("{e}"),
        };
        // Those of the first places, of which the last expert's could take one, and the last.
        for t in (0..600).chain([m - 2, m - 1]) {
            let (want, off) = inputs.token(t).expected(ActivationFormat::Int8);
            close("y", &got[t * 32..(t + 1) * 32], &want, |i| off[i])
                .unwrap_or_else(|e| panic!("token {t}: {e}"));
        }
    }
}

/// A stack of random blocks, repeated so that no two experts have the same bytes, and those experts of it that are asked for.
fn full_size(d: &Device, rows: usize, cols: usize, seed: u64, which: &[usize]) -> (Matrix, Weight) {
    let (ty, slabs) = (GgmlType::Q6_K, 256);
    // A prime number of blocks: experts begin at other ones of it.
    let pattern = random_blocks(ty, 4099, false, seed);
    let slab = rows * cols / ty.block_elems() * ty.block_bytes();
    let mut bytes = Vec::with_capacity(slabs * slab);
    while bytes.len() < slabs * slab {
        bytes.extend_from_slice(&pattern[..pattern.len().min(slabs * slab - bytes.len())]);
    }
    let some: Vec<u8> = which.iter().flat_map(|e| &bytes[e * slab..(e + 1) * slab]).copied().collect();
    let all = Weight::new(ty, [slabs, rows, cols], bytes.into()).unwrap();
    let some = Weight::new(ty, [which.len(), rows, cols], some.into()).unwrap();
    (Matrix::for_fast_linear(d, all).unwrap(), some)
}

/// Stacks of 2.6 GB, which offsets of 31 and of 32 bits do not reach through; tokens go to experts on either side of where these end.
pub fn a_stack_of_full_size(devices: &[Device]) {
    let (hidden, ff, kinds) = (6144, 2048, 3);
    let experts: [usize; 6] = [0, 127, 128, 170, 203, 255];
    for d in devices.iter().filter(|d| is_large(d)) {
        let (gate, gate_of) = full_size(d, ff, hidden, 1, &experts);
        let (up, up_of) = full_size(d, ff, hidden, 2, &experts);
        let (down, down_of) = full_size(d, hidden, ff, 3, &experts);
        let all = Ffn::new(gate, up, down).unwrap();
        let some = Layer { gate: gate_of, up: up_of, down: down_of };
        // Tokens are of a few kinds, for which each expert is computed once.
        let x = Rng(5).normals(kinds * hidden);
        let of_experts = [0, 1, 2, 3, 4, 5].map(|e| expected(&some, e, &x, ActivationFormat::Int8));
        // Few tokens; many, of which experts on the one side have few and then those on the other.
        for (m, rare) in [(2, None), (24, Some(0..3)), (24, Some(3..6))] {
            let mut rng = Rng(m as u64);
            let there = |t: usize, e: usize| t < 5 || rare.as_ref().is_none_or(|rare| !rare.contains(&e));
            let slots: Vec<Option<usize>> = (0..m)
                .flat_map(|t| (0..6).map(move |e| (t, e)))
                .map(|(t, e)| there(t, e).then_some(e))
                .collect();
            let ids: Vec<u32> = slots.iter().map(|e| e.map_or(NO_EXPERT, |e| experts[e] as u32)).collect();
            let weights: Vec<f32> = slots.iter().map(|_| 0.3 * rng.normal()).collect();
            let rows: Vec<f32> = (0..m).flat_map(|t| &x[t % kinds * hidden..][..hidden]).copied().collect();
            let mut y = poisoned(d, m, hidden);
            let (of, at) = (routing(d, m, &ids, &weights), tensor(d, hidden, &rows));
            moe_with(MoeOptions::default(), &all, None, &at, &of, &mut y, Precision::Fast).unwrap();
            for (t, y) in host(&y).chunks(hidden).enumerate() {
                let (mut want, mut off) = (vec![0.0; hidden], vec![0.0; hidden]);
                for (e, weight) in slots[t * 6..][..6].iter().zip(&weights[t * 6..]) {
                    let Some(e) = e else { continue };
                    let (rows, offs) = (&of_experts[*e].0, &of_experts[*e].1);
                    for i in 0..hidden {
                        let (at, weight) = (t % kinds * hidden + i, f64::from(*weight));
                        want[i] += weight * rows[at];
                        off[i] += weight.abs() * offs[at] + 28.0 * EPS * (weight * rows[at]).abs();
                    }
                }
                close("y", y, &want, |i| off[i]).unwrap_or_else(|e| panic!("token {t} of {m}: {e}"));
            }
        }
    }
}
