//! Plans: what a model would take of GPUs that are not here.

use std::time::Instant;

use glm5::Error;
use glm5::cuda::Properties;
use glm5::gguf::Gguf;
use glm5::model::{Batch, LoadOptions, LogitRows, Model, Plan, PlanOptions};
use glm5::tensor::{CacheType, PAGE_ROWS, Precision};

use crate::common::{self, MODELS};
use crate::synthetic::{self, Style, TempDir};

fn options(context: usize, gpus: usize) -> PlanOptions {
    let load = LoadOptions { precision: Precision::Fast, ..LoadOptions::default() };
    PlanOptions { load, cache_type: CacheType::Bf16, context, gpus }
}

fn known(name: &str) -> Properties {
    Properties::by_name(name).unwrap()
}

/// GLM-5.2 of 435 GiB: not on one GPU, but on eight.
#[test]
fn full_size_files_are_planned_by_their_headers() {
    let dir = TempDir::new();
    let gguf = Gguf::open(&synthetic::write(dir.path(), Style::Glm52Straight, 1)[0]).unwrap();
    for name in Properties::KNOWN {
        let start = Instant::now();
        let one = Plan::new(&gguf, &known(name), &options(32_768, 1)).unwrap();
        let eight = Plan::new(&gguf, &known(name), &options(32_768, 8)).unwrap();
        println!("{one}\n{eight}\n{:.2} s", start.elapsed().as_secs_f64());
        assert!(one.weights > 420 << 30 && one.loading > one.weights && !one.fits() && one.longest == 0);
        let why = one.expect_fits().unwrap_err();
        assert!(
            matches!(why, Error::Capacity { needed, available, .. } if needed == one.needed && available == one.memory)
        );
        assert!(why.to_string().contains("no context would fit"), "{why}");
        // Experts and heads are cut, the rest is on each.
        let part = one.weights / 8;
        assert!(
            eight.weights > part && eight.weights < part + (6 << 30),
            "{} of {}",
            eight.weights,
            one.weights
        );
        assert!(eight.fits() && eight.longest >= 32_768, "{eight}");
        eight.expect_fits().unwrap();
        // A latent row of 1152 bytes in each of 78 layers and a key of 256 in each of 21, in pages.
        assert_eq!(eight.cache_per_token, 78 * 1152 + 21 * 256);
        let launches = eight.launches;
        assert!(launches.full.is_some() && launches.shared.is_some() && launches.dense.is_some());
        assert!(launches.full > launches.shared && launches.full > launches.full_short, "{launches:?}");
        assert!(launches.step > 78 * launches.shared.unwrap(), "{launches:?}");
    }
    // Norms, and what the system reads with them.
    #[cfg(target_os = "linux")]
    println!("{} MiB of the file in memory", synthetic::resident(dir.path()) >> 20);
    #[cfg(target_os = "linux")]
    assert!(synthetic::resident(dir.path()) < 100 << 20, "data was touched");
}

/// What is said to fit does, and a page more does not.
#[test]
fn the_largest_context_is_the_largest() {
    // With no smaller steps to save memory by.
    let options = |context, gpus| {
        let options = options(context, gpus);
        PlanOptions { load: LoadOptions { step_tokens: Some(512), ..options.load }, ..options }
    };
    for name in MODELS {
        let gguf = common::gguf(name);
        let roomy = Plan::new(&gguf, &known("h200"), &options(4096, 1)).unwrap();
        assert!(roomy.fits() && roomy.longest == 4096, "{roomy}");
        let memory = roomy.needed - (8 << 20);
        let gpu = Properties { memory, ..known("h200") };
        let tight = Plan::new(&gguf, &gpu, &options(4096, 1)).unwrap();
        assert!(!tight.fits() && (PAGE_ROWS..4096).contains(&tight.longest), "{tight}");
        let why = tight.expect_fits().unwrap_err().to_string();
        assert!(why.contains(&format!("a context of {} tokens would fit", tight.longest)), "{why}");
        for (context, fits) in [(tight.longest, true), (tight.longest + PAGE_ROWS, false)] {
            let plan = Plan::new(&gguf, &gpu, &options(context, 1)).unwrap();
            assert_eq!(plan.fits(), fits, "{context} tokens: {plan}");
            assert_eq!(plan.longest, tight.longest);
        }
        assert!(tight.to_string().contains("does NOT fit"));
    }
}

#[test]
fn sums_are_those_of_the_parts() {
    let gguf = common::gguf(MODELS[1]);
    for cache_type in [CacheType::F32, CacheType::Bf16, CacheType::Fp8] {
        for precision in [Precision::Exact, Precision::Fast] {
            let load = LoadOptions { precision, ..LoadOptions::default() };
            let plan = Plan::new(
                &gguf,
                &known("rtx-pro-6000"),
                &PlanOptions { load, cache_type, context: 500, gpus: 1 },
            )
            .unwrap();
            let spaces: u64 = plan.workspaces.iter().map(|(_, bytes)| bytes).sum();
            assert_eq!(plan.needed, (plan.weights + plan.cache + spaces).max(plan.loading) + plan.reserve);
            assert!(plan.workspaces.is_sorted_by_key(|(_, bytes)| std::cmp::Reverse(*bytes)));
            // The spare page, too.
            assert_eq!(plan.cache, plan.cache_per_token * (500u64.next_multiple_of(64) + 64), "{cache_type}");
            let json = serde_json::to_value(&plan).unwrap();
            assert_eq!(json["needed"], plan.needed);
        }
    }
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let gguf = common::gguf(MODELS[0]);
    for (context, gpus) in [(0, 1), (4097, 1), (100, 0)] {
        let refused = Plan::new(&gguf, &known("h200"), &options(context, gpus));
        assert!(matches!(refused, Err(Error::Argument { .. })), "{refused:?}");
    }
    // Four heads are not cut into three.
    assert!(matches!(Plan::new(&gguf, &known("h200"), &options(100, 3)), Err(Error::File { .. })));
    assert!(Properties::by_name("h100").is_none());
}

/// Steps of a prompt have as many tokens as fit, and no others than were asked for.
#[test]
fn steps_are_as_large_as_fits() {
    let gguf = common::gguf(MODELS[0]);
    let mut gpu = known("h200");
    let planned = |gpu: &Properties, step_tokens: Option<usize>| {
        let mut options = options(4096, 1);
        options.load.step_tokens = step_tokens;
        Plan::new(&gguf, gpu, &options).unwrap()
    };
    let roomy = planned(&gpu, None);
    assert_eq!(roomy.step_tokens, 2048);
    for step in [1024, 512, 256, 128] {
        // Room for this many and not for more.
        gpu.memory = planned(&gpu, Some(step)).needed;
        let plan = planned(&gpu, None);
        assert!(plan.step_tokens == step && plan.fits(), "{plan}");
        let twice = planned(&gpu, Some(2 * step));
        assert!(twice.step_tokens == 2 * step && !twice.fits(), "{twice}");
        assert!(twice.longest < 4096, "{twice}");
    }
    // Not even the smallest: what would fit is said for these.
    gpu.memory -= 1;
    let plan = planned(&gpu, None);
    assert!(plan.step_tokens == 128 && !plan.fits() && plan.longest < 4096, "{plan}");
}

/// Any number of tokens at a time has the same logits but for rounding, and numbers out of range are refused.
#[test]
fn steps_of_any_size_give_the_same_logits() {
    let gguf = common::gguf(MODELS[0]);
    let tokens: Vec<u32> = (0..200).map(|i| i * 7 % 4000).collect();
    let logits = |step_tokens: Option<usize>| {
        let options = LoadOptions { step_tokens, ..LoadOptions::default() };
        let mut model = Model::load(&gguf, common::device(), &options, &mut |_, _| {})?;
        let mut cache = model.new_cache(256, CacheType::F32)?;
        let seq = cache.new_sequence();
        let out = model.forward(&Batch::one(seq, &tokens, LogitRows::From(0)), &mut cache)?;
        out.to_vec()
    };
    let want = logits(None).unwrap();
    for step in [1, 64, 199, 65_536] {
        let got = logits(Some(step)).unwrap();
        let (mut off, mut all) = (0f64, 0f64);
        for (a, b) in got.iter().zip(&want) {
            off += f64::from(a - b).powi(2);
            all += f64::from(*b).powi(2);
        }
        assert!(got.len() == want.len() && (off / all).sqrt() < 2e-5, "{step}: {:e}", (off / all).sqrt());
    }
    for step in [0, 65_537] {
        assert!(matches!(logits(Some(step)), Err(Error::Argument { .. })), "{step}");
    }
}
