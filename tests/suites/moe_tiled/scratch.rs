//! Mixtures of experts in tiles, call after call: memory that is used again, and graphs.

use super::*;

/// Sizes of a call, and whether its input is NaN.
type Step = (usize, [usize; 2], usize, bool);

/// Tokens; width of experts and of the shared one, if there is one; experts. Each narrower width has a wider one of NaN before.
const STEPS: [Step; 12] = [
    (1, [96, 0], 4, false),
    (130, [320, 96], 4, true),
    (5, [96, 32], 4, false),
    (9, [320, 320], 6, true),
    (9, [32, 96], 6, false),
    (1, [96, 0], 6, true),
    (64, [320, 0], 3, false),
    (1, [32, 320], 3, true),
    (1, [320, 96], 3, false),
    (130, [256, 256], 4, true),
    (130, [96, 96], 4, false),
    (5, [32, 32], 4, false),
];

fn of_step((m, ff, experts, nan): Step) -> Inputs {
    // Widths that change with each other.
    let hidden = if ff[0] == 320 { 96 } else { 320 };
    let c = Case { hidden, ff: [ff[0], ff[1].max(32)], ..plain(m, experts, SMALL, ff[1] > 0) };
    let mut rng = Rng((m + ff[0]) as u64);
    let mut inputs = c.with_ids((0..2 * m).map(|_| rng.below(experts) as u32).collect());
    if nan {
        inputs.x.fill(f32::NAN);
    }
    inputs
}

/// Step after step of other sizes with one scratch: the same bits as with a new one. NaN of one would be seen in the next if it were
/// behind the end of a row.
pub fn memory_is_used_again(devices: &[Device]) {
    for d in devices {
        let mut scratch = MoeScratch::new(d).unwrap();
        for step in STEPS {
            let inputs = of_step(step);
            let options = MoeOptions { scratch: Some(&mut scratch), ..MoeOptions::default() };
            let got = inputs.run_with(d, options).unwrap();
            equal("y", &got, &inputs.run(d).unwrap()).unwrap_or_else(|e| panic!("{step:?}: {e}"));
            assert_eq!(got.iter().any(|y| y.is_nan()), step.3, "{step:?}");
        }
    }
}

/// A call whose inputs and output stay where they are.
struct Call {
    experts: Ffn,
    shared: Option<Ffn>,
    x: Tensor,
    routing: Routing,
    y: Tensor,
}

impl Call {
    fn new(d: &Device, inputs: &Inputs) -> Call {
        let (experts, shared) = inputs.layers(d);
        let (x, y) = (tensor(d, inputs.hidden(), &inputs.x), poisoned(d, inputs.m(), inputs.hidden()));
        Call { experts, shared, x, routing: inputs.routing(d), y }
    }

    fn issue(&mut self, scratch: Option<&mut MoeScratch>) -> glm5::Result<()> {
        let options = MoeOptions { scratch, ..MoeOptions::default() };
        let Call { experts, shared, x, routing, y } = self;
        moe_with(options, experts, shared.as_ref(), x, routing, y, Precision::Fast)
    }

    /// Puts other inputs in place, and poison in the output's.
    fn put(&mut self, inputs: &Inputs) {
        self.x.cuda_mut().unwrap().upload(0, &inputs.x).unwrap();
        self.routing.ids.cuda_mut().unwrap().upload(0, &inputs.ids).unwrap();
        self.routing.weights.cuda_mut().unwrap().upload(0, &inputs.weights).unwrap();
        self.y.cuda_mut().unwrap().upload(0, &vec![POISON; inputs.x.len()]).unwrap();
    }
}

/// With room, which a call that is not recorded makes; replays take the inputs of then, of which other experts have rows.
pub fn calls_are_recorded(devices: &[Device]) {
    for (m, shared, up) in [
        (3, true, None),
        (8, false, None),
        (20, true, None),
        (40, false, None),
        (3, true, Some([GgmlType::Q5_0, GgmlType::Q8_0])),
    ] {
        let c = Case { up, ..plain(m, 6, SMALL, shared) };
        let first = Inputs { ids: [1, 4].repeat(m), weights: [0.5, -1.5].repeat(m), k: 2, ..c.inputs() };
        let mut rng = Rng(m as u64);
        let mut second = Inputs {
            x: rng.normals(m * c.hidden),
            ids: (0..2 * m).map(|_| rng.below(6) as u32).collect(),
            weights: rng.normals(2 * m),
            ..first.clone()
        };
        (second.ids[1], second.weights[1]) = (NO_EXPERT, f32::NAN);
        for d in devices {
            let wants = [&first, &second].map(|inputs| inputs.run(d).unwrap());
            let gpu = d.gpu().unwrap();
            let (mut call, mut scratch) = (Call::new(d, &first), MoeScratch::new(d).unwrap());
            for scratch in [None, Some(&mut scratch)] {
                let refused = gpu.capture(|| call.issue(scratch));
                assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
            }
            assert!(untouched(&call.y), "a capture that was refused ran");
            call.issue(Some(&mut scratch)).unwrap();
            equal("y", &host(&call.y), &wants[0]).unwrap();
            let mut graph = gpu.capture(|| call.issue(Some(&mut scratch))).unwrap();
            for i in [1, 0, 1, 1] {
                call.put([&first, &second][i]);
                graph.launch().unwrap();
                equal("a replay", &host(&call.y), &wants[i])
                    .unwrap_or_else(|e| panic!("{m} tokens, inputs {i}: {e}"));
            }
        }
    }
}

/// What calls of other widths leave in the scratch is not in the results of a graph that was recorded before them, nor what those of
/// the same graph leave to each other.
pub fn a_replay_does_not_depend_on_calls_between(devices: &[Device]) {
    for m in [4, 20] {
        let of_width = |ff: usize| {
            // Of many tokens the shared expert has memory of its own, with nothing behind the end of rows.
            let shared = if m <= FEW_ROWS { ff } else { 96 };
            Case { ff: [ff, shared], ..plain(m, 4, SMALL, true) }.with_ids([0, 3].repeat(m))
        };
        let (narrow, mut wide) = (of_width(96), of_width(320));
        wide.x.fill(f32::NAN);
        for d in devices {
            let (want, gpu) = (narrow.run(d).unwrap(), d.gpu().unwrap());
            let mut scratch = MoeScratch::new(d).unwrap();
            let (mut call, mut other) = (Call::new(d, &narrow), Call::new(d, &wide));
            // Room for both; the narrow one comes last, so that nothing is left to clear when it is recorded.
            other.issue(Some(&mut scratch)).unwrap();
            call.issue(Some(&mut scratch)).unwrap();
            equal("y", &host(&call.y), &want).unwrap();
            let mut alone = gpu.capture(|| call.issue(Some(&mut scratch))).unwrap();
            let both = || call.issue(Some(&mut scratch)).and_then(|()| other.issue(Some(&mut scratch)));
            let mut both = gpu.capture(both).unwrap();
            both.launch().unwrap();
            for (what, graph) in [("alone", &mut alone), ("both", &mut both)] {
                call.put(&narrow);
                graph.launch().unwrap();
                equal(what, &host(&call.y), &want).unwrap_or_else(|e| panic!("{m} tokens: {e}"));
            }
        }
    }
}

/// Any call but the first of its size, also if others came between.
pub fn calls_of_an_earlier_size_are_recorded(devices: &[Device]) {
    for d in devices {
        let (gpu, mut scratch) = (d.gpu().unwrap(), MoeScratch::new(d).unwrap());
        let sizes = [(4, [32, 96]), (4, [96, 32]), (20, [32, 96]), (20, [96, 32])];
        let mut calls =
            sizes.map(|(m, ff)| Call::new(d, &Case { ff, ..plain(m, 4, SMALL, true) }.with_ids(vec![1; m])));
        for call in &mut calls {
            call.issue(Some(&mut scratch)).unwrap();
        }
        for (call, size) in calls.iter_mut().zip(sizes) {
            let graph = gpu.capture(|| call.issue(Some(&mut scratch)));
            assert!(graph.is_ok(), "{size:?}: {graph:?}");
        }
    }
}

/// Rows that a norm has rounded on its way, in the forms that are taken: the bits of the call that rounds them itself, and fewer launches. The ids
/// come from the kernel right before the call, in a graph, too.
pub fn rounded_before_or_by_the_call_is_the_same(devices: &[Device]) {
    let (experts, k, hidden) = (12, 8, 96);
    let config = RouterConfig { n_experts_per_tok: k, ..GLM5 };
    let router_w = random_weight(GgmlType::F32, 1, experts, hidden, 7);
    for (m, up) in [(1, None), (8, None), (9, None), (20, None), (3, Some([GgmlType::Q5_0; 2]))] {
        let inputs = Case { up, k, ..plain(m, experts, SMALL, true) }.inputs();
        for d in devices {
            let gpu = d.gpu().unwrap();
            let (weights, shared) = inputs.layers(d);
            let (router_w, bias) = (matrix(d, &router_w), tensor(d, experts, &vec![0.0; experts]));
            let (mut stream, ones) = (tensor(d, hidden, &inputs.x), tensor(d, hidden, &[1.0; 96]));
            let mut x = LinearInput::new(d, hidden).unwrap();
            x.resize(m).unwrap();
            let (mut routing, mut scratch) =
                (Routing::new(d, experts, k).unwrap(), MoeScratch::new(d).unwrap());
            let [mut y, mut want] = [0; 2].map(|_| poisoned(d, m, hidden));
            let wanted = takes(&weights, shared.as_ref(), m);
            let mut run = |before: bool, y: &mut Tensor| {
                let wanted = if before { wanted } else { Rounded::default() };
                rms_norm_into(&mut stream, None, &ones, 1e-5, &mut x, wanted)?;
                router(&router_w, &bias, x.values(), &config, &mut routing)?;
                let options = MoeOptions { scratch: Some(&mut scratch), ..MoeOptions::default() };
                moe_from(options, &weights, shared.as_ref(), &mut x, &routing, y, Precision::Fast)
            };
            let mut counted = |before: bool, y: &mut Tensor| {
                let launches = || gpu.launches().iter().map(|(_, n)| n).sum::<u64>();
                let at = launches();
                run(before, y).unwrap();
                launches() - at
            };
            let by_call = counted(false, &mut want);
            let before = counted(true, &mut y);
            equal("y", &host(&y), &host(&want)).unwrap();
            // Few tokens have one rounding less, many two; where gate and up are of two types rows are gathered first.
            let saved = if up.is_some() { 0 } else { 1 + u64::from(m > FEW_ROWS) };
            assert_eq!(by_call - before, saved, "{}: {m} tokens, {up:?}", d.name());
            let mut graph = gpu.capture(|| run(true, &mut y)).unwrap();
            for _ in 0..3 {
                y.cuda_mut().unwrap().upload(0, &vec![POISON; m * hidden]).unwrap();
                graph.launch().unwrap();
                equal("replayed", &host(&y), &host(&want)).unwrap();
            }
        }
    }
}
