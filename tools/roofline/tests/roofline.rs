//! The program on a small run: `sample.jsonl`, in the form that `benches/kernels/report.rs` writes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sample.jsonl");

/// Rows of the sample that are of the goals' shapes.
const SHOWN: usize = 20;

/// An empty folder, gone when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("glm5-roofline-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn run(results: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_glm5-roofline")).arg(results).args(arguments).output().unwrap()
}

/// What it prints, if all is well.
fn said(results: &Path, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = run(results, arguments);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

#[test]
fn tables_have_tokens_by_types() {
    let text = said(Path::new(SAMPLE), &[]);
    for line in [
        "| 6144 to 24576, tokens | Q8_0 | Q4_K | Q5_K | Q6_K |",
        "| 8 | 40.6, 3950 GB/s (96 %), 2.51x | 26.1, 3259 GB/s (82 %), 6.46x | 30.7, 3382 GB/s (84 %), 5.66x | 38.8, 3189 \
         GB/s (79 %), 3.74x |",
        // Of 627 TFLOPS.
        "| 512 |  | 511, 303 TFLOPS (48 %), 1.65x |  |  |",
        "| 16384 to 6144, tokens | Q8_0 | Q4_K |",
        "| 1 | 188, 4156 GB/s (99 %), 2.19x |",
    ] {
        assert!(text.lines().any(|l| l == line), "no `{line}` in\n{text}");
    }
    assert_eq!(text.matches("%)").count(), SHOWN);
    assert!(text.starts_with("NVIDIA H200 (sm_90), 2026-11-30, commit `5bfed53`. "), "{text}");
    assert!(text.contains("matrix units 1260 TOPS int8 and 627 TFLOPS f16."), "{text}");
    assert!(said(Path::new(SAMPLE), &["--commit", "1234567"]).contains("commit `1234567`"));
}

/// A rate of int8 operations is called TOPS, one of f16 TFLOPS.
#[test]
fn arithmetic_says_which() {
    let folder = Folder::new("int8");
    let sample = fs::read_to_string(SAMPLE).unwrap();
    let int8 = folder.write("results.jsonl", &sample.replace("\"roof\":\"f16\"", "\"roof\":\"s8\""));
    let text = said(&int8, &[]);
    assert!(text.contains("| 512 |  | 511, 303 TOPS (48 %), 1.65x |"), "{text}");
}

/// The same case in f32 arithmetic is another kernel's.
#[test]
fn only_layers_in_tiles_are_shown() {
    let folder = Folder::new("exact");
    let sample = fs::read_to_string(SAMPLE).unwrap();
    let (_, rows) = sample.split_once('\n').unwrap();
    let exact = rows.replace("linear_tiled/", "linear/");
    let both = folder.write("results.jsonl", &format!("{sample}{exact}"));
    assert_eq!(said(&both, &[]), said(Path::new(SAMPLE), &[]));
}

#[test]
fn shapes_can_be_chosen_and_other_gpus_have_no_ratio() {
    let folder = Folder::new("shapes");
    let text = said(Path::new(SAMPLE), &["--shape", "2048x2048"]);
    assert!(text.contains("| 1 | 2.0, 2192 GB/s (128 %) |") && !text.contains("6144"), "{text}");
    let sample = fs::read_to_string(SAMPLE).unwrap();
    let lines = sample.lines().map(|line| match line.split_once("\"ratio\":") {
        Some((before, after)) => format!("{before}\"ratio\":null,{}\n", after.split_once(',').unwrap().1),
        None => format!("{line}\n"),
    });
    let elsewhere = folder.write("results.jsonl", &lines.collect::<String>());
    let text = said(&elsewhere, &[]);
    assert!(text.contains("| 1 | 188, 4156 GB/s (99 %) |") && !text.contains("llama.cpp"), "{text}");
}

#[test]
fn the_readme_changes_between_its_marks() {
    let folder = Folder::new("readme");
    let text = "before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n";
    let (readme, svg) = (folder.write("README.md", text), folder.0.join("plot.svg"));
    let arguments = ["--readme", readme.to_str().unwrap(), "--svg", svg.to_str().unwrap()];
    assert_eq!(said(Path::new(SAMPLE), &arguments), "");
    let new = fs::read_to_string(&readme).unwrap();
    assert!(new.starts_with("before\n<!-- bench:begin -->\nNVIDIA H200"), "{new}");
    assert!(
        new.ends_with("3.75x |\n| 64 | 533, 228 TFLOPS (36 %), 2.29x |\n<!-- bench:end -->\nafter\n"),
        "{new}"
    );
    assert!(new.contains("](plot.svg)") && !new.contains("old"), "{new}");
    said(Path::new(SAMPLE), &arguments);
    assert_eq!(fs::read_to_string(&readme).unwrap(), new, "a second time");
}

/// Numbers behind `key="` in a line.
fn attribute(line: &str, key: &str) -> f64 {
    let (_, rest) = line.split_once(&format!("{key}=\"")).unwrap_or_else(|| panic!("no {key} in {line}"));
    rest.split('"').next().unwrap().parse().unwrap()
}

#[test]
fn points_lie_where_the_axes_say() {
    let folder = Folder::new("svg");
    let path = folder.0.join("plot.svg");
    said(Path::new(SAMPLE), &["--svg", path.to_str().unwrap()]);
    let svg = fs::read_to_string(&path).unwrap();
    assert!(svg.len() < 20_000 && svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
    let points: Vec<&str> =
        svg.lines().filter(|line| line.contains("<circle") && line.contains("<title>")).collect();
    assert_eq!(points.len(), SHOWN);

    let tick = |anchor: &str, label: &str| {
        let mut found =
            svg.lines().filter(|l| l.contains(anchor) && l.ends_with(&format!(">{label}</text>")));
        found.next().unwrap_or_else(|| panic!("no {label} at {anchor}"))
    };
    // One token of Q4_K at 23.5 us: two operations for 4.5 bits, 12.83 TOPS.
    let point = points.iter().find(|line| line.contains("Q4_K 6144x24576, 1 tokens")).unwrap();
    for (axis, centre, anchor, value) in
        [("x", "cx", "middle", 2.0 * 8.0 / 4.5), ("y", "cy", "\"end\"", 12.831f64)]
    {
        // Labels stand beside their marks, all at the same distance.
        let [one, hundred] = ["1", "100"].map(|label| attribute(tick(anchor, label), &format!(" {axis}")));
        let beside = if axis == "y" { 4.0 } else { 0.0 };
        let expected = one - beside + (hundred - one) * value.log10() / 2.0;
        let at = attribute(point, centre);
        assert!((at - expected).abs() < 1.5, "{axis}: {at}, expected {expected}");
    }
    let roofs: Vec<&str> = svg.lines().filter(|line| line.contains("stroke-width=\"2\"")).collect();
    let [slope, int8, f16] = roofs[..] else { panic!("{roofs:?}") };
    let [x1, y1, x2, y2] = ["x1", "y1", "x2", "y2"].map(|end| attribute(slope, end));
    // Each ceiling begins on the slope and has its label.
    for (ceiling, label) in [(int8, "int8: 1260 TOPS"), (f16, "f16: 627 TFLOPS")] {
        let [x, y, end] = ["x1", "y1", "y2"].map(|end| attribute(ceiling, end));
        assert!((y1 + (x - x1) / (x2 - x1) * (y2 - y1) - y).abs() < 0.2 && y == end, "{ceiling}");
        assert!((attribute(tick("\"end\"", label), " y") - y).abs() < 20.0, "{label}");
    }
    let f16 = attribute(f16, "y1");
    for point in points {
        let [x, y] = ["cx", "cy"].map(|centre| attribute(point, centre));
        assert!((64.0..736.0).contains(&x) && (16.0..412.0).contains(&y), "outside of the axes: {point}");
        let roof = (y1 + (x - x1) / (x2 - x1) * (y2 - y1)).max(y2);
        assert!(y > roof - 2.0, "above the roofs: {point}");
        // No kernel of the sample that many tokens meet is an int8 one.
        assert!(y > f16, "above the ceiling of f16: {point}");
    }
}

#[test]
fn what_is_wrong_is_said_and_changes_nothing() {
    let folder = Folder::new("wrong");
    let sample = fs::read_to_string(SAMPLE).unwrap();
    let (head, rows) = sample.split_once('\n').unwrap();
    let unmarked = folder.write("README.md", "nothing\n");
    let turned = folder.write("TURNED.md", "<!-- bench:end -->\n<!-- bench:begin -->\n");
    let svg = folder.0.join("plot.svg");
    let to = |readme: &PathBuf| {
        ["--readme", readme.to_str().unwrap(), "--svg", svg.to_str().unwrap()].map(String::from)
    };
    let results = |name: &str, text: &str| folder.write(name, text);
    let none: [String; 0] = [];
    let cases: Vec<(PathBuf, Vec<String>, &str)> = vec![
        (folder.0.join("none"), none.into(), "none: No such file"),
        (results("a", ""), vec![], "a: is empty"),
        (results("b", rows), vec![], "b: line 1: missing field"),
        (results("c", &format!("{head}\n{{\"name\":")), vec![], "c: line 2: EOF"),
        (
            results("d", &format!("{sample}{}\n", rows.lines().last().unwrap())),
            vec![],
            "d: line 25: a second row",
        ),
        (results("e", &sample.replace("\"s8\":", "\"s8\":-")), vec![], "e: line 1: roofs"),
        (results("g", &sample.replace("\"f16\",", "\"f8\",")), vec![], "the roof f8 is not known"),
        (results("f", &format!("{head}\n")), vec![], "f: no linear layer of 6144x24576, "),
        (SAMPLE.into(), vec!["--shape".into(), "1x2".into()], "no linear layer of 1x2"),
        (SAMPLE.into(), vec!["--shape".into(), "12".into()], "6144x24576"),
        (SAMPLE.into(), to(&unmarked).into(), "README.md: no <!-- bench:begin -->"),
        (SAMPLE.into(), to(&turned).into(), "TURNED.md: no <!-- bench:begin -->"),
    ];
    for (results, arguments, complaint) in cases {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let Output { status, stdout, stderr } = run(&results, &arguments);
        let stderr = String::from_utf8(stderr).unwrap();
        assert!(
            !status.success() && stdout.is_empty() && stderr.contains(complaint),
            "{complaint}: {stderr}"
        );
    }
    assert!(!svg.exists());
    assert_eq!(fs::read_to_string(&unmarked).unwrap(), "nothing\n");
}
