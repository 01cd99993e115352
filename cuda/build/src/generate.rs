//! Text made from the table: the units that instantiate kernels, and the Rust side, `entries.rs`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use crate::Result;
use crate::table::{Entry, Family, Table, camel};
use crate::value::Value;

/// What one run of a compiler makes: some instances of one family.
#[derive(Debug)]
pub struct Unit<'a> {
    /// `<family>.<part>`; its place among all units is its place in the table of images.
    pub name: String,
    /// Whose instances.
    pub family: &'a Family,
    /// Which.
    pub entries: &'a [Entry],
}

/// All units, in order of family and part.
pub fn units(table: &Table) -> Vec<Unit<'_>> {
    table
        .families
        .iter()
        .flat_map(|family| {
            let named =
                move |(part, entries)| Unit { name: format!("{}.{part}", family.name), family, entries };
            family.parts().enumerate().map(named)
        })
        .collect()
}

/// A template, so that the compiler's message has both numbers.
const SMEM_IS: &str = "\
template <auto kTable, auto kKernel> struct smem_is {
    static_assert(kTable == kKernel, \"smem in instances.toml (kTable) is not the size of the kernel's struct (kKernel)\");
    static constexpr bool checked = true;
};
";

impl Unit<'_> {
    /// The source, the same for nvcc and for the emulator: the kernel file, then `KERNEL_ENTRY` per instance.
    pub fn source(&self) -> String {
        let Family { name, source, params, .. } = self.family;
        let mut text = format!("// Generated from cuda/instances.toml.\n#include \"{source}\"\n\n");
        if self.entries.iter().any(|entry| entry.smem > 0) {
            text += SMEM_IS;
        }
        for entry in self.entries {
            let args: Vec<_> = entry.args.iter().map(|arg| arg.cpp()).collect();
            let args = if args.is_empty() { String::new() } else { format!("<{}>", args.join(", ")) };
            if entry.smem > 0 {
                _ = writeln!(
                    text,
                    "static_assert(smem_is<{}, sizeof({name}_smem{args})>::checked);",
                    entry.smem
                );
            }
            let Entry { name: entry, threads, blocks, .. } = entry;
            _ = match blocks {
                0 => writeln!(text, "KERNEL_ENTRY({entry}, {params}, {threads}, {name}{args})"),
                n => writeln!(text, "KERNEL_ENTRY_BLOCKS({entry}, {params}, {threads}, {n}, {name}{args})"),
            };
        }
        text
    }
}

/// What the emulator compiles: the units, by file name, and the table of entries for its tests in C++.
pub fn emulated(table: &Table) -> Vec<(String, String)> {
    let units = units(table);
    let units = units.iter().map(|unit| (format!("{}.cpp", unit.name), unit.source()));
    units.chain([("entries.cpp".to_owned(), entries_cpp(table))]).collect()
}

/// Writes generated files into a folder; their paths.
///
/// # Errors
/// A file that cannot be written.
pub fn write_files(dir: &Path, files: &[(String, String)]) -> Result<Vec<PathBuf>> {
    let write = |(name, text): &(String, String)| {
        let path = dir.join(name);
        // Unchanged files keep their time, for those who go by it.
        if !fs::read_to_string(&path).is_ok_and(|there| there == *text) {
            fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(path)
    };
    files.iter().map(write).collect()
}

/// `entries.cpp`: the table that `cuda/host/tests/kernels.hpp` declares.
fn entries_cpp(table: &Table) -> String {
    let (mut declared, mut rows) = (String::new(), String::new());
    for (family, Entry { name, args, threads, smem, .. }) in table.entries() {
        _ = writeln!(declared, "extern \"C\" emu_kernel emu_{name};");
        let args: Vec<_> = args.iter().map(Value::size_cpp).collect();
        let args = family.args.iter().zip(args).map(|((arg, _), size)| format!("{{{arg:?}, {size}}}"));
        let args = args.collect::<Vec<_>>().join(", ");
        let Family { name: family, pdl, .. } = family;
        _ = writeln!(rows, "    {{{family:?}, {name:?}, emu_{name}, {threads}, {smem}, {pdl}, {{{args}}}}},");
    }
    format!(
        "// Generated from cuda/instances.toml.\n#include \"common/blocks.cuh\"\n#include \"host/tests/kernels.hpp\"\n\n\
         {declared}\nconst std::vector<test::Kernel> test::kernels = {{\n{rows}}};\n"
    )
}

/// `entries.rs`: the enum `Entry`, a row of facts for each, and a module per family that finds an entry by its template
/// arguments. Included by `src/kernels.rs`, which defines what a row is.
pub fn entries_rs(table: &Table) -> String {
    let mut variants = String::new();
    let mut all = String::new();
    let mut rows = String::new();
    let mut modules = String::new();
    for (unit, Unit { family, entries, .. }) in units(table).iter().enumerate() {
        for entry in *entries {
            let (name, variant) = (&entry.name, camel(&entry.name));
            let Entry { threads, smem, blocks, .. } = entry;
            let Family { name: family, params, hot, pdl, .. } = family;
            _ = writeln!(
                variants,
                "    /// `{name}`: {threads} threads, {smem} bytes of dynamic shared memory."
            );
            _ = writeln!(variants, "    {variant},");
            _ = writeln!(all, "    Entry::{variant},");
            _ = writeln!(
                rows,
                "    EntryInfo {{ name: {name:?}, family: {family:?}, params: {params:?}, threads: {threads}, \
                 smem_bytes: {smem}, blocks: {blocks}, hot: {hot}, pdl: {pdl}, unit: {unit} }},"
            );
        }
    }
    for family in &table.families {
        modules += &family_module(family);
    }
    let structs: BTreeSet<_> = table.families.iter().map(|family| &family.params).collect();
    for name in structs {
        _ = write!(
            modules,
            "\nimpl Params for crate::sys::{name} {{\n    const NAME: &'static str = {name:?};\n}}\n"
        );
    }
    let n = table.entries().count();
    format!(
        "// Generated from cuda/instances.toml.

/// A kernel that was compiled: an instance of a template in `cuda/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {{
{variants}}}

const ALL: [Entry; {n}] = [
{all}];

static INFO: [EntryInfo; {n}] = [
{rows}];
{modules}"
    )
}

fn family_module(family: &Family) -> String {
    let Family { name, source, args, entries, .. } = family;
    let mut fields = String::new();
    let mut parameters = String::new();
    let mut tests = String::new();
    for (arg, kind) in args {
        let ty = kind.rust_type();
        _ = writeln!(fields, "        /// Template argument `{arg}`.\n        pub {arg}: {ty},");
        _ = write!(parameters, "{}{arg}: {ty}", if parameters.is_empty() { "" } else { ", " });
        _ = write!(tests, "{}i.{arg} == {arg}", if tests.is_empty() { "" } else { " && " });
    }
    let mut rows = String::new();
    for entry in entries {
        _ = write!(rows, "        Instance {{ ");
        for ((arg, _), value) in args.iter().zip(&entry.args) {
            _ = write!(rows, "{arg}: {}, ", value.rust());
        }
        _ = writeln!(rows, "entry: Entry::{} }},", camel(&entry.name));
    }
    let tests = if tests.is_empty() { "true" } else { &tests };
    let uses_types = args.iter().any(|(_, kind)| kind.rust_type() == "GgmlType");
    let use_types = if uses_types { "    use crate::quant::GgmlType;\n" } else { "" };
    format!(
        "
/// Instances of `{name}` (`cuda/{source}`).
pub mod {name} {{
    use super::Entry;
{use_types}
    /// An instance and its template arguments.
    #[derive(Debug, Clone, Copy)]
    pub struct Instance {{
{fields}        /// The kernel.
        pub entry: Entry,
    }}

    /// All, in the order of the table.
    pub static INSTANCES: &[Instance] = &[
{rows}    ];

    /// The instance with these template arguments, if it was built.
    #[allow(clippy::too_many_arguments)] // as many as the template has
    pub fn find({parameters}) -> Option<Entry> {{
        INSTANCES.iter().find(|i| {tests}).map(|i| i.entry)
    }}
}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = r#"
        [dequantize]
        args = ["ty: type", "out: scalar", "warps: int"]
        hot = true
        instances = [
            { ty = ["Q4_K", "IQ2_XXS", "Q8_0", "F32"], out = ["F32", "BF16", "F16"], warps = 4, smem = 2048 },
        ]
        [touch]
        args = []
        instances = [{ threads = 64 }]
    "#;

    #[test]
    fn units_instantiate_each_entry_once() {
        let table = Table::parse(TABLE).unwrap();
        let units = units(&table);
        let names: Vec<_> = units.iter().map(|u| u.name.as_str()).collect();
        assert_eq!(names, ["dequantize.0", "dequantize.1", "touch.0"]);
        let all: String = units.iter().map(Unit::source).collect();
        for (_, entry) in table.entries() {
            assert_eq!(all.matches(&format!("KERNEL_ENTRY({}, ", entry.name)).count(), 1, "{}", entry.name);
        }
        assert_eq!(all.matches("KERNEL_ENTRY").count(), 13);
        let first = units[0].source();
        assert!(first.contains("#include \"dequantize.cu\"\n"));
        let compares = |i: usize| units[i].source().matches(SMEM_IS).count();
        assert_eq!([compares(0), compares(1), compares(2)], [1, 1, 0]);
        let lines = "static_assert(smem_is<2048, sizeof(dequantize_smem<block_q4_K, bf16, 4>)>::checked);\n\
                     KERNEL_ENTRY(dequantize_q4_k_bf16_w4, dequantize_params, 128, dequantize<block_q4_K, bf16, 4>)\n";
        assert!(first.contains(lines), "{first}");
        assert!(first.contains(", dequantize<block_iq2_xxs, float, 4>)"));
        assert!(all.ends_with("KERNEL_ENTRY(touch, touch_params, 64, touch)\n"));
    }

    #[test]
    fn tests_in_cpp_know_sizes_of_types() {
        let files = emulated(&Table::parse(TABLE).unwrap());
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["dequantize.0.cpp", "dequantize.1.cpp", "touch.0.cpp", "entries.cpp"]);
        let row = "{\"dequantize\", \"dequantize_q4_k_bf16_w4\", emu_dequantize_q4_k_bf16_w4, 128, 2048, false, \
                   {{\"ty\", decode<block_q4_K>::kElems, sizeof(block_q4_K)}, {\"out\", 1, sizeof(bf16)}, \
                   {\"warps\", 4, 0}}},";
        assert!(files[3].1.contains(row), "{}", files[3].1);
        assert!(
            files[3].1.contains("{\"touch\", \"touch\", emu_touch, 64, 0, false, {}},"),
            "{}",
            files[3].1
        );
    }

    #[test]
    fn entries_know_their_unit() {
        let text = entries_rs(&Table::parse(TABLE).unwrap());
        let row = "EntryInfo { name: \"dequantize_f32_f16_w4\", family: \"dequantize\", params: \"dequantize_params\", \
                   threads: 128, smem_bytes: 2048, blocks: 0, hot: true, pdl: false, unit: 1 },";
        assert!(text.contains(row), "{text}");
        assert!(text.contains(
            "Instance { ty: GgmlType::Q4_K, out: GgmlType::BF16, warps: 4, entry: \
                               Entry::DequantizeQ4KBf16W4 },"
        ));
        assert!(text.contains("unit: 2 }"));
        assert_eq!(text.matches("impl Params for crate::sys::dequantize_params {").count(), 1);
        assert!(text.contains("pub fn find(ty: GgmlType, out: GgmlType, warps: u32) -> Option<Entry>"));
        assert!(text.contains("pub fn find() -> Option<Entry>"));
    }
}
