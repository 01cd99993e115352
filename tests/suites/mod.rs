//! One property suite per operation, written once. A suite says what must hold on any device; a test file instantiates it
//! for its devices with the suite's `*_properties!` macro.

#![allow(dead_code, unused_macros, unused_imports)] // Some suites are for GPUs only, and not every operation has a kernel.

use proptest::prelude::ProptestConfig;
use proptest::test_runner::FileFailurePersistence;

pub mod blocks;
pub mod close;
pub mod inputs;

/// `cases` cases, or as many as the environment variable `PROPTEST_CASES` says. Seeds of failures go to a file beside the
/// test file, to be committed; if it is not cargo that runs the tests, to one in the working directory.
pub fn config(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(cases);
    let persistence = match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(_) => FileFailurePersistence::WithSource("regressions"),
        None => FileFailurePersistence::Direct("device.regressions"),
    };
    ProptestConfig { cases, failure_persistence: Some(Box::new(persistence)), ..ProptestConfig::default() }
}

/// Makes tests of a suite's functions: `properties! { module, devices, cases; property(strategy), ...; fixed, ... }`, where
/// `devices` is a function that gives groups of devices with the same bits, `property` takes a group and a case, `fixed`
/// takes a group alone.
macro_rules! properties {
    ($suite:ident, $devices:path, $cases:expr; $($property:ident($strategy:ident)),*; $($fixed:ident),*) => {
        mod $suite {
            use crate::suites::$suite as suite;
            proptest::proptest! {
                #![proptest_config($crate::suites::config($cases))]
                $(
                    #[test]
                    fn $property(case in suite::$strategy()) {
                        for devices in $devices() {
                            suite::$property(&devices, case.clone())?;
                        }
                    }
                )*
            }
            $(
                #[test]
                fn $fixed() {
                    for devices in $devices() {
                        suite::$fixed(&devices);
                    }
                }
            )*
        }
    };
}
pub(crate) use properties;

pub mod attention;
pub mod cache;
pub mod decoding;
pub mod dequantize;
pub mod dsa_indexer;
pub mod dsa_select;
pub mod dsa_topk;
pub mod embedding;
pub mod ffn;
pub mod goldens;
pub mod large_caches;
pub mod linear;
pub mod linear_heads;
pub mod linear_tiled;
pub mod logits;
pub mod memory;
pub mod mla_attention;
pub mod mla_decode;
pub mod mla_parts;
pub mod mla_prefill;
pub mod moe;
pub mod moe_blocks;
pub mod moe_sort;
pub mod moe_sum;
pub mod moe_tiled;
pub mod norm;
pub mod overlap;
pub mod post_a;
pub mod roofs;
pub mod rope;
pub mod router;
pub mod sequences;
pub mod slices;
pub mod tensor;
