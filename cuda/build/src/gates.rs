//! What every compiled kernel must keep to, so that it runs, and runs well, on a GPU that nobody's CI has.

use crate::generate::Unit;
use crate::inspect::Kernel;
use crate::table::{Entry, Family};

/// Registers of an SM, all that a block can get.
pub const REGISTERS: u32 = 65_536;

/// Registers are allotted to warps in units that make this many per thread.
const REGISTER_UNIT: u32 = 8;

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
    let registers = kernel.registers.next_multiple_of(REGISTER_UNIT) * entry.threads;
    require(
        registers <= REGISTERS,
        format!(
            "{} registers for each of {} threads: {registers} of {REGISTERS}",
            kernel.registers, entry.threads
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
    for pattern in &entry.expect {
        require(kernel.count(pattern) > 0, format!("no {pattern}"));
    }
    for pattern in &entry.forbid {
        require(kernel.count(pattern) == 0, format!("{} times {pattern}", kernel.count(pattern)));
    }
    if kernel.arch.starts_with("sm_12") {
        for pattern in NOT_ON_SM120 {
            require(kernel.count(pattern) == 0, format!("{pattern}, which this architecture lacks"));
        }
        let multicast = kernel.instructions.keys().find(|opcode| opcode.contains(".MULTICAST"));
        require(multicast.is_none(), format!("{}: no multicast here", multicast.map_or("", |o| o)));
    }
    broken
}

/// Blocks that fit on an SM at a time, by registers, shared memory and warps.
pub fn blocks_per_sm(entry: &Entry, kernel: &Kernel) -> u32 {
    let (warps, smem) = match kernel.arch.starts_with("sm_12") {
        true => (48, 102_400),
        false => (64, 233_472),
    };
    let by_registers = REGISTERS / (kernel.registers.next_multiple_of(REGISTER_UNIT).max(1) * entry.threads);
    // Each block takes 1 KiB for the system besides.
    let by_smem = smem / (kernel.smem + entry.smem + 1024);
    by_registers.min(by_smem).min(warps / (entry.threads / 32)).min(32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Table;

    const TABLE: &str = r#"
        [gemm]
        args = []
        hot = true
        expect = ["LDG.128"]
        forbid = ["ATOM"]
        instances = [{ threads = 256, smem = 100352 }]
    "#;

    fn good() -> Kernel {
        Kernel {
            name: "gemm".into(),
            arch: "sm_120a".into(),
            registers: 249,
            smem: 1024,
            instructions: [("LDG.E.128".to_string(), 2), ("EXIT".to_string(), 1)].into(),
            ..Kernel::default()
        }
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
            (Kernel { instructions: [("LDG.E.64".to_string(), 2)].into(), ..good() }, "no LDG.128"),
            (with("STL.64"), "instructions on local memory"),
            (with("LDL"), "instructions on local memory"),
            (with("ATOM.E.ADD"), "1 times ATOM"),
            (with("HGMMA.64x128x16.F32"), "HGMMA"),
            (with("UTCQMMA"), "UTCQMMA"),
            (with("UBLKCP.S.G.MULTICAST"), "no multicast"),
        ];
        for (kernel, reason) in cases {
            let broken = broken(kernel);
            assert!(broken.len() == 1 && broken[0].contains(reason), "{reason}: {broken:?}");
            assert!(broken[0].starts_with("gemm (sm_120a): "));
        }
        // 257 registers are rounded up to 264, times 256 threads.
        assert!(broken(Kernel { registers: 257, ..good() })[0].contains("67584 of 65536"));
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
        assert_eq!(with("sm_120a", 32, 50_176 - 64), 2); // with the system's 1 KiB each exactly all
        assert_eq!(with("sm_120a", 32, 50_176 - 63), 1);
    }
}
