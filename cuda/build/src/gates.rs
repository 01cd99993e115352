//! What every compiled kernel must keep to, so that it runs, and runs well, on a GPU that nobody's CI has.

use crate::generate::Unit;
use crate::inspect::Kernel;
use crate::table::{Entry, Family};

/// Registers of an SM, all that a block can get.
pub const REGISTERS: u32 = 65_536;

/// Registers are allotted to warps in units that make this many per thread.
const REGISTER_UNIT: u32 = 8;

/// Parts of an SM that have schedulers and registers of their own.
const QUARTERS: u32 = 4;

/// What sm_120 does not have: warpgroup matrix instructions (sm_90), those of tcgen05 (sm_100).
const NOT_ON_SM120: &[&str] =
    &["HGMMA", "IGMMA", "QGMMA", "BGMMA", "UTCHMMA", "UTCIMMA", "UTCQMMA", "UTCOMMA", "UTCCP"];

/// Every rule that the kernels of a unit break, one line each. `archs`: what its image was built for, PTX aside from which
/// nothing can be read.
pub fn check_unit(unit: &Unit, archs: &[impl AsRef<str>], kernels: &[Kernel]) -> Vec<String> {
    let mut broken = Vec::new();
    for arch in archs.iter().map(AsRef::as_ref).filter(|arch| arch.starts_with("sm_")) {
        for entry in unit.entries {
            match kernels.iter().find(|kernel| kernel.arch == arch && kernel.name == entry.name) {
                Some(kernel) => broken.extend(violations(unit.family, entry, kernel)),
                None => broken.push(format!("{} ({arch}): not in the image", entry.name)),
            }
        }
    }
    for kernel in kernels {
        if !unit.entries.iter().any(|entry| entry.name == kernel.name) {
            broken.push(format!("{} ({}): not in instances.toml", kernel.name, kernel.arch));
        }
    }
    broken
}

/// Every rule that a kernel breaks, one line each.
pub fn violations(family: &Family, entry: &Entry, kernel: &Kernel) -> Vec<String> {
    let mut broken = Vec::new();
    let mut require = |holds: bool, what: String| {
        if !holds {
            broken.push(format!("{} ({}): {what}", entry.name, kernel.arch));
        }
    };
    require(
        warps_by_registers(kernel) >= entry.threads / 32,
        format!(
            "{} registers for each of {} threads: the registers of an SM are enough for {}",
            kernel.registers,
            entry.threads,
            warps_by_registers(kernel) * 32
        ),
    );
    let smem = kernel.smem + entry.smem;
    require(
        smem <= family.max_smem(),
        format!("{smem} bytes of shared memory ({} static) of {}", kernel.smem, family.max_smem()),
    );
    if family.hot {
        require(kernel.spills == 0, format!("hot, but {} bytes of spills", kernel.spills));
        require(kernel.stack == 0, format!("hot, but {} bytes of local memory", kernel.stack));
        let local = kernel.count("LDL") + kernel.count("STL");
        require(local == 0, format!("hot, but {local} instructions on local memory"));
    }
    // griddepcontrol.wait
    require(
        (kernel.count("ACQBULK") > 0) == family.pdl,
        match family.pdl {
            true => "`pdl`, but it never calls griddep_wait()".into(),
            false => "calls griddep_wait(), but is not `pdl`".into(),
        },
    );
    for broken in entry.expect.iter().filter_map(|expect| expect.broken(kernel)) {
        require(false, broken);
    }
    for pattern in &entry.forbid {
        require(kernel.count(pattern) == 0, format!("{} times {pattern}", kernel.count(pattern)));
    }
    if kernel.arch.starts_with("sm_12") {
        require(
            blocks_per_sm(entry, kernel) > 0,
            format!("no block of {} warps fits on an SM with 48", entry.threads / 32),
        );
        for pattern in NOT_ON_SM120 {
            require(kernel.count(pattern) == 0, format!("{pattern}, which this architecture lacks"));
        }
        let multicast = kernel.instructions.keys().find(|opcode| opcode.contains(".MULTICAST"));
        require(multicast.is_none(), format!("{}: no multicast here", multicast.map_or("", |o| o)));
    }
    broken
}

/// Warps whose registers fit into an SM. Each of its quarters has a quarter of them, for whole warps.
fn warps_by_registers(kernel: &Kernel) -> u32 {
    let each = kernel.registers.next_multiple_of(REGISTER_UNIT).max(REGISTER_UNIT) * 32;
    REGISTERS / QUARTERS / each * QUARTERS
}

/// Blocks that fit on an SM at a time, by registers, shared memory and warps.
pub fn blocks_per_sm(entry: &Entry, kernel: &Kernel) -> u32 {
    let (warps, smem, blocks) = match kernel.arch.starts_with("sm_12") {
        true => (48, 102_400, 24),
        false => (64, 233_472, 32),
    };
    let by_registers = warps_by_registers(kernel) / (entry.threads / 32);
    // Each block takes 1 KiB for the system besides.
    let by_smem = smem / (kernel.smem + entry.smem + 1024);
    by_registers.min(by_smem).min(warps / (entry.threads / 32)).min(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Table;
    use crate::inspect::Mix;

    const TABLE: &str = r#"
        [gemm]
        args = []
        hot = true
        expect = ["LDG.128"]
        expect_loop = ["LDG.128 >= 2", "FFMA"]
        forbid = ["ATOM"]
        instances = [{ threads = 256, smem = 100352 }]
    "#;

    fn good() -> Kernel {
        Kernel {
            name: "gemm".into(),
            arch: "sm_120a".into(),
            registers: 249,
            smem: 1024,
            instructions: mix(&[("LDG.E.128", 3), ("FFMA", 1), ("EXIT", 1)]),
            loops: vec![mix(&[("LDG.E.128", 2), ("FFMA", 1)]), mix(&[("LDG.E.128", 1)])],
            ..Kernel::default()
        }
    }

    fn mix(items: &[(&str, u32)]) -> Mix {
        items.iter().map(|(opcode, n)| (opcode.to_string(), *n)).collect()
    }

    fn broken(kernel: Kernel) -> Vec<String> {
        let table = Table::parse(TABLE).unwrap();
        let (family, entry) = table.entries().next().unwrap();
        violations(family, entry, &kernel)
    }

    #[test]
    fn each_gate_closes() {
        assert_eq!(broken(good()), [""; 0]);
        let with = |opcode: &str| {
            let mut kernel = good();
            kernel.instructions.insert(opcode.into(), 1);
            kernel
        };
        let cases = [
            (Kernel { smem: 1025, ..good() }, "101377 bytes of shared memory"),
            (Kernel { stack: 8, ..good() }, "8 bytes of local memory"),
            (Kernel { spills: 4, ..good() }, "4 bytes of spills"),
            (Kernel { instructions: mix(&[("LDG.E.64", 2)]), ..good() }, "no LDG.128"),
            // Enough of them, but not in one loop.
            (
                Kernel { loops: vec![mix(&[("LDG.E.128", 1), ("FFMA", 1)]); 2], ..good() },
                "at most 1 LDG.128 in a loop, 2 are expected",
            ),
            (Kernel { loops: vec![mix(&[("LDG.E.128", 3)])], ..good() }, "no FFMA in a loop"),
            (with("STL.64"), "instructions on local memory"),
            (with("LDL"), "instructions on local memory"),
            (with("ATOM.E.ADD"), "1 times ATOM"),
            (with("HGMMA.64x128x16.F32"), "HGMMA"),
            (with("UTCQMMA"), "UTCQMMA"),
            (with("UBLKCP.S.G.MULTICAST"), "no multicast"),
        ];
        for (kernel, reason) in cases {
            let broken = broken(kernel);
            // What does not fit is told with its cause, and that no block runs.
            let only = broken.len() == 1 || broken.len() == 2 && broken[1].contains("no block of 8 warps");
            assert!(only && broken[0].contains(reason), "{reason}: {broken:?}");
            assert!(broken[0].starts_with("gemm (sm_120a): "));
        }
        let none_fits = "gemm (sm_120a): no block of 8 warps fits on an SM with 48";
        assert_eq!(broken(Kernel { smem: 1025, ..good() })[1], none_fits);
        // 257 registers are rounded up to 264: one warp for each quarter of the registers.
        assert!(broken(Kernel { registers: 257, ..good() })[0].contains("enough for 128"));
        assert_eq!(broken(Kernel { arch: "sm_90a".into(), ..with("HGMMA") }), [""; 0]);
    }

    #[test]
    fn images_hold_what_the_table_says() {
        let table = Table::parse(TABLE).unwrap();
        let unit = &crate::generate::units(&table)[0];
        let check = |archs: &[&str], kernels: &[Kernel]| check_unit(unit, archs, kernels);
        assert_eq!(check(&["sm_120a", "compute_90"], &[good()]), [""; 0]);
        assert_eq!(check(&["sm_120a", "sm_90a"], &[good()]), ["gemm (sm_90a): not in the image"]);
        let other = Kernel { name: "other".into(), ..good() };
        assert_eq!(check(&["sm_120a"], &[good(), other]), ["other (sm_120a): not in instances.toml"]);
        assert!(check(&["sm_120a"], &[Kernel { stack: 8, ..good() }])[0].contains("local memory"));
    }

    #[test]
    fn blocks_are_limited_by_what_runs_out_first() {
        let table = Table::parse("[f]\nargs = ['a: int']\ninstances = [{ a = 1, threads = 256, smem = 64 }]")
            .unwrap();
        let entry = &table.families[0].entries[0];
        let with = |arch: &str, registers, smem| {
            blocks_per_sm(entry, &Kernel { arch: arch.into(), registers, smem, ..Kernel::default() })
        };
        assert_eq!(with("sm_120a", 32, 0), 6); // 48 warps
        assert_eq!(with("sm_90a", 32, 0), 8); // 64 warps
        assert_eq!(with("sm_120a", 65, 0), 3); // 72 registers
        assert_eq!(with("sm_120a", 168, 0), 1); // 3 warps in a quarter, 12 in all
        assert_eq!(with("sm_120a", 32, 50_176 - 64), 2); // with the system's 1 KiB each exactly all
        assert_eq!(with("sm_120a", 32, 50_176 - 63), 1);
    }
}
