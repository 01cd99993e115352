//! `cuda/instances.toml`: which kernels are built. The format is documented at the top of that file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::Result;
use crate::expect::Expect;
use crate::value::{Kind, Value, initials};

/// Largest dynamic shared memory of a block on sm_120; static and dynamic together must keep to it.
pub const MAX_SMEM_SM120: u32 = 101_376;

/// The same on sm_90 and sm_100.
pub const MAX_SMEM_SM90: u32 = 232_448;

/// Threads of an SM of sm_120.
pub const MAX_THREADS_SM120: u32 = 1536;

/// Entries that one run of nvcc compiles. Small enough that a family's units keep all cores busy, and large enough that
/// nvcc's start and the headers (0.9 s a unit for three architectures) stay noise.
const UNIT_ENTRIES: usize = 8;

/// Names become functions in C++; modules, fields and arguments in Rust. Of both languages, those that are lower-case.
#[rustfmt::skip]
const KEYWORDS: &[&str] = &[
    "abstract", "alignas", "alignof", "and", "and_eq", "as", "asm", "async", "auto", "await", "become", "bitand", "bitor",
    "bool", "box", "break", "case", "catch", "char", "char16_t", "char32_t", "char8_t", "class", "co_await", "co_return",
    "co_yield", "compl", "concept", "const", "const_cast", "consteval", "constexpr", "constinit", "continue", "crate",
    "decltype", "default", "delete", "do", "double", "dyn", "dynamic_cast", "else", "enum", "explicit", "export", "extern",
    "false", "final", "float", "fn", "for", "friend", "gen", "goto", "if", "impl", "in", "inline", "int", "let", "long",
    "loop", "macro", "match", "mod", "move", "mut", "mutable", "namespace", "new", "noexcept", "not", "not_eq", "nullptr",
    "operator", "or", "or_eq", "override", "priv", "private", "protected", "pub", "public", "ref", "register",
    "reinterpret_cast", "requires", "return", "self", "short", "signed", "sizeof", "static", "static_assert",
    "static_cast", "struct", "super", "switch", "template", "this", "thread_local", "throw", "trait", "true", "try", "type",
    "typedef", "typeid", "typename", "typeof", "union", "unsafe", "unsigned", "unsized", "use", "using", "virtual", "void",
    "volatile", "wchar_t", "where", "while", "xor", "xor_eq", "yield",
];

/// The checked table.
#[derive(Debug)]
pub struct Table {
    /// In order of name.
    pub families: Vec<Family>,
}

/// A kernel template and its instances.
#[derive(Debug)]
pub struct Family {
    /// Also the name of the template function.
    pub name: String,
    /// File in `cuda/`.
    pub source: String,
    /// The by-value params struct, in `params.h`.
    pub params: String,
    /// Template arguments in order.
    pub args: Vec<(String, Kind)>,
    /// Architectures (`120a`) it is limited to; empty: all.
    pub archs: Vec<String>,
    /// Uses features of one architecture, so there is no PTX of it.
    pub arch_specific: bool,
    /// In the hot path: neither spills nor local memory.
    pub hot: bool,
    /// Programmatic dependent launch: may start while the kernels before it still run, and waits for them itself.
    pub pdl: bool,
    /// Releases of nvcc (`13.2`) that compile it wrongly.
    pub miscompiled_by: Vec<String>,
    /// At least one.
    pub entries: Vec<Entry>,
}

/// An instance of a template: one `__global__` function.
#[derive(Debug)]
pub struct Entry {
    /// Symbol in the image.
    pub name: String,
    /// One per argument of the family.
    pub args: Vec<Value>,
    /// Per block.
    pub threads: u32,
    /// Bytes of dynamic shared memory: `sizeof(<family>_smem<args>)`.
    pub smem: u32,
    /// Blocks that must fit on an SM at a time, which bounds the registers: the argument `blocks`; 0 without one.
    pub blocks: u32,
    /// Instructions that must be there.
    pub expect: Vec<Expect>,
    /// Instructions that must not be there ([`crate::inspect::matches()`]).
    pub forbid: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFamily {
    source: Option<String>,
    params: Option<String>,
    args: Vec<String>,
    #[serde(default)]
    archs: Vec<String>,
    #[serde(default)]
    arch_specific: bool,
    #[serde(default)]
    hot: bool,
    #[serde(default)]
    pdl: bool,
    #[serde(default)]
    miscompiled_by: Vec<String>,
    #[serde(default)]
    expect: Vec<String>,
    #[serde(default)]
    expect_loop: Vec<String>,
    #[serde(default)]
    forbid: Vec<String>,
    instances: Vec<RawInstance>,
}

#[derive(Deserialize)]
struct RawInstance {
    threads: Option<u32>,
    #[serde(default)]
    smem: u32,
    #[serde(default)]
    expect: Vec<String>,
    #[serde(default)]
    expect_loop: Vec<String>,
    #[serde(default)]
    forbid: Vec<String>,
    #[serde(flatten)]
    args: BTreeMap<String, toml::Value>,
}

impl Table {
    /// Reads `instances.toml` of the folder `cuda`, and checks that it names every kernel file there and no other.
    ///
    /// # Errors
    /// What [`Table::parse`] refuses; a missing file; a `.cu` file of no family.
    pub fn load(cuda: &Path) -> Result<Table> {
        let path = cuda.join("instances.toml");
        let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let table = Table::parse(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        let named: BTreeSet<_> = table.families.iter().map(|f| f.source.clone()).collect();
        let files = fs::read_dir(cuda).map_err(|e| format!("{}: {e}", cuda.display()))?;
        let there: BTreeSet<_> = files
            .filter_map(|file| file.ok()?.file_name().into_string().ok())
            .filter(|name| name.ends_with(".cu"))
            .collect();
        match named.symmetric_difference(&there).next() {
            Some(name) if there.contains(name) => Err(format!("{}: no family of {name}", path.display())),
            Some(name) => Err(format!("{}: there is no {name}", path.display())),
            None => Ok(table),
        }
    }

    /// Parses and checks the text of a table.
    ///
    /// # Errors
    /// Syntax; unknown keys; arguments missing, unknown or of the wrong kind; threads or shared memory out of range; two
    /// entries of one name.
    pub fn parse(text: &str) -> Result<Table> {
        let raw: BTreeMap<String, RawFamily> = toml::from_str(text).map_err(|e| e.to_string())?;
        let families = raw
            .into_iter()
            .map(|(name, raw)| family(&name, raw).map_err(|e| format!("[{name}]: {e}")))
            .collect::<Result<Vec<_>>>()?;
        let mut names = BTreeSet::new();
        for entry in families.iter().flat_map(|f| &f.entries) {
            // Compared as Rust spells them, where underscores are lost.
            if !names.insert(camel(&entry.name)) {
                return Err(format!("two entries are called {}", entry.name));
            }
        }
        Ok(Table { families })
    }

    /// All entries with their families, in the order of `Entry::ALL`.
    pub fn entries(&self) -> impl Iterator<Item = (&Family, &Entry)> {
        self.families.iter().flat_map(|f| f.entries.iter().map(move |e| (f, e)))
    }

    /// The entry of this name and its family.
    pub fn entry(&self, name: &str) -> Option<(&Family, &Entry)> {
        self.entries().find(|(_, e)| e.name == name)
    }
}

impl Family {
    /// The entries, cut into what one run of nvcc compiles: parts as even as can be.
    pub fn parts(&self) -> impl Iterator<Item = &[Entry]> {
        let parts = self.entries.len().div_ceil(UNIT_ENTRIES);
        self.entries.chunks(self.entries.len().div_ceil(parts.max(1)).max(1))
    }

    /// The most dynamic shared memory that an entry may have.
    pub fn max_smem(&self) -> u32 {
        let on_sm120 = self.archs.is_empty() || self.archs.iter().any(|a| a.starts_with("12"));
        if on_sm120 { MAX_SMEM_SM120 } else { MAX_SMEM_SM90 }
    }
}

fn family(name: &str, raw: RawFamily) -> Result<Family> {
    check_name(name)?;
    let args = raw.args.iter().map(|arg| parse_arg(arg)).collect::<Result<Vec<_>>>()?;
    let mut labels = BTreeSet::new();
    for (arg, kind) in &args {
        let label = if *kind == Kind::Int { initials(arg) } else { arg.clone() };
        if !labels.insert(label) {
            return Err(format!("argument `{arg}` repeats the name or the initials of one before it"));
        }
    }
    for arch in &raw.archs {
        if let crate::compile::Arch::Ptx(_) = crate::compile::Arch::parse(arch)? {
            return Err(format!("archs: `{arch}` is PTX, which is built of families without `archs` only"));
        }
    }
    if raw.instances.is_empty() {
        return Err("no instances".into());
    }
    let mut family = Family {
        name: name.into(),
        source: raw.source.unwrap_or_else(|| format!("{name}.cu")),
        params: raw.params.unwrap_or_else(|| format!("{name}_params")),
        args,
        archs: raw.archs,
        arch_specific: raw.arch_specific,
        hot: raw.hot,
        pdl: raw.pdl,
        miscompiled_by: raw.miscompiled_by,
        entries: Vec::new(),
    };
    for (i, mut row) in raw.instances.into_iter().enumerate() {
        row.expect.splice(0..0, raw.expect.iter().cloned());
        row.expect_loop.splice(0..0, raw.expect_loop.iter().cloned());
        row.forbid.splice(0..0, raw.forbid.iter().cloned());
        let entries = instances(&family, &row).map_err(|e| format!("instance {}: {e}", i + 1))?;
        family.entries.extend(entries);
    }
    Ok(family)
}

/// The entries of one row: every combination of the values of its arguments, the last one varying fastest.
fn instances(family: &Family, row: &RawInstance) -> Result<Vec<Entry>> {
    if let Some(unknown) = row.args.keys().find(|key| !family.args.iter().any(|(arg, _)| arg == *key)) {
        return Err(format!("unknown key `{unknown}`"));
    }
    if row.smem > family.max_smem() {
        return Err(format!("smem = {} of at most {} bytes", row.smem, family.max_smem()));
    }
    let mut combinations = vec![Vec::new()];
    for (arg, kind) in &family.args {
        let values = match row.args.get(arg).ok_or(format!("`{arg}` is missing"))? {
            toml::Value::Array(values) => values.iter().collect(),
            value => vec![value],
        };
        let values = values.into_iter().map(|v| kind.value(v)).collect::<Result<Vec<_>>>();
        let values = values.map_err(|e| format!("`{arg}`: {e}"))?;
        if values.is_empty() {
            return Err(format!("`{arg}` is an empty list, so there is no instance"));
        }
        combinations = combinations
            .iter()
            .flat_map(|head| values.iter().map(move |v| [head.as_slice(), std::slice::from_ref(v)].concat()))
            .collect();
    }
    combinations.into_iter().map(|args| entry(family, row, args)).collect()
}

fn entry(family: &Family, row: &RawInstance, args: Vec<Value>) -> Result<Entry> {
    let named = || family.args.iter().map(|(name, _)| name.as_str()).zip(&args);
    let int = |of: &str| {
        named().find_map(|(name, value)| match value {
            Value::Int(n) if name == of => Some(*n),
            _ => None,
        })
    };
    let (warps, blocks) = (int("warps"), int("blocks").unwrap_or(0));
    let threads = match (warps, row.threads) {
        (Some(warps), None) => warps.saturating_mul(32),
        (None, Some(threads)) => threads,
        (Some(_), Some(_)) => return Err("`threads` follows from `warps`, so it must not be given".into()),
        (None, None) => return Err("`threads` is missing".into()),
    };
    if !(32..=1024).contains(&threads) || !threads.is_multiple_of(32) {
        return Err(format!("{threads} threads: whole warps are needed, 1 to 32"));
    }
    let labels = named().map(|(name, value)| format!("_{}", value.label(name)));
    let name = labels.fold(family.name.clone(), |name, label| name + &label);
    if blocks > 32 || blocks * threads > MAX_THREADS_SM120 {
        return Err(format!(
            "blocks = {blocks} of {threads} threads: an SM holds {MAX_THREADS_SM120} threads"
        ));
    }
    let expect = |in_loop| move |text: &String| (text.clone(), in_loop);
    let expect = row.expect.iter().map(expect(false)).chain(row.expect_loop.iter().map(expect(true)));
    let expect =
        expect.map(|(text, in_loop)| Expect::parse(&text, in_loop, family, &args)).collect::<Result<_>>()?;
    Ok(Entry { name, args, threads, smem: row.smem, blocks, expect, forbid: row.forbid.clone() })
}

fn parse_arg(arg: &str) -> Result<(String, Kind)> {
    let (name, kind) = arg.split_once(':').ok_or(format!("argument `{arg}`: `name: kind` is expected"))?;
    let name = name.trim();
    check_name(name)?;
    if ["threads", "smem", "expect", "expect_loop", "forbid", "entry"].contains(&name) {
        return Err(format!("an argument cannot be called `{name}`"));
    }
    Ok((name.into(), Kind::parse(kind.trim())?))
}

fn check_name(name: &str) -> Result<()> {
    let mut chars = name.chars();
    let first = chars.next().is_some_and(|c| c.is_ascii_lowercase());
    if KEYWORDS.contains(&name) {
        return Err(format!("`{name}` is a keyword of Rust or C++"));
    }
    if first && chars.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
        Ok(())
    } else {
        Err(format!("`{name}` is no lower-case identifier"))
    }
}

/// `copy_u4_w8` as Rust names a variant: `CopyU4W8`.
pub(crate) fn camel(name: &str) -> String {
    name.split('_')
        .flat_map(|word| {
            let mut chars = word.chars();
            chars.next().map(|first| first.to_ascii_uppercase().to_string() + chars.as_str())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEMM: &str = r#"
        [gemm]
        source = "q4k_gemm.cu"
        args = ["block: type", "tile_m: int", "warps: int"]
        expect = ["IMMA"]
        expect_loop = ["IMMA.S8 >= 2 * warps"]
        instances = [
            { block = ["Q4_K", "Q6_K"], tile_m = [16, 64], warps = 4, smem = 1024 },
            { block = "IQ2_XXS", tile_m = 16, warps = 2, expect = ["LDG.128"] },
        ]
    "#;

    #[test]
    fn rows_expand_to_every_combination() {
        let table = Table::parse(GEMM).unwrap();
        let names: Vec<_> = table.entries().map(|(_, e)| e.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "gemm_q4_k_tm16_w4",
                "gemm_q4_k_tm64_w4",
                "gemm_q6_k_tm16_w4",
                "gemm_q6_k_tm64_w4",
                "gemm_iq2_xxs_tm16_w2"
            ]
        );
        let (family, last) = table.entry("gemm_iq2_xxs_tm16_w2").unwrap();
        assert_eq!((family.source.as_str(), family.params.as_str()), ("q4k_gemm.cu", "gemm_params"));
        assert_eq!((last.threads, last.smem), (64, 0));
        let expect = |pattern: &str, least, in_loop| Expect { pattern: pattern.into(), least, in_loop };
        let here = [expect("IMMA", 1, false), expect("LDG.128", 1, false), expect("IMMA.S8", 4, true)];
        assert_eq!(last.expect, here);
        assert_eq!(table.entry("gemm_q4_k_tm64_w4").unwrap().1.expect[1], expect("IMMA.S8", 8, true));
        assert_eq!(table.entry("gemm_q4_k_tm64_w4").unwrap().1.smem, 1024);
    }

    #[test]
    fn bad_tables_are_refused_with_the_reason() {
        let cases = [
            ("[f]\nargs = []\ninstances = [{ threads = 32 }]\nhots = true", "unknown field `hots`"),
            ("[f]\nargs = []\ninstances = [{ threads = 32, tile = 1 }]", "unknown key `tile`"),
            ("[f]\nargs = []\ninstances = []", "no instances"),
            ("[f]\nargs = []\ninstances = [{}]", "`threads` is missing"),
            ("[f]\nargs = []\ninstances = [{ threads = 48 }]", "48 threads"),
            ("[f]\nargs = []\ninstances = [{ threads = 2048 }]", "2048 threads"),
            ("[f]\nargs = ['warps: int']\ninstances = [{ warps = 1, threads = 32 }]", "must not be given"),
            ("[f]\nargs = ['warps: int']\ninstances = [{ warps = 33 }]", "1056 threads"),
            ("[f]\nargs = ['warps: int']\ninstances = [{ warps = -1 }]", "out of range"),
            ("[f]\nargs = ['warps: int']\ninstances = [{ warps = '4' }]", "string where Int"),
            ("[f]\nargs = ['a: int']\ninstances = [{ threads = 32 }]", "`a` is missing"),
            ("[f]\nargs = ['a: int', 'ab_c: int', 'axe: int']\ninstances = [{}]", "`axe` repeats"),
            ("[f]\nargs = ['a']\ninstances = [{}]", "`name: kind`"),
            ("[f]\nargs = ['a: float']\ninstances = [{}]", "no kind"),
            ("[f]\nargs = ['smem: int']\ninstances = [{}]", "cannot be called"),
            ("[f]\nargs = ['t: type']\ninstances = [{ t = 'Q9_K', threads = 32 }]", "no type"),
            ("[f]\nargs = ['t: scalar']\ninstances = [{ t = 'Q4_K', threads = 32 }]", "no scalar"),
            ("[f]\nargs = []\ninstances = [{ threads = 32, smem = 101377 }]", "at most 101376"),
            ("[f]\nargs = ['blocks: int']\ninstances = [{ threads = 512, blocks = 4 }]", "an SM holds 1536"),
            ("[f]\nargs = []\narchs = ['90z']\ninstances = [{ threads = 32 }]", "90z"),
            ("[f]\nargs = []\narchs = ['compute_90']\ninstances = [{ threads = 32 }]", "`compute_90` is PTX"),
            ("[f]\nargs = ['a: int']\ninstances = [{ a = [], threads = 32 }]", "`a` is an empty list"),
            ("[move]\nargs = []\ninstances = [{ threads = 32 }]", "`move` is a keyword"),
            ("[f]\nargs = ['type: int']\ninstances = [{ type = 1, threads = 32 }]", "`type` is a keyword"),
            ("[f]\nargs = []\nexpect = ['LDG > 4']\ninstances = [{ threads = 32 }]", "`LDG > 4`: "),
            ("[f]\nargs = []\nexpect = ['LDG >= 0']\ninstances = [{ threads = 32 }]", "`LDG >= 0`: "),
            ("[f]\nargs = []\nexpect_loop = ['LDG >= n']\ninstances = [{ threads = 32 }]", "`LDG >= n`: "),
            ("[F]\nargs = []\ninstances = [{ threads = 32 }]", "no lower-case identifier"),
            ("[f]\nargs = []\ninstances = [{ threads = 32 }, { threads = 64 }]", "two entries are called f"),
            (
                "[f_a]\nargs = []\ninstances = [{ threads = 32 }]\n[fA]\nargs = []\ninstances = [{ threads = 32 }]",
                "no lower-case identifier",
            ),
        ];
        for (text, reason) in cases {
            let error = Table::parse(text).expect_err(text);
            assert!(error.contains(reason), "{text}\n{error}");
        }
    }

    #[test]
    fn shared_memory_of_other_architectures_is_larger() {
        let row = "args = []\ninstances = [{ threads = 32, smem = 232448 }]";
        assert!(Table::parse(&format!("[f]\narchs = ['90a']\n{row}")).is_ok());
        assert!(Table::parse(&format!("[f]\narchs = ['90a', '120a']\n{row}")).is_err());
    }

    #[test]
    fn parts_are_even() {
        for n in 1..40 {
            let family = Table::parse(&format!(
                "[f]\nargs = ['a: int']\ninstances = [{{ a = {:?}, threads = 32 }}]",
                (0..n).collect::<Vec<_>>()
            ));
            let family = &family.unwrap().families[0];
            let sizes: Vec<_> = family.parts().map(<[Entry]>::len).collect();
            assert_eq!(sizes.iter().sum::<usize>(), n);
            assert!(
                sizes.iter().all(|&s| s <= UNIT_ENTRIES && s + UNIT_ENTRIES / 2 >= sizes[0]),
                "{sizes:?}"
            );
        }
    }
}
