//! Two-way accounting: what is missing, of another shape, unknown or taken twice comes out in one error.

use glm5::Error;
use glm5::gguf::{Count, Cut, Dims, Gguf, IdleGroup, Ledger, Shard, Writer};
use glm5::quant::GgmlType::{F32, Q4_K, Q8_0};

const WHOLE: Shard = Shard::WHOLE;

/// Two shards: a, b in the first, c, d in the second.
fn gguf() -> Gguf {
    let mut writer = Writer::new();
    writer.hole("a.weight", F32, &[6]).unwrap();
    writer.hole("b.weight", Q8_0, &[64, 3]).unwrap();
    writer.hole("c.weight", Q4_K, &[256, 2, 4]).unwrap();
    writer.hole("d.bias", F32, &[5, 1]).unwrap();
    Gguf::from_shards(writer.split_to_bytes("models/set", &[2, 2]).unwrap()).unwrap()
}

/// Takes everything rightly, apart from the names in `leave`.
fn take_all(ledger: &mut Ledger, leave: &[&str]) {
    for (name, dims) in [
        ("a.weight", Dims::vector(6)),
        ("b.weight", Dims::matrix(3, 64)),
        ("c.weight", Dims::stack(4, 2, 256)),
        ("d.bias", Dims::vector(5)),
    ] {
        if !leave.contains(&name) {
            let weight = ledger.take(name, dims, Cut::None, WHOLE).unwrap();
            assert_eq!(weight.shape(), [dims.slabs, dims.rows, dims.cols]);
        }
    }
}

fn text(ledger: Ledger) -> String {
    match ledger.finish() {
        Err(Error::Ledger(text)) => text,
        other => panic!("a ledger error expected, got {other:?}"),
    }
}

#[test]
fn balanced_accounts_give_a_report() {
    let gguf = gguf();
    let mut ledger = Ledger::new(&gguf);
    take_all(&mut ledger, &["b.weight", "d.bias"]);
    assert!(ledger.has("b.weight") && !ledger.has("e.weight"));
    assert!(ledger.idle("d.bias", "not used here"));
    assert!(!ledger.idle("e.weight", "not used here"));
    assert_eq!(ledger.idle_where("too square", |t| t.ne() == [64, 3]), 1);
    assert_eq!(ledger.idle_where("whatever", |_| true), 0, "only open tensors can become idle");
    let report = ledger.finish().unwrap();
    assert_eq!(report.total, Count { tensors: 4, bytes: 24 + 204 + 1152 + 20 });
    assert_eq!(report.taken, Count { tensors: 2, bytes: 24 + 1152 });
    let group = |reason: &str, name: &str, bytes| IdleGroup {
        reason: reason.into(),
        count: Count { tensors: 1, bytes },
        names: vec![name.into()],
    };
    assert_eq!(report.idle, [group("not used here", "d.bias", 20), group("too square", "b.weight", 204)]);
    let shards: Vec<_> =
        report.shards.iter().map(|s| (&*s.file, s.tensors, s.taken.tensors, s.idle.tensors)).collect();
    assert_eq!(shards, [("set-00001-of-00002.gguf", 2, 1, 1), ("set-00002-of-00002.gguf", 2, 1, 1)]);
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["types"][0], serde_json::json!({"type": "F32", "tensors": 2, "bytes": 44}));
    assert_eq!(json["idle"][1]["tensors"], 1);
}

#[test]
fn all_problems_come_out_together() {
    let gguf = gguf();
    let mut ledger = Ledger::new(&gguf);
    let mut take = |name, dims| ledger.take(name, dims, Cut::None, WHOLE).unwrap();
    assert_eq!(take("no.weight", Dims::stack(64, 512, 192)).shape(), [0, 0, 0]);
    assert_eq!(take("b.weight", Dims::matrix(64, 3)).shape(), [0, 0, 0]);
    assert_eq!(take("c.weight", Dims::matrix(8, 256)).shape(), [0, 0, 0]);
    assert_eq!(take("a.weight", Dims::vector(6)).shape(), [1, 1, 6]);
    assert_eq!(take("a.weight", Dims::vector(6)).shape(), [0, 0, 0]);
    ledger.missing("v_b", "k_b is there without it");
    assert_eq!(
        text(ledger),
        "models/set-00001-of-00002.gguf: the tensors do not match the model: \
         2 missing, 2 of another shape, 1 unknown to the model, 1 accounted for twice\n  \
         missing: no.weight, expected [192, 512, 64]\n  \
         missing: v_b: k_b is there without it\n  \
         of another shape: b.weight, expected [3, 64], found [64, 3] in set-00001-of-00002.gguf\n  \
         of another shape: c.weight, expected [256, 8], found [256, 2, 4] in set-00002-of-00002.gguf\n  \
         unknown to the model: d.bias, F32 [5] in set-00002-of-00002.gguf\n  \
         accounted for twice: a.weight is taken again\n  \
         set-00001-of-00002.gguf: 2 tensors, 2 taken, 0 idle, 0 unknown\n  \
         set-00002-of-00002.gguf: 2 tensors, 1 taken, 0 idle, 1 unknown"
    );
}

#[test]
fn each_problem_alone_is_enough() {
    type Do = fn(&mut Ledger);
    let cases: [(Do, &str); 7] = [
        (|l| take_all(l, &["c.weight"]), "1 unknown to the model"),
        (|l| _ = l.take("x", Dims::vector(1), Cut::None, WHOLE), "missing: x, expected [1]"),
        (|l| l.missing("x", "y"), "missing: x: y"),
        (|l| _ = l.take("a.weight", Dims::vector(6), Cut::None, WHOLE), "a.weight is taken again"),
        (|l| _ = l.take_optional("a.weight", Dims::vector(6), Cut::None, WHOLE), "a.weight is taken again"),
        (|l| _ = l.idle("a.weight", "why"), "a.weight is declared idle (why), but was taken"),
        (
            |l| {
                l.idle("d.bias", "one");
                l.idle("d.bias", "two");
            },
            "d.bias is declared idle (two), but was: one",
        ),
    ];
    let gguf = gguf();
    for (i, (act, expected)) in cases.into_iter().enumerate() {
        let mut ledger = Ledger::new(&gguf);
        if i > 0 {
            take_all(&mut ledger, &["d.bias"]);
        }
        act(&mut ledger);
        if i > 0 {
            ledger.idle_where("rest", |_| true);
        }
        let text = text(ledger);
        assert!(text.contains(expected), "no {expected:?} in {text}");
    }
    let mut ledger = Ledger::new(&gguf);
    ledger.idle("d.bias", "unused");
    take_all(&mut ledger, &["d.bias"]);
    assert_eq!(ledger.take("d.bias", Dims::vector(5), Cut::None, WHOLE).unwrap().shape(), [0, 0, 0]);
    assert!(text(ledger).contains("d.bias is taken, but was idle: unused"));
}

#[test]
fn optional_weights_may_be_absent_but_not_wrong() {
    let gguf = gguf();
    let mut ledger = Ledger::new(&gguf);
    take_all(&mut ledger, &["d.bias"]);
    assert!(ledger.take_optional("e.bias", Dims::vector(5), Cut::None, WHOLE).unwrap().is_none());
    let weight = ledger.take_optional("d.bias", Dims::vector(5), Cut::None, WHOLE).unwrap().unwrap();
    assert_eq!((weight.shape(), weight.ty()), ([1, 1, 5], F32));
    ledger.finish().unwrap();
    let mut ledger = Ledger::new(&gguf);
    take_all(&mut ledger, &["d.bias"]);
    ledger.take_optional("d.bias", Dims::vector(4), Cut::None, WHOLE).unwrap().unwrap();
    assert!(text(ledger).contains("of another shape: d.bias, expected [4], found [5]"));
}

/// A file of quite another model: thousands of names on both sides stay readable.
#[test]
fn long_lists_are_cut_and_counted() {
    let mut writer = Writer::new();
    (0..700).for_each(|i| writer.hole(format!("theirs.{i}"), F32, &[1]).unwrap());
    let gguf = Gguf::from_bytes("other.gguf", writer.to_bytes().unwrap().into()).unwrap();
    let mut ledger = Ledger::new(&gguf);
    for i in 0..21 {
        ledger.take(&format!("ours.{i}"), Dims::vector(1), Cut::None, WHOLE).unwrap();
    }
    let text = text(ledger);
    assert!(
        text.starts_with("other.gguf: the tensors do not match the model: 21 missing, 700 unknown"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1 + 20 + 1 + 20 + 1 + 1);
    assert!(text.contains("ours.19,") && text.contains("missing: ... and 1 more"));
    assert!(text.contains("theirs.19,") && text.contains("unknown to the model: ... and 680 more"));
}

#[test]
fn four_extents_never_fit() {
    let mut writer = Writer::new();
    writer.hole("t", F32, &[2, 3, 4, 2]).unwrap();
    let gguf = Gguf::from_bytes("x", writer.to_bytes().unwrap().into()).unwrap();
    let mut ledger = Ledger::new(&gguf);
    ledger.take("t", Dims::stack(4, 3, 2), Cut::None, WHOLE).unwrap();
    assert!(text(ledger).contains("expected [2, 3, 4], found [2, 3, 4, 2]"));
}

/// What is asked for is known, in order, whatever there is of it.
#[test]
fn requests_can_be_noted() {
    let gguf = gguf();
    let mut ledger = Ledger::noting_requests(&gguf);
    ledger.take("a.weight", Dims::vector(6), Cut::None, WHOLE).unwrap();
    ledger.take("c.weight", Dims::stack(4, 2, 256), Cut::Slabs, Shard::new(1, 2).unwrap()).unwrap();
    ledger.take("d.bias", Dims::vector(5), Cut::None, WHOLE).unwrap();
    ledger.take("e.weight", Dims::matrix(3, 2), Cut::None, WHOLE).unwrap();
    assert!(ledger.take_optional("f.weight", Dims::stack(2, 1, 1), Cut::None, WHOLE).unwrap().is_none());
    let ne: Vec<(&str, Vec<u64>)> =
        ledger.requests().iter().map(|(name, dims)| (&**name, dims.extents())).collect();
    let expected: [(&str, &[u64]); 5] = [
        ("a.weight", &[6]),
        ("c.weight", &[256, 2, 4]),
        ("d.bias", &[5]),
        ("e.weight", &[2, 3]),
        ("f.weight", &[1, 1, 2]),
    ];
    assert_eq!(ne, expected.map(|(name, ne)| (name, ne.to_vec())));
    let mut ledger = Ledger::new(&gguf);
    take_all(&mut ledger, &[]);
    assert!(ledger.requests().is_empty());
}
