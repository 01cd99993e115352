//! Valid files, damaged in every way: the reader may refuse, but never panics nor allocates beyond the file's worth.

use std::fs;
use std::panic::{catch_unwind, resume_unwind};

use glm5::gguf::Gguf;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::broken::file;
use crate::gguf_walk::walk;
use crate::round_trip::any_writer;

/// Values at the edges of what lengths, counts, types and offsets may be.
const EDGES: &[u64] = &[
    0,
    1,
    2,
    3,
    4,
    5,
    8,
    9,
    12,
    13,
    32,
    39,
    97,
    255,
    256,
    1 << 16,
    (1 << 30) - 1,
    (1 << 30) + 1,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 61) + 1,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 31,
    u64::MAX - 7,
    u64::MAX,
];

fn read(name: &str) -> Vec<u8> {
    fs::read(file(name)).unwrap()
}

/// Where the tensor data of a shard begins.
fn header_len(set: &[Vec<u8>], shard: usize) -> usize {
    let gguf = Gguf::from_shards(set.iter().map(|b| ("memory".into(), b.clone().into()))).unwrap();
    gguf.tensors().iter().find(|t| t.shard == shard).unwrap().offset as usize
}

/// Runs `walk` on a damaged set and bounds the memory that it takes beyond the copies of the files that are given to it:
/// names and values are stored once or twice, with an index of a few words each.
fn survives(shards: &[&[u8]]) -> bool {
    let size: usize = shards.iter().map(|s| s.len()).sum();
    // A panic must not leave the counter half way: it would abort the process while proptest looks for a small case.
    let mut outcome = Ok(false);
    let info = allocation_counter::measure(|| outcome = catch_unwind(|| walk(shards).is_ok()));
    let opened = outcome.unwrap_or_else(|panic| resume_unwind(panic));
    let bound = 16 * size as u64 + 64 * 1024;
    assert!(info.bytes_max <= bound, "{} bytes allocated for files of {size}", info.bytes_max);
    opened
}

const SINGLE: &[&str] = &["ok-tiny", "ok-v2", "ok-align64"];

#[test]
fn controls_walk() {
    for name in SINGLE {
        walk(&[&read(name)]).unwrap();
    }
    walk(&[&read("split-ok-00001-of-00002"), &read("split-ok-00002-of-00002")]).unwrap();
}

#[test]
fn every_truncation_is_refused() {
    for name in SINGLE {
        let bytes = read(name);
        let gguf = Gguf::from_bytes("memory", bytes.clone().into()).unwrap();
        // The padding after the last tensor may be missing.
        let end = gguf.tensors().iter().map(|t| t.offset + t.bytes).max().unwrap() as usize;
        for len in 0..bytes.len() {
            assert_eq!(survives(&[&bytes[..len]]), len >= end, "{name} cut to {len} of {end} bytes");
        }
    }
    let set = [read("split-ok-00001-of-00002"), read("split-ok-00002-of-00002")];
    for len in 0..header_len(&set, 1) {
        assert!(!survives(&[&set[0], &set[1][..len]]));
    }
}

#[test]
fn every_header_byte_in_every_value() {
    let bytes = read("ok-tiny");
    let mut damaged = bytes.clone();
    for i in 0..header_len(std::slice::from_ref(&bytes), 0) {
        for value in 0..=255 {
            damaged[i] = value;
            survives(&[&damaged]);
        }
        damaged[i] = bytes[i];
    }
}

/// Counts, lengths, types, extents and offsets, whatever stands there: every position, as 32 and as 64 bits.
#[test]
fn every_field_at_every_edge() {
    let shards = [read("split-ok-00001-of-00002"), read("split-ok-00002-of-00002")];
    let tiny = [read("ok-align64")];
    for set in [&tiny[..], &shards[..]] {
        for shard in 0..set.len() {
            let mut damaged = set.to_vec();
            for i in 0..header_len(set, shard) - 8 {
                for edge in EDGES {
                    for width in [4, 8] {
                        damaged[shard][i..i + width].copy_from_slice(&edge.to_le_bytes()[..width]);
                        survives(&damaged.iter().map(Vec::as_slice).collect::<Vec<_>>());
                        damaged[shard][i..i + 8].copy_from_slice(&set[shard][i..i + 8]);
                    }
                }
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Damage {
    Set(prop::sample::Index, u8),
    Edge(prop::sample::Index, usize),
    Insert(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Repeat(prop::sample::Index, usize),
}

fn any_damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(i, b)| Damage::Set(i, b)),
        (at(), 0..EDGES.len()).prop_map(|(i, e)| Damage::Edge(i, e)),
        (at(), vec(any::<u8>(), 1..9)).prop_map(|(i, b)| Damage::Insert(i, b)),
        (at(), 1usize..64).prop_map(|(i, n)| Damage::Remove(i, n)),
        (at(), 1usize..64).prop_map(|(i, n)| Damage::Repeat(i, n)),
    ]
}

fn damage(bytes: &mut Vec<u8>, damage: &Damage) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    let span = |i: &prop::sample::Index, n: usize| i.index(len)..(i.index(len) + n).min(len);
    match damage {
        Damage::Set(i, b) => bytes[i.index(len)] = *b,
        Damage::Edge(i, e) => {
            let span = span(i, 8);
            let edge = EDGES[*e].to_le_bytes();
            bytes[span.clone()].copy_from_slice(&edge[..span.len()]);
        }
        Damage::Insert(i, new) => drop(bytes.splice(i.index(len)..i.index(len), new.iter().copied())),
        Damage::Remove(i, n) => drop(bytes.drain(span(i, *n))),
        Damage::Repeat(i, n) => {
            let copy = bytes[span(i, *n)].to_vec();
            bytes.splice(i.index(len)..i.index(len), copy);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..200), header in any::<bool>()) {
        let bytes = match header {
            true => [b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0", &bytes[..]].concat(),
            false => bytes,
        };
        survives(&[&bytes]);
    }

    #[test]
    fn any_file_with_any_damage((writer, _, _) in any_writer(), all in vec(any_damage(), 1..4)) {
        let mut bytes = writer.to_bytes().unwrap();
        prop_assert!(walk(&[&bytes]).is_ok());
        all.iter().for_each(|d| damage(&mut bytes, d));
        survives(&[&bytes]);
    }

    #[test]
    fn any_set_with_any_damage(
        (writer, _, tensors) in any_writer(), which in 0usize..3, all in vec(any_damage(), 1..3),
    ) {
        let plan = [0, tensors.len() / 2, tensors.len() - tensors.len() / 2];
        let set = writer.split_to_bytes("set", &plan).unwrap();
        let mut set: Vec<Vec<u8>> = set.iter().map(|(_, b)| b.to_vec()).collect();
        all.iter().for_each(|d| damage(&mut set[which], d));
        survives(&set.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
}
