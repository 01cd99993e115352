//! What the compiler made: registers, memory and instructions of each kernel, for each architecture.
//!
//! Resources come from the report of ptxas, which lies beside the image; instructions from cuobjdump, which reads the image.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::loops::{Step, loops};
use crate::toolkit::run;
use crate::{Result, Toolkit};

/// One kernel for one architecture.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kernel {
    /// Its entry.
    pub name: String,
    /// `sm_120a`.
    pub arch: String,
    /// Per thread.
    pub registers: u32,
    /// Static shared memory, bytes.
    pub smem: u32,
    /// Stack frame: local memory, bytes per thread.
    pub stack: u32,
    /// Bytes of spills, stored and loaded.
    pub spills: u32,
    /// How often each opcode occurs, modifiers included: `LDG.E.128`.
    pub instructions: Mix,
    /// The same for each loop, those within it included.
    pub loops: Vec<Mix>,
}

/// How often each opcode occurs.
pub type Mix = BTreeMap<String, u32>;

impl Kernel {
    /// How many of its instructions match ([`matches()`]).
    pub fn count(&self, pattern: &str) -> u32 {
        count(&self.instructions, pattern)
    }

    /// How many match in that loop which has most of them.
    pub fn most_in_a_loop(&self, pattern: &str) -> u32 {
        self.loops.iter().map(|mix| count(mix, pattern)).max().unwrap_or(0)
    }
}

fn count(mix: &Mix, pattern: &str) -> u32 {
    mix.iter().filter(|(opcode, _)| matches(pattern, opcode)).map(|(_, n)| n).sum()
}

/// Whether `opcode` is the instruction of `pattern` and has all of its modifiers, in any place: `LDG.128` matches
/// `LDG.E.128.CONSTANT`.
pub fn matches(pattern: &str, opcode: &str) -> bool {
    let mut wanted = pattern.split('.');
    let mut parts = opcode.split('.');
    wanted.next() == parts.next() && wanted.all(|modifier| parts.clone().any(|part| part == modifier))
}

/// The kernels of a unit that [`crate::compile::compile`] left in `out`.
///
/// # Errors
/// Missing files; a cuobjdump that fails; a report and an image that do not hold the same kernels.
pub fn inspect(toolkit: &Toolkit, out: &Path, unit: &str) -> Result<Vec<Kernel>> {
    let report = out.join(format!("{unit}.ptxas.txt"));
    let report = fs::read_to_string(&report).map_err(|e| format!("{}: {e}", report.display()))?;
    let sass = run(Command::new(toolkit.cuobjdump()?).arg("-sass").arg(out.join(format!("{unit}.fatbin"))))?;
    let mut kernels = parse_report(&report);
    let mut codes = parse_sass(&sass);
    for kernel in &mut kernels {
        let code = codes
            .remove(&(kernel.arch.clone(), kernel.name.clone()))
            .ok_or_else(|| format!("{unit}: no {} in the code for {}", kernel.name, kernel.arch))?;
        kernel.instructions = mix(code.iter().map(|(_, opcode)| *opcode));
        let steps: Vec<_> = code.iter().map(|(step, _)| step.clone()).collect();
        let mixes = loops(&steps).into_iter().map(|places| mix(places.into_iter().map(|i| code[i].1)));
        kernel.loops = mixes.collect();
    }
    Ok(kernels)
}

fn parse_report(report: &str) -> Vec<Kernel> {
    let mut kernels: Vec<Kernel> = Vec::new();
    // Between an entry's first line and its `Used` line; functions that were not inlined have no such lines.
    let mut open: Option<Kernel> = None;
    for line in report.lines() {
        if let Some(rest) = line.split_once("Compiling entry function '").map(|(_, rest)| rest) {
            let mut quoted = rest.split('\'');
            let (name, arch) = (quoted.next().unwrap_or(""), quoted.nth(1).unwrap_or(""));
            open = Some(Kernel { name: name.into(), arch: arch.into(), ..Kernel::default() });
        } else if let Some(kernel) = &mut open {
            kernel.stack += number_before(line, " bytes stack frame");
            kernel.spills +=
                number_before(line, " bytes spill stores") + number_before(line, " bytes spill loads");
            if line.contains(" registers") {
                kernel.registers = number_before(line, " registers");
                kernel.smem = number_before(line, " bytes smem");
                kernels.extend(open.take());
            }
        }
    }
    kernels
}

/// The number right before `unit`; 0 if there is none.
fn number_before(line: &str, unit: &str) -> u32 {
    let Some((before, _)) = line.split_once(unit) else { return 0 };
    let digits = before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    before[digits..].parse().unwrap_or(0)
}

fn mix<'a>(opcodes: impl Iterator<Item = &'a str>) -> Mix {
    opcodes.fold(Mix::new(), |mut mix, opcode| {
        *mix.entry(opcode.into()).or_default() += 1;
        mix
    })
}

/// Instructions in order, by architecture and function.
type Codes<'a> = BTreeMap<(String, String), Vec<(Step, &'a str)>>;

fn parse_sass(sass: &str) -> Codes<'_> {
    let mut codes = Codes::new();
    let (mut arch, mut function) = (String::new(), String::new());
    for line in sass.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("arch = ") {
            arch = name.into();
        } else if let Some(name) = line.strip_prefix("Function : ") {
            function = name.into();
            codes.entry((arch.clone(), function.clone())).or_default();
        } else if let Some(instruction) = instruction(line) {
            codes.entry((arch.clone(), function.clone())).or_default().push(instruction);
        }
    }
    codes
}

/// `/*0170*/  @!P0 LDG.E.128 R4, desc[UR6][R24.64] ;  /* 0x... */`: the opcode, and where it goes. The second line of an
/// instruction has only its encoding; NOPs fill up the last line of code.
fn instruction(line: &str) -> Option<(Step, &str)> {
    let (address, rest) = line.strip_prefix("/*")?.split_once("*/")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let text = rest.split_once(';')?.0.trim();
    let (predicated, text) = match text.strip_prefix('@') {
        Some(text) => (true, text.split_once(' ')?.1.trim_start()),
        None => (false, text),
    };
    let (opcode, operands) = text.split_once(' ').unwrap_or((text, ""));
    (opcode != "NOP").then(|| (Step::new(address, predicated, opcode, operands), opcode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_of_ptxas_is_read() {
        let report = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'gemm_tm64' for 'sm_90a'
ptxas info    : Function properties for gemm_tm64
    48 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 48 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compile time = 21.452 ms
ptxas info    : Function properties for helper
    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Compiling entry function 'copy' for 'sm_120a'
ptxas info    : Function properties for copy
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 16 registers, used 0 barriers
";
        let kernel =
            |name: &str, arch: &str| Kernel { name: name.into(), arch: arch.into(), ..Kernel::default() };
        let want = [
            Kernel { registers: 168, smem: 1024, stack: 48, spills: 44, ..kernel("gemm_tm64", "sm_90a") },
            Kernel { registers: 16, ..kernel("copy", "sm_120a") },
        ];
        assert_eq!(parse_report(report), want);
    }

    #[test]
    fn instructions_are_counted_per_kernel_and_architecture() {
        let sass = "\
Fatbin elf code:
================
arch = sm_90a
code version = [1,8]
	code for sm_90a
		Function : copy
	.headerflags	@\"EF_CUDA_SM90\"
        /*0000*/                   LDC R1, c[0x0][0x28] ;    /* 0x00000a00ff017b82 */
                                                             /* 0x000fe20000000800 */
        /*0170*/              @!P0 LDG.E.128 R4, desc[UR6][R24.64] ;                  /* 0x0000000618047981 */
        /*0180*/                   LDG.E.128 R8, desc[UR6][R24.64+0x1000] ;           /* 0x0010000618087981 */
        /*0190*/              @!P1 BRA 0x180 ;               /* 0x000000000000794d */
        /*01a0*/                   EXIT ;                    /* 0x000000000000794d */
        /*01b0*/                   NOP;                      /* 0x0000000000007918 */
		..........
		Function : empty

Fatbin elf code:
arch = sm_120a
		Function : copy
        /*0000*/                   EXIT ;                    /* 0x000000000000794d */
";
        let codes = parse_sass(sass);
        let mix = |arch: &str, name: &str| {
            mix(codes[&(arch.into(), name.into())].iter().map(|(_, opcode)| *opcode))
        };
        let of = |items: &[(&str, u32)]| items.iter().map(|(o, n)| (o.to_string(), *n)).collect::<Mix>();
        assert_eq!(mix("sm_90a", "copy"), of(&[("LDC", 1), ("LDG.E.128", 2), ("BRA", 1), ("EXIT", 1)]));
        assert_eq!(mix("sm_90a", "empty"), of(&[]));
        assert_eq!(mix("sm_120a", "copy"), of(&[("EXIT", 1)]));
        assert_eq!(codes.len(), 3);
        let code = &codes[&("sm_90a".to_string(), "copy".to_string())];
        let steps: Vec<_> = code.iter().map(|(step, _)| step.clone()).collect();
        assert_eq!(loops(&steps), [[2, 3]]);
    }

    #[test]
    fn patterns_name_an_instruction_and_modifiers() {
        for (pattern, opcode, yes) in [
            ("LDG", "LDG", true),
            ("LDG", "LDG.E.128", true),
            ("LDG", "LDGSTS.E", false),
            ("LDG.128", "LDG.E.EF.128.CONSTANT", true),
            ("LDG.128", "LDG.E.64", false),
            ("LDG.E.128", "LDG.E.128", true),
            ("IMMA.S8", "IMMA.16832.S8.S8", true),
            ("RED", "REDG.E.ADD", false),
        ] {
            assert_eq!(matches(pattern, opcode), yes, "{pattern} {opcode}");
        }
    }
}
