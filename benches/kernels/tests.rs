//! Tests of the benches themselves. A bench has no harness, so `cuda/host/tests/benches.rs` runs them.

use std::collections::BTreeSet;

use glm5::cuda::Environment;
use glm5::cuda::roofs::{ReadRoof, Roofs};
use glm5::kernels::{Entry, linear_gemm, linear_gemm_wide};
use glm5::quant::GgmlType;
use serde_json::Value;

use super::baselines::{Baseline, Case};
use super::report::{Bound, Memory, Report, Work, is_f16, named};
use super::shapes::{ALL, SHAPES, Shape};
use super::{issued, launches, linear, linear_fused};

#[test]
fn llama_cpp_is_there() {
    let baseline = Baseline::llama_cpp();
    assert_eq!((baseline.gpu, baseline.what, baseline.rows.len()), ("NVIDIA H200", "llama.cpp", 327));
    let case = Case { op: "MUL_MAT", ty: "Q8_0", k: 16_384, n: 6144, m: 1 };
    let us = baseline.us(&case).unwrap();
    assert!((34.0..34.5).contains(&us), "{us}");
    assert_eq!(baseline.us(&Case { op: "MUL_MAT_ID", ..case }), None);
    for (i, (case, _)) in baseline.rows.iter().enumerate() {
        assert!(baseline.rows[..i].iter().all(|(other, _)| other != case), "{case:?} is there twice");
    }
}

#[test]
fn what_is_no_table_is_refused() {
    let good = "# gpu: G\n# what: W\nop,type,k,n,m,us\nMUL_MAT,Q4_K,1,2,3,4.5\n";
    assert_eq!(Baseline::parse(good).unwrap().rows.len(), 1);
    for (from, to, complaint) in [
        ("# gpu: G\n", "", "# gpu:"),
        ("op,type", "type,op", "the first row"),
        ("4.5", "0", "MUL_MAT,Q4_K,1,2,3,0"),
        (",3,", ",", "no row"),
    ] {
        let bad = good.replace(from, to).leak();
        let said = Baseline::parse(bad).err().unwrap();
        assert!(said.contains(complaint), "{said}");
    }
}

#[test]
fn no_case_is_there_twice_and_the_table_takes_minutes() {
    let mut seen = BTreeSet::new();
    let mut rows = 0;
    for shape in SHAPES {
        for ty in shape.types() {
            assert!(seen.insert((shape.k, shape.n, ty.name())), "{shape:?} {ty}");
            rows += shape.tokens.len();
        }
    }
    seen.clear();
    for shape in linear::SHAPES {
        for ty in shape.types {
            assert!(seen.insert((shape.k, shape.n, ty.name())), "{shape:?} {ty}");
            rows += shape.tokens.len();
        }
    }
    rows += linear_fused::CASES.iter().map(|case| case.tokens.len()).sum::<usize>();
    // The table may take six minutes, two of them for what is not a linear layer: 0.3 s for each row of these.
    assert!((600..=800).contains(&rows), "{rows} rows");
}

/// The specification's table of tensors, as far as these kernels run them.
#[test]
fn every_linear_layer_is_there_at_full_width_and_cut_by_eight() {
    let has = |k, n| SHAPES.iter().any(|s| (s.k, s.n) == (k, n));
    let kept = [(6144, 2048), (6144, 576), (2048, 4096), (6144, 128)];
    assert!(kept.into_iter().all(|(k, n)| has(k, n)));
    for (k, n) in [(2048, 16_384), (6144, 12_288), (6144, 2048), (6144, 154_880)] {
        assert!(has(k, n) && has(k, n / 8), "{k} to {n} by rows");
    }
    for (k, n) in [(16_384, 6144), (12_288, 6144), (2048, 6144)] {
        assert!(has(k, n) && has(k / 8, n), "{k} to {n} by columns");
    }
    // Not in tiles: the router, the indexer's weights, and files with weights as they were trained.
    for (ty, n) in [(GgmlType::F32, 256), (GgmlType::F32, 32), (GgmlType::F16, 2048), (GgmlType::BF16, 2048)]
    {
        let here = |s: &Shape| (s.k, s.n, s.tokens) == (6144, n, ALL) && s.types.contains(&ty);
        assert!(linear::SHAPES.iter().any(here), "{ty} 6144 to {n}");
    }
}

#[test]
fn graphs_are_short_and_use_all_sets_where_memory_binds() {
    const MB: usize = 1 << 20;
    // 7 MB at a few us; 85 MB at 22 us; a gigabyte.
    assert_eq!(launches(4e-6, 7 * MB, 34), 102);
    assert_eq!(launches(22e-6, 85 * MB, 3), 3);
    assert_eq!(launches(0.2e-3, 781 * MB, 2), 2);
    // 543 sets of a small matrix.
    assert_eq!(launches(8e-6, MB / 2, 543), 543);
    // Many tokens.
    assert_eq!(launches(0.2e-3, 7 * MB, 34), 12);
    assert_eq!(launches(10e-3, 85 * MB, 3), 1);
    assert_eq!(launches(0.0, MB, 2), 100);
}

#[test]
fn kernels_are_named_with_their_number() {
    let [a, b, c] = [Entry::ALL[0], Entry::ALL[1], Entry::ALL[2]];
    let said = |before: &[_], after: &[_]| named(&issued(before, after));
    assert_eq!(said(&[(a, 3)], &[(a, 4)]), a.name());
    assert_eq!(said(&[(a, 3), (b, 1)], &[(a, 3), (b, 3), (c, 1)]), format!("2 {b} + {c}"));
    assert_eq!(said(&[(a, 3)], &[(a, 3)]), "");
}

fn roofs() -> Roofs {
    let reads = [(1_000_000, 1e12), (100_000_000, 4e12)].map(|(bytes, rate)| ReadRoof { bytes, rate });
    Roofs {
        gpu: "a GPU".into(),
        bytes: 100_000_000,
        read: 4e12,
        reads: reads.into(),
        copy: 3e12,
        f16: 5e14,
        s8: 1e15,
    }
}

fn kernel(family: &str) -> (Entry, u64) {
    (*Entry::ALL.iter().find(|entry| entry.family() == family).unwrap(), 1)
}

#[test]
fn the_longer_floor_binds() {
    let bound = |bytes, operations, memory, kernel| {
        let work = Work { bytes, operations, memory };
        Bound::of(work, &[kernel], &roofs(), 100e-6).map(|b| (b.bound, b.roof, (1000.0 * b.share).round()))
    };
    let ops = Some(10_000_000_000);
    let read = Some(Memory::Read);
    let norm = || kernel("layer_norm");
    assert_eq!(bound(100_000_000, ops, read, kernel("linear_decode")), Some(("memory", "read", 250.0)));
    assert_eq!(bound(1_000_000, None, read, norm()), Some(("memory", "read", 10.0)));
    assert_eq!(bound(36_000_000, ops, Some(Memory::Copy), norm()), Some(("memory", "copy", 120.0)));
    assert_eq!(bound(1_000_000, None, None, kernel("copy")), None);
    let int8 = linear_gemm::INSTANCES.iter().find(|i| i.act == 8).unwrap().entry;
    assert_eq!(bound(1_000_000, ops, read, (int8, 1)), Some(("arithmetic", "s8", 100.0)));
    let f16 = linear_gemm::INSTANCES.iter().find(|i| i.act == 16).unwrap().entry;
    let wide = linear_gemm_wide::INSTANCES.iter().find(|i| i.act == 16).unwrap().entry;
    let exact = ["linear_dot", "linear_tile", "linear_float"].map(|family| kernel(family).0);
    for entry in [f16, wide].into_iter().chain(exact) {
        assert_eq!(bound(1_000_000, ops, read, (entry, 1)), Some(("arithmetic", "f16", 200.0)));
    }
}

/// By the instructions that the compiler made of them: HMMA are those of f16 and bf16, IMMA of int8, beside which HMMA only turns scales.
#[test]
fn matrix_units_say_whose_roof_it_is() {
    let table = include_str!("../../docs/kernels/resources.md");
    let mut seen = BTreeSet::new();
    for line in table.lines().filter(|line| line.contains("| sm_90a |") && line.contains("MMA ")) {
        let name = line.split_whitespace().nth(1).unwrap();
        let entry = *Entry::ALL.iter().find(|entry| entry.name() == name).unwrap();
        assert_eq!(is_f16(entry), !line.contains("IMMA "), "{line}");
        seen.insert(entry.family());
    }
    assert!(seen.len() >= 15, "{seen:?}");
}

/// What a run on `gpu` writes.
fn lines(gpu: &str) -> Vec<Value> {
    let path = std::env::temp_dir().join(format!("glm5-report-{}-{}", std::process::id(), gpu.len()));
    let report = Report::new(Some(path.clone()), gpu, &Environment::look(), &roofs());
    let work = Work { bytes: 100_000_000, operations: Some(20_000_000_000), memory: Some(Memory::Read) };
    let case = Case { op: "MUL_MAT", ty: "Q4_K", k: 6144, n: 24_576, m: 1 };
    let times: Vec<f64> = (1..=21).map(|i| 1e-6 * f64::from(i + 39)).collect();
    report.row("a/row", work, Some(case), &[kernel("linear_decode")], times);
    report.row("a/plain", Work { operations: None, memory: None, ..work }, None, &[], vec![1.0]);
    assert!(report.finish());
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_row_has_all_its_figures() {
    let lines = lines("NVIDIA H200");
    let [head, row, plain] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(head["baseline"]["what"], "llama.cpp");
    assert_eq!(head["roofs"]["reads"][1]["rate"], 4e12);
    assert!(head["time"].as_u64().unwrap() > 1_700_000_000);
    let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
    let close = |key: &str, expected: f64| {
        assert!((number(key) / expected - 1.0).abs() < 1e-3, "{key}: {}", number(key));
    };
    for (key, expected) in [("us", 50.0), ("p10", 42.0), ("p90", 58.0), ("gb_per_s", 2000.0)] {
        close(key, expected);
    }
    for (key, expected) in [("tops", 400.0), ("share", 0.5), ("baseline_us", 41.65), ("ratio", 0.833)] {
        close(key, expected);
    }
    close("floor_us", 25.0);
    close("ops_per_byte", 200.0);
    assert_eq!((&row["bound"], &row["roof"]), (&"memory".into(), &"read".into()));
    assert_eq!(
        (&row["kernel"], &row["case"]["type"]),
        (&kernel("linear_decode").0.name().into(), &"Q4_K".into())
    );
    for key in
        ["case", "ops", "tops", "ops_per_byte", "bound", "roof", "share", "floor_us", "baseline_us", "ratio"]
    {
        assert!(plain[key].is_null(), "{key}: {plain}");
    }
}

#[test]
fn another_gpu_is_not_compared() {
    let row = &lines("NVIDIA H200 NVL")[1];
    assert!(row["baseline_us"].is_f64() && row["ratio"].is_null(), "{row}");
}

/// The sample of `tools/roofline` is what a run writes.
#[test]
fn the_sample_has_the_fields_of_a_run() {
    let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let sample = include_str!("../../tools/roofline/tests/sample.jsonl").lines();
    let sample: Vec<Value> = sample.map(|line| serde_json::from_str(line).unwrap()).collect();
    let run = lines("NVIDIA GeForce");
    assert_eq!(keys(&sample[0]), keys(&run[0]));
    assert_eq!(keys(&sample[0]["roofs"]), keys(&run[0]["roofs"]));
    assert_eq!(keys(&sample[2]), keys(&run[1]));
    assert_eq!(keys(&sample[2]["case"]), keys(&run[1]["case"]));
}
