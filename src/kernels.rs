//! Which kernels exist: data that the build makes from `cuda/instances.toml`, and the compiled images.
//!
//! The entries are there in every build, since configurations name them and the emulator runs them; the images only with
//! the feature `cuda`. Configuration code finds an entry through the module of its family, by template arguments, so it
//! can only choose what was built.

/// Facts of an [`Entry`].
#[derive(Debug)]
struct EntryInfo {
    name: &'static str,
    family: &'static str,
    params: &'static str,
    threads: u32,
    smem_bytes: u32,
    blocks: u32,
    hot: bool,
    pdl: bool,
    unit: usize,
}

/// A by-value params struct of [`crate::sys`].
pub trait Params: Copy + 'static {
    /// Its name in `params.h`.
    const NAME: &'static str;
}

include!(concat!(env!("OUT_DIR"), "/entries.rs"));
include!(concat!(env!("OUT_DIR"), "/images.rs"));

impl Entry {
    /// All entries, in order of family and table.
    pub const ALL: &'static [Entry] = &ALL;

    const fn info(self) -> &'static EntryInfo {
        &INFO[self as usize]
    }

    /// Symbol in its image.
    pub const fn name(self) -> &'static str {
        self.info().name
    }

    /// Stem of the operation.
    pub const fn family(self) -> &'static str {
        self.info().family
    }

    /// Name of its params struct: [`Params::NAME`].
    pub const fn params(self) -> &'static str {
        self.info().params
    }

    /// Threads per block.
    pub const fn threads(self) -> u32 {
        self.info().threads
    }

    /// Bytes of dynamic shared memory per block.
    pub const fn smem_bytes(self) -> u32 {
        self.info().smem_bytes
    }

    /// Blocks that fit on an SM at a time, where the table asks for it; 0 elsewhere.
    pub const fn blocks(self) -> u32 {
        self.info().blocks
    }

    /// Whether it must do without spills and local memory.
    pub const fn hot(self) -> bool {
        self.info().hot
    }

    /// Programmatic dependent launch: it may start before the kernels issued before it have ended, and waits for them
    /// itself before it touches what they write.
    pub const fn pdl(self) -> bool {
        self.info().pdl
    }

    /// The image that holds it; `None` in builds without kernels, or if its family suits none of the architectures that
    /// were built.
    pub fn image(self) -> Option<&'static Image> {
        IMAGES.get(self.info().unit).filter(|image| !image.archs.is_empty())
    }
}

#[cfg(feature = "cuda")]
impl Entry {
    /// Index of its image in [`Image::ALL`].
    pub(crate) const fn unit(self) -> usize {
        self.info().unit
    }
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A fat binary: code of some entries of one family for several architectures.
#[derive(Debug)]
pub struct Image {
    /// `<family>.<part>`.
    pub unit: &'static str,
    /// What is in it: `sm_120a` runs on that architecture only, `compute_90` (PTX) on any from it on.
    pub archs: &'static [&'static str],
    /// The file, aligned to 16.
    pub bytes: &'static [u8],
}

impl Image {
    /// All images, one per unit; none in builds without kernels.
    pub const ALL: &'static [Image] = IMAGES;

    /// The nvcc that made them, by version; `None` in builds without kernels.
    pub const NVCC: Option<&'static str> = NVCC;

    /// Whether a GPU of this compute capability can run it.
    pub fn runs_on(&self, capability: (u32, u32)) -> bool {
        self.archs.iter().any(|arch| arch_runs_on(arch, capability))
    }
}

/// Machine code with the suffix `a` runs on that capability alone, with `f` or none on later ones of the same major
/// version too; PTX without suffix is compiled by the driver for any later one.
fn arch_runs_on(arch: &str, (major, minor): (u32, u32)) -> bool {
    let (ptx, number) = match arch.split_once('_') {
        Some(("compute", number)) => (true, number),
        Some((_, number)) => (false, number),
        None => return false,
    };
    let digits = number.trim_end_matches(['a', 'f']);
    let Ok(of) = digits.parse::<u32>() else { return false };
    let of = (of / 10, of % 10);
    match &number[digits.len()..] {
        "a" => of == (major, minor),
        "" if ptx => of <= (major, minor),
        _ => of.0 == major && of.1 <= minor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_their_arguments() {
        for (i, entry) in Entry::ALL.iter().enumerate() {
            assert_eq!(*entry as usize, i);
            assert!(entry.name().starts_with(entry.family()));
        }
        for instance in copy::INSTANCES {
            assert_eq!(copy::find(instance.unroll, instance.warps), Some(instance.entry));
            assert_eq!(instance.entry.family(), "copy");
            assert_eq!(instance.entry.threads(), 32 * instance.warps);
        }
        assert_eq!(copy::find(3, 8), None);
    }

    #[test]
    fn architectures_run_where_they_can() {
        type Capabilities = &'static [(u32, u32)];
        let runs: [(&str, Capabilities, Capabilities); 6] = [
            ("sm_90a", &[(9, 0)], &[(8, 9), (10, 0), (12, 0)]),
            ("sm_120a", &[(12, 0)], &[(12, 1), (9, 0)]),
            ("sm_120f", &[(12, 0), (12, 1)], &[(10, 0), (11, 0)]),
            ("sm_90", &[(9, 0)], &[(8, 0), (10, 0)]),
            ("compute_90", &[(9, 0), (10, 3), (12, 0)], &[(8, 9)]),
            ("compute_90a", &[(9, 0)], &[(10, 0)]),
        ];
        for (arch, there, not_there) in runs {
            for capability in there {
                assert!(arch_runs_on(arch, *capability), "{arch} {capability:?}");
            }
            for capability in not_there {
                assert!(!arch_runs_on(arch, *capability), "{arch} {capability:?}");
            }
        }
    }

    #[test]
    fn images_are_there_with_the_feature_alone() {
        assert_eq!(Image::ALL.is_empty(), cfg!(not(feature = "cuda")));
        assert_eq!(Image::NVCC.is_none(), Image::ALL.is_empty());
        for entry in Entry::ALL {
            let Some(image) = entry.image() else { continue };
            assert_eq!(image.unit.split('.').next(), Some(entry.family()));
            assert!(image.bytes.as_ptr().addr().is_multiple_of(16));
            // The magic number of a fat binary.
            assert_eq!(image.bytes[..4], 0xba55_ed50_u32.to_le_bytes());
        }
    }
}
