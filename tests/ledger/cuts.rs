//! Cuts: the shards of 2, 4 and 8 ranks are the whole, block for block; illegal cuts say why.

use glm5::Error;
use glm5::gguf::{Cut, Dims, Gguf, Ledger, Shard, Writer};
use glm5::quant::{GgmlType, Weight};
use proptest::prelude::*;

/// Bytes in which every 8-byte word of a tensor differs from all others.
fn noise(len: usize) -> Vec<u8> {
    let word = |i: u64| {
        (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let mut bytes = Vec::with_capacity(len + 8);
    (0..len.div_ceil(8) as u64).for_each(|i| bytes.extend(word(i).to_le_bytes()));
    bytes.truncate(len);
    bytes
}

fn file(ty: GgmlType, dims: Dims) -> Gguf {
    let Dims { slabs, rows, cols } = dims;
    let bytes = ty.row_bytes(cols as u64).unwrap() as usize * rows * slabs;
    let mut writer = Writer::new();
    writer.tensor("t.weight", ty, &[cols as u64, rows as u64, slabs as u64], noise(bytes)).unwrap();
    Gguf::from_bytes("file.gguf", writer.to_bytes().unwrap().into()).unwrap()
}

fn take(gguf: &Gguf, dims: Dims, cut: Cut, rank: usize, size: usize) -> glm5::Result<Weight> {
    Ledger::new(gguf).take("t.weight", dims, cut, Shard { rank, size })
}

/// Each shard, block for block, is where its rank has it in the whole, and contiguous shards share the file's memory.
fn shards_are_the_whole(ty: GgmlType, dims: Dims, cut: Cut, size: usize) {
    let gguf = file(ty, dims);
    let whole = take(&gguf, dims, Cut::None, 0, 1).unwrap();
    let mut bytes = 0;
    for rank in 0..size {
        let part = take(&gguf, dims, cut, rank, size).unwrap();
        let [slabs, rows, cols] = part.shape();
        let (slab0, row0, col0, shape) = match cut {
            Cut::None => (0, 0, 0, [dims.slabs, dims.rows, dims.cols]),
            Cut::Slabs => (rank * slabs, 0, 0, [dims.slabs / size, dims.rows, dims.cols]),
            Cut::Rows { .. } => (0, rank * rows, 0, [dims.slabs, dims.rows / size, dims.cols]),
            Cut::Cols { .. } => (0, 0, rank * cols, [dims.slabs, dims.rows, dims.cols / size]),
        };
        assert_eq!((part.ty(), part.shape()), (ty, shape));
        let first = ty.row_bytes(col0 as u64).unwrap() as usize;
        for slab in 0..slabs {
            for row in 0..rows {
                let expected = whole.rows_bytes(slab0 + slab, row0 + row..row0 + row + 1);
                let expected = &expected[first..first + part.row_bytes()];
                assert!(part.rows_bytes(slab, row..row + 1) == expected, "{ty} {dims} {cut:?} {rank}/{size}");
            }
        }
        bytes += part.bytes().len();
        let shared = whole.bytes().as_ptr_range().contains(&part.bytes().as_ptr());
        let contiguous = match cut {
            Cut::None | Cut::Slabs => true,
            Cut::Rows { .. } => dims.slabs == 1,
            Cut::Cols { .. } => dims.slabs * dims.rows == 1,
        };
        assert_eq!(shared, contiguous || size == 1, "{ty} {dims} {cut:?}");
    }
    assert_eq!(bytes, whole.bytes().len() * if cut == Cut::None { size } else { 1 });
}

/// The tensor-parallel plan with GLM-5's own widths; stacks of experts have two slabs in place of 256, the vocabulary has
/// 1/16 of its rows.
fn plan() -> Vec<(&'static str, Dims, Cut)> {
    vec![
        ("attn_q_b", Dims::matrix(16384, 2048), Cut::Rows { unit: 256 }),
        ("attn_k_b", Dims::stack(64, 512, 192), Cut::Slabs),
        ("attn_v_b", Dims::stack(64, 256, 512), Cut::Slabs),
        ("attn_output", Dims::matrix(6144, 16384), Cut::Cols { unit: 256 }),
        ("ffn_gate", Dims::matrix(12288, 6144), Cut::Rows { unit: 1 }),
        ("ffn_down", Dims::matrix(6144, 12288), Cut::Cols { unit: 1 }),
        ("ffn_up_exps", Dims::stack(2, 2048, 6144), Cut::Rows { unit: 1 }),
        ("ffn_down_exps", Dims::stack(2, 6144, 2048), Cut::Cols { unit: 1 }),
        ("ffn_down_exps, by expert", Dims::stack(8, 64, 2048), Cut::Slabs),
        ("ffn_up_shexp", Dims::matrix(2048, 6144), Cut::Rows { unit: 1 }),
        ("ffn_down_shexp", Dims::matrix(6144, 2048), Cut::Cols { unit: 1 }),
        ("output", Dims::matrix(154_880 / 16, 6144), Cut::Rows { unit: 1 }),
        ("attn_q_a", Dims::matrix(2048, 6144), Cut::None),
        ("a vector", Dims::vector(6144), Cut::Cols { unit: 1 }),
    ]
}

/// 192 columns cannot be stored in blocks of 256.
fn storable(ty: GgmlType, dims: Dims) -> bool {
    dims.cols.is_multiple_of(ty.block_elems())
}

/// Every type on every tensor of the plan, with less of the extents that are not cut (and of rows without heads).
#[test]
fn every_type_on_every_tensor() {
    for &ty in GgmlType::ALL {
        for (_, mut dims, cut) in plan().into_iter().filter(|(_, dims, _)| storable(ty, *dims)) {
            match cut {
                Cut::Rows { unit: 1 } => dims.rows = 64,
                Cut::Rows { .. } => dims.cols = 256,
                _ => dims.rows = dims.rows.min(6),
            }
            for size in [2, 4, 8] {
                shards_are_the_whole(ty, dims, cut, size);
            }
        }
    }
}

/// The types of the published Q4 files at full extents.
#[test]
fn q4_files_at_full_extents() {
    use GgmlType::{Q4_K, Q5_0, Q5_K, Q6_K, Q8_0};
    for (name, dims, cut) in plan() {
        let ty = match name {
            "attn_k_b" => Q5_0,
            "ffn_down_exps" => Q6_K,
            "ffn_down" => Q5_K,
            "attn_output" | "attn_q_b" | "attn_v_b" | "a vector" => Q8_0,
            _ => Q4_K,
        };
        for size in [2, 8] {
            shards_are_the_whole(ty, dims, cut, size);
        }
    }
}

fn why(ty: GgmlType, dims: Dims, cut: Cut, size: usize) -> String {
    let gguf = file(ty, dims);
    let error = take(&gguf, dims, cut, size - 1, size).unwrap_err();
    assert!(matches!(error, Error::File { .. }));
    let text = error.to_string();
    assert!(text.starts_with("file.gguf: tensor t.weight: ") && !text.contains('\n'), "{text}");
    text
}

#[test]
fn illegal_cuts_say_why() {
    use GgmlType::{F16, Q4_K, Q8_0};
    // attn_output of the small models: 4 heads of 256 columns.
    let text = why(Q4_K, Dims::matrix(256, 1024), Cut::Cols { unit: 256 }, 8);
    assert!(text.ends_with("[1024, 256]: 1024 columns of Q4_K cannot be cut into 8 parts: parts must be multiples of 256 columns"), "{text}");
    // ffn_down_exps of the small models: one block wide.
    let text = why(Q4_K, Dims::stack(16, 256, 256), Cut::Cols { unit: 1 }, 2);
    assert!(text.ends_with("256 columns of Q4_K cannot be cut into 2 parts: 128 columns are not whole blocks of 256, and blocks are never cut"), "{text}");
    // ffn_down_exps of GLM-5: 8 blocks of 256 are enough for 8 ranks and no more; blocks of 32 for 64.
    let text = why(Q4_K, Dims::stack(2, 4, 2048), Cut::Cols { unit: 1 }, 16);
    assert!(text.contains("128 columns are not whole blocks of 256"), "{text}");
    shards_are_the_whole(Q8_0, Dims::stack(2, 4, 2048), Cut::Cols { unit: 1 }, 64);
    let text = why(Q8_0, Dims::stack(2, 4, 2048), Cut::Cols { unit: 1 }, 128);
    assert!(text.contains("16 columns are not whole blocks of 32"), "{text}");
    let text = why(Q8_0, Dims::stack(4, 8, 192), Cut::Slabs, 8);
    assert!(text.contains("4 slabs of Q8_0 cannot be cut into 8 parts: 4 is not a multiple of 8"), "{text}");
    let text = why(F16, Dims::matrix(1024, 8), Cut::Rows { unit: 256 }, 3);
    assert!(text.contains("1024 rows of F16 cannot be cut into 3 parts"), "{text}");
    let text = why(F16, Dims::matrix(8, 8), Cut::Rows { unit: 0 }, 2);
    assert!(text.contains("parts must be multiples of 0 rows"), "{text}");
    let text = why(F16, Dims::matrix(8, 8), Cut::Rows { unit: usize::MAX }, 2);
    assert!(text.contains("cannot be cut"), "{text}");
}

/// No values, but more rows than could ever be walked.
#[test]
fn empty_weights_are_cut_at_once() {
    let mut writer = Writer::new();
    writer.hole("t.weight", GgmlType::Q8_0, &[0, 1 << 40, 2]).unwrap();
    let gguf = Gguf::from_bytes("file.gguf", writer.to_bytes().unwrap().into()).unwrap();
    let dims = Dims::stack(2, 1 << 40, 0);
    assert_eq!(take(&gguf, dims, Cut::Cols { unit: 1 }, 1, 2).unwrap().shape(), [2, 1 << 40, 0]);
    assert_eq!(take(&gguf, dims, Cut::Rows { unit: 1 }, 1, 2).unwrap().shape(), [2, 1 << 39, 0]);
}

#[test]
fn shards_that_do_not_exist_are_refused_at_once() {
    let dims = Dims::matrix(8, 32);
    let gguf = file(GgmlType::Q8_0, dims);
    for (rank, size) in [(2, 2), (0, 0), (5, 4)] {
        for cut in [Cut::None, Cut::Slabs] {
            let error = take(&gguf, dims, cut, rank, size).unwrap_err();
            assert!(matches!(error, Error::Argument { what: "rank", .. }), "{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A cut is legal exactly when all parts are equal, whole units and whole blocks.
    #[test]
    fn a_cut_is_legal_or_says_why(
        ty in prop::sample::select(GgmlType::ALL),
        slabs in 1usize..9, rows in 1usize..13, blocks in 1usize..9, size in 1usize..9,
        unit in prop::sample::select(vec![1usize, 2, 3, 32, 256]), axis in 0usize..4,
    ) {
        let dims = Dims::stack(slabs, rows, blocks * ty.block_elems());
        // Whole units in each part, found by trying.
        let even = |extent: usize, unit: usize| (0..=extent).step_by(unit).any(|part| part * size == extent);
        let (cut, legal) = match axis {
            0 => (Cut::None, true),
            1 => (Cut::Slabs, even(slabs, 1)),
            2 => (Cut::Rows { unit }, even(rows, unit)),
            _ => (Cut::Cols { unit }, even(dims.cols, unit) && even(dims.cols, ty.block_elems())),
        };
        if legal || size == 1 {
            shards_are_the_whole(ty, dims, cut, size);
        } else {
            let text = why(ty, dims, cut, size);
            prop_assert!(text.contains(ty.name()) && text.contains(&format!("into {size} parts")), "{}", text);
        }
    }
}
