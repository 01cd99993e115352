//! Opening: single files, split sets from any shard, and everything that can be wrong with a path or a set.

use std::fs;
use std::path::{Path, PathBuf};

use glm5::Error;
use glm5::gguf::{Gguf, Value, Writer};
use glm5::quant::GgmlType;

use crate::broken::file;
use crate::synthetic::TempDir;

/// Five tensors with data that differs everywhere.
fn five() -> Writer {
    let mut writer = Writer::new();
    writer.key("general.architecture", "glm-dsa");
    writer.key("glm-dsa.block_count", 5u32);
    for i in 0..5u8 {
        let data: Vec<u8> = (0..34 * 3).map(|b| b ^ (i << 5)).collect();
        writer.tensor(format!("blk.{i}.x.weight"), GgmlType::Q8_0, &[32, 3], data).unwrap();
    }
    writer
}

fn error(path: &Path) -> String {
    let error = Gguf::open(path).expect_err("an error").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

fn assert_text(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
}

#[test]
fn a_directory_or_no_file_is_an_io_error() {
    let dir = TempDir::new();
    assert!(matches!(Gguf::open(dir.path()), Err(Error::Io { .. })));
    assert_text(&error(dir.path()), &["is a directory", &dir.path().display().to_string()]);
    let missing = dir.path().join("none.gguf");
    assert!(matches!(Gguf::open(&missing), Err(Error::Io { .. })));
    assert_text(&error(&missing), &["none.gguf", "No such file"]);
    // The shard that is named, not one that its name asks for.
    assert_text(&error(&dir.path().join("x-00002-of-00002.gguf")), &["x-00002-of-00002.gguf: No such file"]);
}

#[cfg(unix)]
#[test]
fn a_device_is_refused_and_a_link_is_followed() {
    assert_text(&error(Path::new("/dev/null")), &["not a regular file"]);
    let dir = TempDir::new();
    // As in download caches: named links to files that are named by their contents.
    let paths = five().write_split(dir.path().join("set"), &[2, 3]).unwrap();
    let cache = dir.path().join("links");
    fs::create_dir(&cache).unwrap();
    for (i, path) in paths.iter().enumerate() {
        let blob = dir.path().join(format!("blob{i}"));
        fs::rename(path, &blob).unwrap();
        std::os::unix::fs::symlink(&blob, cache.join(path.file_name().unwrap())).unwrap();
    }
    let gguf = Gguf::open(cache.join("set-00002-of-00002.gguf")).unwrap();
    assert_eq!(gguf.tensors().len(), 5);
}

#[test]
fn a_set_opens_from_any_shard_and_equals_the_single_file() {
    let dir = TempDir::new();
    let whole = dir.path().join("whole.gguf");
    five().write(&whole).unwrap();
    let whole = Gguf::open(whole).unwrap();
    for plan in [&[5][..], &[0, 5], &[2, 3], &[0, 2, 2, 1], &[5, 0], &[1, 1, 0, 1, 1, 1]] {
        let paths = five().write_split(dir.path().join("set"), plan).unwrap();
        assert_eq!(paths.len(), plan.len());
        for path in &paths {
            let set = Gguf::open(path).unwrap();
            let shards: Vec<PathBuf> = set.shards().iter().map(|s| s.path().to_owned()).collect();
            assert_eq!(shards, paths);
            assert_eq!(set.path(), paths[0]);
            assert_eq!(set.shards().iter().map(|s| s.n_tensors()).collect::<Vec<_>>(), plan);
            let disk: u64 = paths.iter().map(|p| fs::metadata(p).unwrap().len()).sum();
            assert_eq!(set.file_bytes(), disk);
            assert_eq!(set.tensor_bytes(), whole.tensor_bytes());
            assert_eq!(set.types(), whole.types());
            assert_eq!(set.metadata().require::<u64>("glm-dsa.block_count").unwrap(), 5);
            for (a, b) in set.tensors().iter().zip(whole.tensors()) {
                assert_eq!((&a.name, a.ty, a.dims, a.bytes), (&b.name, b.ty, b.dims, b.bytes));
                assert_eq!(&*set.data(a).unwrap(), &*whole.data(b).unwrap());
                // A second way to the bytes: read the named file at the named place.
                let raw = fs::read(set.shards()[a.shard].path()).unwrap();
                let start = a.offset as usize;
                assert_eq!(&raw[start..start + a.bytes as usize], &*set.data(a).unwrap());
            }
        }
        fs::remove_file(&paths[0]).unwrap(); // so that no set of another length is left
    }
}

#[test]
fn a_renamed_shard_says_which_name_it_needs() {
    let dir = TempDir::new();
    let paths = five().write_split(dir.path().join("set"), &[0, 3, 2]).unwrap();
    let renamed = dir.path().join("model.gguf");
    fs::copy(&paths[1], &renamed).unwrap();
    assert_text(&error(&renamed), &["model.gguf: split set", "split.count is 3", "-00002-of-00003.gguf"]);
    for odd in
        ["set-2-of-3.gguf", "set-0002-of-00003.gguf", "set-00002-of-00003.bin", "set00002-of-00003.gguf"]
    {
        fs::copy(&paths[1], dir.path().join(odd)).unwrap();
        assert_text(&error(&dir.path().join(odd)), &[odd, "-00002-of-00003.gguf"]);
    }
    // A number outside the set, and the number of another shard.
    for (odd, text) in
        [("set-00000-of-00003.gguf", "shard 0 of 3"), ("set-00004-of-00003.gguf", "shard 4 of 3")]
    {
        fs::copy(&paths[1], dir.path().join(odd)).unwrap();
        assert_text(&error(&dir.path().join(odd)), &[odd, text]);
    }
    let mut absurd = Writer::new();
    absurd.key("split.no", u64::MAX);
    absurd.key("split.count", 2u16);
    absurd.write(dir.path().join("absurd.gguf")).unwrap();
    assert_text(&error(&dir.path().join("absurd.gguf")), &["split.no is 18446744073709551615"]);
    fs::copy(&paths[1], &paths[2]).unwrap();
    for path in &paths {
        assert_text(&error(path), &["set-00003-of-00003.gguf: split set", "split.no is 1, expected 2"]);
    }
}

#[test]
fn a_single_file_named_like_a_shard_is_refused() {
    let dir = TempDir::new();
    let path = dir.path().join("set-00001-of-00002.gguf");
    five().write(&path).unwrap();
    assert_text(&error(&path), &["there is no split.count", "the file name says 2"]);
    let path = dir.path().join("set-00001-of-00001.gguf");
    five().write(&path).unwrap();
    assert_eq!(Gguf::open(path).unwrap().tensors().len(), 5);
}

#[test]
fn a_foreign_shard_is_named() {
    let dir = TempDir::new();
    let paths = five().write_split(dir.path().join("set"), &[2, 3]).unwrap();
    let shard = fs::read(&paths[1]).unwrap();

    five().write(&paths[1]).unwrap(); // a whole model in place of the shard
    for path in &paths {
        let text = error(path);
        let expected =
            if path == &paths[0] { "not a shard: there is no split.count" } else { "no split.count" };
        assert_text(&text, &["set-00002-of-00002.gguf: split set", expected]);
    }

    // The second shard of another model of the same name and number of tensors.
    let mut other = Writer::new();
    other.key("general.architecture", "llama");
    other.key("split.no", 1u16);
    other.key("split.count", 2u16);
    other.key("split.tensors.count", 5i32);
    other.hole("a", GgmlType::F32, &[1]).unwrap();
    other.hole("b", GgmlType::F32, &[1]).unwrap();
    other.hole("c", GgmlType::F32, &[1]).unwrap();
    other.write(&paths[1]).unwrap();
    for path in &paths {
        let parts =
            ["00002-of-00002.gguf: split set", "another model", "\"llama\"", "\"glm-dsa\"", "00001-of"];
        assert_text(&error(path), &parts);
    }

    fs::write(&paths[1], &shard[..shard.len() - 100]).unwrap(); // a half-finished download
    for path in &paths {
        assert_text(
            &error(path),
            &["00002-of-00002.gguf: tensor blk.4.x.weight", "past the end of the file"],
        );
    }
    fs::remove_file(&paths[1]).unwrap();
    fs::create_dir(&paths[1]).unwrap();
    assert_text(&error(&paths[0]), &["00002-of-00002.gguf", "is a directory"]);
}

/// A shard that has lost one of its keys, or has it with another value.
#[test]
fn split_keys_are_all_checked() {
    type Keys<'a> = Vec<(&'a str, Value)>;
    let good = |no: u16| -> Keys {
        vec![("split.no", no.into()), ("split.count", 2u16.into()), ("split.tensors.count", 2i32.into())]
    };
    let open = |keys: [Keys; 2]| {
        let files = keys.into_iter().enumerate().map(|(i, keys)| {
            let mut writer = Writer::new();
            keys.into_iter().for_each(|(k, v)| writer.key(k, v));
            writer.tensor(format!("t{i}"), GgmlType::F32, &[1], vec![0; 4]).unwrap();
            (PathBuf::from(format!("file{i}")), writer.to_bytes().unwrap().into())
        });
        Gguf::from_shards(files.collect::<Vec<_>>())
    };
    assert_eq!(open([good(0), good(1)]).unwrap().tensors().len(), 2);
    // Writers use other integer types too.
    let wide: Keys =
        vec![("split.no", 1u64.into()), ("split.count", 2i32.into()), ("split.tensors.count", 2u64.into())];
    assert_eq!(open([good(0), wide]).unwrap().tensors().len(), 2);

    let expect = |keys, parts: &[&str]| assert_text(&open(keys).unwrap_err().to_string(), parts);
    let without = |i: u16, key| good(i).into_iter().filter(|(k, _)| *k != key).collect::<Keys>();
    let with = |i: u16, key, value: Value| {
        let replace = |(k, v)| if k == key { (k, value.clone()) } else { (k, v) };
        good(i).into_iter().map(replace).collect::<Keys>()
    };
    expect([without(0, "split.no"), good(1)], &["file0: split set", "no split.no", "expected 0"]);
    expect([good(0), without(1, "split.no")], &["file1: split set", "no split.no", "expected 1"]);
    expect([without(0, "split.count"), good(1)], &["file0: split set", "no split.count"]);
    expect([good(0), without(1, "split.count")], &["file1: split set", "no split.count"]);
    expect([without(0, "split.tensors.count"), good(1)], &["file0: key split.tensors.count: missing"]);
    assert_eq!(open([good(0), without(1, "split.tensors.count")]).unwrap().tensors().len(), 2);
    expect([good(1), good(0)], &["file0: split set", "split.no is 1, expected 0"]);
    expect([good(0), with(1, "split.no", 2u16.into())], &["file1", "split.no is 2, expected 1"]);
    expect([good(0), with(1, "split.count", 3u16.into())], &["file1", "split.count is 3", "2 shards"]);
    expect([good(0), with(1, "split.count", "2".into())], &["file1: key split.count", "found string"]);
    expect([good(0), with(1, "split.count", (-2i32).into())], &["file1: key split.count", "found i32 -2"]);
    expect(
        [good(0), with(1, "split.tensors.count", 3i32.into())],
        &["file1", "split.tensors.count is 3, but 2"],
    );
    let three = |i| with(i, "split.tensors.count", 3i32.into());
    expect([three(0), three(1)], &["file0: split set", "split.tensors.count is 3", "hold 2"]);
}

#[test]
fn bytes_in_memory_open_as_one_file() {
    let bytes = fs::read(file("ok-tiny")).unwrap();
    let gguf = Gguf::from_bytes("memory", bytes.into()).unwrap();
    assert_eq!(gguf.tensors().len(), 4);
    let shard = fs::read(file("split-ok-00002-of-00002")).unwrap();
    let text = Gguf::from_bytes("memory", shard.into()).unwrap_err().to_string();
    assert_text(&text, &["memory: split set", "split.count is 2", "1 shards"]);
    assert!(matches!(Gguf::from_shards([]), Err(Error::Argument { .. })));
}

#[test]
fn a_tensor_of_another_file_is_no_tensor_of_this_one() {
    let gguf = Gguf::open(file("ok-tiny")).unwrap();
    let mut info = gguf.tensors()[0].clone();
    info.offset = u64::MAX - 3;
    assert!(matches!(gguf.data(&info), Err(Error::Shape { .. })));
    info = gguf.tensors()[0].clone();
    info.shard = 1;
    assert!(matches!(gguf.data(&info), Err(Error::Shape { .. })));
    assert!(gguf.tensor("no such").is_none());
}
