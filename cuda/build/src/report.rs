//! `docs/kernels/resources.md`: what each kernel takes, so that a change of it shows in review.

use std::fmt::Write;

use crate::gates::blocks_per_sm;
use crate::inspect::Kernel;
use crate::table::Table;

/// Instructions worth a look: memory, matrix units, dot products, exchange between lanes and warps. With their widths.
const SHOWN: &[&str] = &[
    "LDG", "STG", "LDS", "STS", "LDL", "STL", "LDSM", "STSM", "LDGSTS", "UBLKCP", "UTMALDG", "ATOM", "ATOMG",
    "ATOMS", "RED", "REDG", "HMMA", "IMMA", "QMMA", "DMMA", "IDP", "SHFL", "REDUX", "VOTE", "BAR", "SYNCS",
    "MUFU", "CALL",
];

/// The page. `kernels` in any order, `made_with` a line that names the tools.
pub fn resources_md(table: &Table, kernels: &[Kernel], made_with: &str) -> String {
    let mut page = format!(
        "# Resources of the kernels\n\nWritten by `cargo run -p glm5-kernels`; CI compares. Made with {made_with}.\n\n\
         Registers are per thread; shared memory is static + dynamic, bytes per block; blocks are those that fit on an SM at \
         a time; local is stack and spills, bytes per thread. Instructions are counted in the code, not as executed; `all` \
         has those that are not listed too.\n"
    );
    for family in &table.families {
        _ = write!(
            page,
            "\n## {}\n\n| kernel | arch | threads | registers | shared | blocks | local | instructions |\n\
             |---|---|--:|--:|--:|--:|--:|---|\n",
            family.name
        );
        for entry in &family.entries {
            let mut rows: Vec<_> = kernels.iter().filter(|kernel| kernel.name == entry.name).collect();
            rows.sort_by_key(|kernel| (kernel.arch.len(), &kernel.arch));
            for kernel in rows {
                _ = writeln!(
                    page,
                    "| {} | {} | {} | {} | {} + {} | {} | {} | {} |",
                    entry.name,
                    kernel.arch,
                    entry.threads,
                    kernel.registers,
                    kernel.smem,
                    entry.smem,
                    blocks_per_sm(entry, kernel),
                    kernel.stack + kernel.spills,
                    mix(kernel)
                );
            }
        }
    }
    page
}

/// `LDG.128 8, BAR 1, all 96`.
fn mix(kernel: &Kernel) -> String {
    let mut counts: Vec<(String, u32)> = Vec::new();
    for shown in SHOWN {
        for (opcode, n) in
            kernel.instructions.iter().filter(|(opcode, _)| opcode.split('.').next() == Some(shown))
        {
            let width = opcode.split('.').find(|part| ["64", "128"].contains(part));
            let name = width.map_or(shown.to_string(), |width| format!("{shown}.{width}"));
            match counts.iter_mut().find(|(other, _)| *other == name) {
                Some((_, count)) => *count += n,
                None => counts.push((name, *n)),
            }
        }
    }
    let all = kernel.instructions.values().sum();
    counts.push(("all".into(), all));
    counts.iter().map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_the_table() {
        let table =
            Table::parse("[f]\nargs = ['a: int']\ninstances = [{ a = [1, 2], threads = 64, smem = 512 }]")
                .unwrap();
        let instructions =
            [("LDG.E.128", 3), ("LDG.E.128.CONSTANT", 1), ("LDG.E", 2), ("IADD3", 5), ("BAR.SYNC", 1)];
        let kernel = |name: &str, arch: &str| Kernel {
            name: name.into(),
            arch: arch.into(),
            registers: 40,
            instructions: instructions.iter().map(|(o, n)| (o.to_string(), *n)).collect(),
            ..Kernel::default()
        };
        let page = resources_md(
            &table,
            &[kernel("f_a2", "sm_90a"), kernel("f_a1", "sm_120a"), kernel("f_a1", "sm_90a")],
            "x",
        );
        let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| f_")).collect();
        let row = |name: &str, blocks| {
            format!("| {name} | 64 | 40 | 0 + 512 | {blocks} | 0 | LDG 2, LDG.128 4, BAR 1, all 12 |")
        };
        assert_eq!(rows, [row("f_a1 | sm_90a", 24), row("f_a1 | sm_120a", 24), row("f_a2 | sm_90a", 24)]);
    }
}
