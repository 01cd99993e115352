//! Sorting of a routing by expert: exactly the reference, whatever the ids, and again with the same memory.

use glm5::kernels::Entry;
use glm5::ops::moe_sort::reference::{Sorted, sort};
use glm5::ops::moe_sort::{NONE, SortOptions, SortedPairs, config, moe_sort};
use glm5::tensor::{Device, Tensor};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::blocks::Rng;

macro_rules! moe_sort_properties {
    ($devices:path, $cases:expr) => {
        $crate::suites::properties! { moe_sort, $devices, $cases;
        sorted_is_the_reference(case);
        nothing_is_sorted, memory_is_used_again, as_many_pairs_as_prompts_have, many_pairs_of_many_experts, every_kernel_has_a_full_house,
        ids_of_other_stacks_are_refused, refuses_what_does_not_fit }
    };
}
pub(crate) use moe_sort_properties;

/// How tokens choose.
#[derive(Debug, Clone, Copy)]
pub enum Choice {
    Random,
    /// All go to one expert.
    One,
    /// Each expert in its turn.
    InTurn,
    /// As 1 / rank.
    Zipf,
    /// All pairs are left out.
    Nothing,
}

#[derive(Debug, Clone)]
pub struct Case {
    m: usize,
    top_k: usize,
    /// Of all stacks, and of this one, which begins at `first`.
    all: usize,
    n_experts: usize,
    first: usize,
    choice: Choice,
    padding: bool,
    height: usize,
    /// Which of the kernels that could.
    kernel: usize,
    seed: u64,
}

pub fn case() -> impl Strategy<Value = Case> {
    let stack = prop_oneof![
        5 => prop::sample::select(vec![1usize, 2, 5, 8, 31, 32, 33, 100]).prop_map(|n| (n, n, 0)),
        2 => prop::sample::select(vec![255usize, 256, 257, 512]).prop_map(|n| (n, n, 0)),
        3 => Just((256, 32, 96)),
        1 => Just((64, 8, 56)),
    ];
    let choice = prop_oneof![
        4 => Just(Choice::Random),
        2 => Just(Choice::One),
        2 => Just(Choice::InTurn),
        3 => Just(Choice::Zipf),
        1 => Just(Choice::Nothing),
    ];
    let height = prop::sample::select(vec![1usize, 3, 8, 64, 65_535]);
    let m = prop_oneof![3 => 0usize..20, 3 => 20usize..300];
    (m, 1usize..=16, stack, choice, any::<bool>(), height, 0usize..2, any::<u64>()).prop_map(
        |(m, top_k, (all, n_experts, first), choice, padding, height, kernel, seed)| Case {
            m,
            top_k,
            all,
            n_experts,
            first,
            choice,
            padding,
            height,
            kernel,
            seed,
        },
    )
}

impl Case {
    fn ids(&self) -> Vec<u32> {
        let rng = &mut Rng(self.seed);
        let one = rng.below(self.all) as u32;
        let mut id = |i: usize| match self.choice {
            Choice::Random => rng.below(self.all) as u32,
            Choice::One => one,
            Choice::InTurn => ((i + one as usize) % self.all) as u32,
            Choice::Zipf => ((self.all as f64).powf(rng.unit()) - 1.0) as u32,
            Choice::Nothing => NONE,
        };
        let mut ids: Vec<u32> = (0..self.m * self.top_k).map(&mut id).collect();
        if self.padding {
            ids.iter_mut().filter(|_| rng.below(5) == 0).for_each(|id| *id = NONE);
        }
        ids
    }

    fn kernel(&self) -> Option<Entry> {
        let all = config::candidates(self.m * self.top_k, self.n_experts);
        all.get(self.kernel % all.len().max(1)).map(|config| config.entry)
    }

    fn options(&self) -> SortOptions {
        SortOptions { first_expert: self.first, strict: false, height: self.height, kernel: self.kernel() }
    }
}

fn on(d: &Device, ids: &[u32], top_k: usize) -> Tensor<u32> {
    Tensor::from_vec(d, ids.len() / top_k, top_k, ids.to_vec()).unwrap()
}

fn plain(height: usize) -> SortOptions {
    SortOptions { first_expert: 0, strict: false, height, kernel: None }
}

fn run(d: &Device, ids: &[u32], top_k: usize, n: usize, options: &SortOptions) -> glm5::Result<Sorted> {
    let mut out = SortedPairs::new(d, n)?;
    moe_sort(&on(d, ids, top_k), options, &mut out)?;
    assert_eq!((out.pairs(), out.top_k(), out.height()), (ids.len(), top_k, options.height));
    let sorted = out.to_host()?;
    assert!(sorted.tiles.len() <= out.max_tiles());
    Ok(sorted)
}

pub fn sorted_is_the_reference(devices: &[Device], c: Case) -> TestCaseResult {
    let ids = c.ids();
    let want = sort(&ids, c.n_experts, c.first, c.height);
    for d in devices {
        for _ in 0..2 {
            let got = run(d, &ids, c.top_k, c.n_experts, &c.options());
            let got = got.map_err(|e| TestCaseError::fail(format!("{}: {e}", d.name())))?;
            prop_assert_eq!(&got, &want, "{}", d.name());
        }
        // No id is of another stack, so that none is an error.
        if (c.all, c.first) == (c.n_experts, 0) {
            let strict = SortOptions { strict: true, ..c.options() };
            prop_assert_eq!(&run(d, &ids, c.top_k, c.n_experts, &strict).unwrap(), &want, "{}", d.name());
        }
    }
    Ok(())
}

/// No tokens, and tokens without slots.
pub fn nothing_is_sorted(devices: &[Device]) {
    for d in devices {
        let want = sort(&[], 5, 0, 8);
        assert_eq!((&want.offsets[..], &want.counters[..]), (&[0; 6][..], &[0; 4][..]));
        for kernel in config::candidates(0, 5) {
            let options = SortOptions { kernel: Some(kernel.entry), ..plain(8) };
            assert_eq!(run(d, &[], 8, 5, &options).unwrap(), want);
        }
        let mut out = SortedPairs::new(d, 5).unwrap();
        moe_sort(&Tensor::zeros(d, 3, 0).unwrap(), &plain(8), &mut out).unwrap();
        assert_eq!((out.to_host().unwrap(), out.max_tiles()), (want, 0));
    }
}

/// Step after step into one result, by either kernel: nothing of an earlier one is left, and memory is not replaced by less.
pub fn memory_is_used_again(devices: &[Device]) {
    for d in devices {
        let mut out = SortedPairs::new(d, 12).unwrap();
        for (step, m) in [3usize, 3, 200, 0, 1, 199, 40].into_iter().enumerate() {
            let mut rng = Rng(step as u64);
            let ids: Vec<u32> = (0..2 * m).map(|_| rng.below(14) as u32).collect();
            let height = [8, 64, 1][step % 3];
            for kernel in config::candidates(2 * m, 12) {
                let options = SortOptions { kernel: Some(kernel.entry), ..plain(height) };
                moe_sort(&on(d, &ids, 2), &options, &mut out).unwrap();
                assert_eq!(out.to_host().unwrap(), sort(&ids, 12, 0, height), "step {step}");
            }
        }
    }
}

/// Counts around 2^16, and half a million; all to one expert, so that no counter of a part of them may be narrow, or spread.
pub fn as_many_pairs_as_prompts_have(devices: &[Device]) {
    for d in devices {
        let emulated = d.name().contains("emulator");
        let sizes: &[usize] = if emulated { &[65_535, 65_536] } else { &[65_535, 65_536, 524_288] };
        if emulated {
            println!("524,288 pairs are left to CPU and GPU: the emulator takes too long for them");
        }
        for n in sizes {
            let mut rng = Rng(*n as u64);
            for one in [true, false] {
                let ids: Vec<u32> = (0..*n).map(|_| if one { 2 } else { rng.below(6) as u32 }).collect();
                // Some are left out.
                assert!(
                    run(d, &ids, 1, 5, &plain(64)).unwrap() == sort(&ids, 5, 0, 64),
                    "{n} pairs, one: {one}"
                );
            }
        }
    }
}

/// As many of as many experts as there may be, which all blocks of threads share, not only the first ones.
pub fn many_pairs_of_many_experts(devices: &[Device]) {
    for d in devices {
        let emulated = d.name().contains("emulator");
        let more = (!emulated).then_some((524_288, 256));
        for (n, experts) in [(65_535, 256), (65_536, 512)].into_iter().chain(more) {
            let mut rng = Rng(n as u64);
            let ids: Vec<u32> = (0..n).map(|_| rng.below(experts + 3) as u32).collect();
            assert!(run(d, &ids, 1, experts, &plain(64)).unwrap() == sort(&ids, experts, 0, 64), "{n} pairs");
        }
    }
}

/// As many pairs as one block of threads has room for, and one more.
pub fn every_kernel_has_a_full_house(devices: &[Device]) {
    for d in devices {
        for n in [8191, 8192, 8193] {
            let mut rng = Rng(n as u64);
            let ids: Vec<u32> = (0..n).map(|_| rng.below(4) as u32).collect();
            assert!(run(d, &ids, 1, 4, &plain(8)).unwrap() == sort(&ids, 4, 0, 8), "{n} pairs");
            let same = vec![3; n];
            assert!(run(d, &same, 1, 4, &plain(8)).unwrap() == sort(&same, 4, 0, 8), "{n} equals");
        }
    }
}

/// On a GPU the kernel traps, which ends the device, so this is for the CPU.
pub fn ids_of_other_stacks_are_refused(devices: &[Device]) {
    for d in devices.iter().filter(|d| matches!(d, Device::Cpu(_))) {
        let strict = SortOptions { first_expert: 4, strict: true, ..plain(8) };
        for bad in [3, 8, u32::MAX - 1] {
            let refused = run(d, &[4, bad, 5, NONE], 2, 4, &strict);
            assert!(matches!(refused, Err(glm5::Error::Argument { .. })), "{bad}: {refused:?}");
        }
        assert_eq!(run(d, &[4, 7, 5, NONE], 2, 4, &strict).unwrap().places, [0, 2, 1, NONE]);
    }
}

pub fn refuses_what_does_not_fit(devices: &[Device]) {
    let d = &devices[0];
    let argument = |result: glm5::Result<Sorted>| {
        assert!(matches!(result, Err(glm5::Error::Argument { .. })), "{result:?}");
    };
    argument(run(d, &[1], 1, 4, &plain(0)));
    argument(run(d, &[1], 1, 4, &plain(65_536)));
    argument(run(d, &[1], 1, 0, &plain(8)));
    argument(run(d, &[1], 1, 513, &plain(8)));
    // The last of four experts would have the id of none, or one beyond all ids.
    for first_expert in [NONE as usize - 3, NONE as usize, usize::MAX] {
        argument(run(d, &[1], 1, 4, &SortOptions { first_expert, ..plain(8) }));
    }
    // The last ids there are, and one right before them.
    let last = SortOptions { first_expert: NONE as usize - 4, ..plain(8) };
    let ids = [NONE - 1, NONE, NONE - 5, NONE - 4];
    assert_eq!(run(d, &ids, 2, 4, &last).unwrap(), sort(&ids, 4, last.first_expert, 8));
    let many = Tensor::zeros(d, 1 << 20, 8).unwrap();
    let result = moe_sort(&many, &plain(8), &mut SortedPairs::new(d, 4).unwrap());
    assert!(matches!(result, Err(glm5::Error::Capacity { .. })), "{result:?}");
    let elsewhere = Device::cpu(Some(1)).unwrap();
    if !matches!(d, Device::Cpu(_)) {
        let result = moe_sort(&on(d, &[1], 1), &plain(8), &mut SortedPairs::new(&elsewhere, 4).unwrap());
        assert!(matches!(result, Err(glm5::Error::Unsupported { .. })), "{result:?}");
    }
}
