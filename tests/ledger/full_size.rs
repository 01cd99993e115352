//! A whole GLM-5 through the ledger: 1809 or 1524 weights of 435 GiB, without reading one.

use glm5::gguf::{Cut, Dims, Gguf, Ledger, Shard};

use crate::synthetic::{self, Entry, N_TRUNK, STYLES, Style, TempDir};

fn dims(t: &Entry) -> Dims {
    let ne = |i: usize| t.ne.get(i).map_or(1, |&n| n as usize);
    Dims::stack(ne(2), ne(1), ne(0))
}

/// The cuts of the tensor-parallel plan that share memory; whole experts per rank.
fn cut(t: &Entry) -> Cut {
    let name =
        t.name.split_once('.').map_or("", |(_, rest)| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    match name {
        ".attn_q_b.weight" => Cut::Rows { unit: 256 },
        ".ffn_gate.weight" | ".ffn_up.weight" | ".ffn_gate_shexp.weight" | ".ffn_up_shexp.weight" => {
            Cut::Rows { unit: 1 }
        }
        _ if t.ne.len() == 3 => Cut::Slabs,
        _ => Cut::None,
    }
}

#[test]
fn all_weights_of_every_style() {
    for style in STYLES {
        let dir = TempDir::new();
        let shards = if style == Style::Glm5 { 11 } else { 2 };
        let paths = synthetic::write(dir.path(), style, shards);
        let gguf = Gguf::open(&paths[shards - 1]).unwrap();
        let list = synthetic::tensors(style);
        let shard = Shard::new(7, 8).unwrap();
        let mut ledger = Ledger::new(&gguf);
        let mut weights = Vec::new();
        for t in list.iter().filter(|t| !t.name.starts_with("blk.78.")) {
            weights.push(ledger.take(&t.name, dims(t), cut(t), shard).unwrap());
        }
        ledger.idle_where("MTP block", |t| t.name.starts_with(&format!("blk.{N_TRUNK}.")));
        let report = ledger.finish().unwrap();
        assert_eq!(report.taken.tensors, list.len() - 27);
        assert_eq!((report.idle.len(), report.idle[0].count.tensors), (1, 27));
        assert_eq!(report.shards.len(), shards);
        assert_eq!((report.shards[0].tensors, report.shards[0].taken.tensors), (0, 0));
        assert_eq!(report.total.bytes, gguf.tensor_bytes());
        assert!(weights.iter().map(|w| w.bytes().len() as u64).sum::<u64>() > 64 << 30);
        let exps = gguf.tensor("blk.77.ffn_down_exps.weight").unwrap();
        assert!(exps.elements() > 1 << 31, "element counts need more than 32 bits");
        #[cfg(target_os = "linux")]
        assert!(
            synthetic::resident(dir.path()) < 20 << 20,
            "{} bytes resident",
            synthetic::resident(dir.path())
        );
        drop(weights);
    }
}
