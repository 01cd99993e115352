//! `bench`: which tests are run, and that the figures belong to them.

use crate::process::run;

const ARGS: [&str; 8] = ["-p", "16,80", "-n", "4", "-d", "0,40", "--repetitions", "3"];
const TESTS: [&str; 6] = ["pp16", "pp80", "tg4", "pp16 @ d40", "pp80 @ d40", "tg4 @ d40"];

#[test]
fn json() {
    let told =
        run("bench", &[&ARGS[..], &["--json", "--threads", "1", "--cache-type", "f16"]].concat()).json();
    let tests = told["tests"].as_array().unwrap();
    let names: Vec<&str> = tests.iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, TESTS);
    for test in tests {
        let number = |key: &str| test[key].as_u64().unwrap();
        let samples: Vec<f64> =
            test["samples"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
        assert_eq!(samples.len(), 3);
        assert!(samples.iter().all(|s| *s > 0.0));
        let mean = samples.iter().sum::<f64>() / 3.0;
        let variance = samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / 2.0;
        assert!((test["mean"].as_f64().unwrap() / mean - 1.0).abs() < 1e-9);
        assert!((test["sd"].as_f64().unwrap() - variance.sqrt()).abs() < 1e-6 * mean);

        // The warm-up and the filling of the cache are not counted; tokens at positions d .. d + n see 1 more each.
        let (n, d, counters) = (number("tokens"), number("depth"), &test["counters"]);
        let steps = if test["kind"] == "prompt" { 1 } else { n };
        assert_eq!((&counters["tokens"], &counters["steps"]), (&(3 * n).into(), &(3 * steps).into()));
        let visible: u64 = (d..d + n).map(|position| position + 1).sum();
        assert_eq!(counters["layers"][0]["visible"], 3 * visible);
    }
    assert_eq!((&told["model"], &told["synthetic"]), (&"Nano".into(), &false.into()));
    assert_eq!(told["file_bytes"], 15_930_976);
    assert_eq!((&told["ran"]["cache_type"], &told["ran"]["precision"]), (&"f16".into(), &"exact".into()));
    assert!(told["ran"]["device"].as_str().unwrap().starts_with("cpu (1 thread,"), "{}", told["ran"]);
}

#[test]
fn table() {
    let table = run("bench", &[&ARGS[..], &["--dense", "--precision", "fast"]].concat()).ok();
    let rows: Vec<Vec<&str>> =
        table.lines().map(|l| l.trim_matches('|').split('|').map(str::trim).collect()).collect();
    assert_eq!(rows[0], ["model", "size", "device", "precision", "attention", "test", "tokens/s"]);
    assert!(rows[1].iter().all(|cell| cell.contains("---")));
    assert_eq!(rows.len(), 2 + TESTS.len());
    for (row, test) in rows[2..].iter().zip(TESTS) {
        assert_eq!((row[0], row[1], row[3], row[4], row[5]), ("Nano", "15.2 MiB", "fast", "dense", test));
        let (mean, sd) = row[6].split_once(" ± ").unwrap();
        assert!(mean.parse::<f64>().unwrap() > 0.0 && sd.parse::<f64>().unwrap() >= 0.0);
    }
    // All lines are of one width.
    let widths: Vec<usize> = table.lines().map(|l| l.chars().count()).collect();
    assert!(widths.iter().all(|w| *w == widths[0]), "{table}");
}

/// Invented weights are said to be so, and take no file.
#[test]
fn synthetic() {
    let told = run(
        "bench",
        &["--synthetic", "glm-5.2/8:1", "-p", "4", "-n", "1", "-r", "1", "--json", "--device", "cpu"],
    )
    .json();
    assert_eq!((&told["model"], &told["synthetic"]), (&"synthetic glm-5.2/8".into(), &true.into()));
    assert_eq!(told["load_report"]["config"]["n_heads"], 8);
    assert_eq!(
        told["load_report"]["ledger"]["taken"]["bytes"],
        told["load_report"]["ledger"]["total"]["bytes"]
    );
    assert!(told["tests"].as_array().unwrap().iter().all(|t| t["mean"].as_f64().unwrap() > 0.0));
    assert_eq!(told["tests"][0]["counters"]["layers"].as_array().unwrap().len(), 1);
}

/// Some of the layers, with and without what is around them, and behind tokens that fill the cache.
#[test]
fn slices() {
    let args = ["-p", "16", "-n", "3", "-d", "0,600", "-r", "1", "--device", "cpu"];
    for (flags, name, size, [embedding, head]) in [
        (&["--layers", "1..3"][..], "Nano 1..3", "7.5 MiB", [true, true]),
        (&["--layers", "2", "--no-head"], "Nano 0..2 without head", "4.9 MiB", [true, false]),
        (
            &["--layers", "1..3", "--no-head", "--no-embedding"],
            "Nano 1..3 without embedding and head",
            "6.1 MiB",
            [false, false],
        ),
    ] {
        let told = run("bench", &[&args[..], flags, &["--json"]].concat()).json();
        let report = &told["load_report"];
        assert_eq!(
            (&report["slice"]["embedding"], &report["slice"]["head"]),
            (&embedding.into(), &head.into())
        );
        assert_eq!((&report["config"]["n_layers"], &report["file_layers"]), (&2.into(), &4.into()));
        for test in told["tests"].as_array().unwrap() {
            let counters = &test["counters"];
            assert_eq!(counters["layers"].as_array().unwrap().len(), 2);
            assert_eq!(counters["tokens"], test["tokens"]);
            assert_eq!(counters["logits"].as_u64().unwrap() > 0, head);
            let seen = counters["layers"][1]["visible"].as_u64().unwrap();
            let (n, d) = (test["tokens"].as_u64().unwrap(), test["depth"].as_u64().unwrap());
            assert_eq!(seen, (d..d + n).map(|position| position + 1).sum::<u64>());
        }
        let table = run("bench", &[&args[..], flags].concat()).ok();
        let row: Vec<&str> = table.lines().nth(2).unwrap().split('|').map(str::trim).collect();
        assert_eq!((row[1], row[2]), (name, size), "{table}");
    }
}
