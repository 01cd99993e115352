//! Which kernel multiplies matrices in tiles by many tokens, and on how many blocks of threads.

use super::config::blocks_on_sm;
use crate::cuda::Properties;
use crate::error::{Error, Result};
use crate::kernels::{self, Entry};
use crate::quant::GgmlType;
use crate::quant::tiles::{TILE_COLS, TILE_ROWS};
use crate::tensor::{ActivationFormat, TILE_TOKENS};

/// Linear layers of one launch: matrices of one type in tiles, on one input, or one matrix for each part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmProblem<'a> {
    /// Type of the weights.
    pub ty: GgmlType,
    /// Of the activations.
    pub format: ActivationFormat,
    /// Tokens.
    pub m: usize,
    /// Outputs of each matrix; of gate and up those of one.
    pub rows: &'a [usize],
    /// Inputs.
    pub k: usize,
    /// Matrices in each stack.
    pub slabs: usize,
    /// Gate and up, multiplied.
    pub glu: bool,
}

/// A launch for any number of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GemmConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads, all of them there from the beginning.
    pub grid: u32,
    /// Whether they share tiles of the output, so that all have as much to do. What they share is summed up at the end.
    pub cut: bool,
}

/// An instance of `linear_gemm` or `linear_gemm_wide`.
#[derive(Debug, Clone, Copy)]
struct Kernel {
    entry: Entry,
    ty: GgmlType,
    act: u32,
    glu: u32,
    /// Rows and tokens of a tile of the output.
    rows: usize,
    tokens: usize,
    blocks: u32,
    wide: bool,
}

fn all() -> impl Iterator<Item = Kernel> {
    macro_rules! kernels {
        ($instances:expr, $wide:expr) => {
            $instances.iter().map(|i| Kernel {
                entry: i.entry,
                ty: i.ty,
                act: i.act,
                glu: i.glu,
                rows: TILE_ROWS * (i.rows * i.row_warps) as usize,
                tokens: TILE_TOKENS * (i.tokens * i.token_warps) as usize,
                blocks: i.blocks,
                wide: $wide,
            })
        };
    }
    kernels!(kernels::linear_gemm::INSTANCES, false)
        .chain(kernels!(kernels::linear_gemm_wide::INSTANCES, true))
}

impl Kernel {
    /// Whether this GPU can run it: wide ones need the shared memory and are built for sm_90 only.
    fn runs_on(&self, gpu: &Properties) -> bool {
        let built = !self.wide || gpu.compute_capability == (9, 0);
        built && self.entry.smem_bytes() <= gpu.smem_per_block
    }

    /// Operations of an SM in a nanosecond, as measured on an H200 with all SMs busy: the more tokens share what is decoded, the
    /// more. (Short of that because tokens are not there or memory binds, all are alike.)
    fn rate(&self) -> f64 {
        match self.tokens {
            0..=8 => 600.0,
            9..=16 => 950.0,
            17..=32 => 1400.0,
            33..=64 => 2000.0,
            _ => 2600.0,
        }
    }

    fn resident(&self, gpu: &Properties) -> u32 {
        gpu.sms.max(1) * blocks_on_sm(self.entry, self.blocks, gpu.smem_per_sm)
    }
}

impl GemmConfig {
    /// For this GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no kernel for the type, [`Error::Capacity`] for more steps than a launch has.
    pub fn pick(problem: GemmProblem<'_>, gpu: &Properties) -> Result<Self> {
        let what = || format!("linear of {} on {} activations", problem.ty, problem.format);
        let best = Self::suitable(problem, gpu).into_iter().next();
        let (_, best) = best.ok_or_else(|| Error::unsupported(what(), "no kernel was built for it"))?;
        Self::with(best, problem, gpu)
    }

    /// Kernels that could be picked, the best first.
    pub fn candidates(problem: GemmProblem<'_>, gpu: &Properties) -> Vec<Entry> {
        Self::suitable(problem, gpu).into_iter().map(|(_, kernel)| kernel.entry).collect()
    }

    /// With this kernel.
    ///
    /// # Errors
    /// As [`GemmConfig::pick`]; [`Error::Unsupported`] if it is for other problems.
    pub fn of(entry: Entry, problem: GemmProblem<'_>, gpu: &Properties) -> Result<Self> {
        let found = Self::suitable(problem, gpu).into_iter().find(|(_, kernel)| kernel.entry == entry);
        let none = || Error::unsupported(format!("{entry} for {problem:?}"), "it multiplies something else");
        Self::with(found.ok_or_else(none)?.1, problem, gpu)
    }

    /// By the time that they take, the fastest first.
    fn suitable(problem: GemmProblem<'_>, gpu: &Properties) -> Vec<(f64, Kernel)> {
        let GemmProblem { ty, format, m, glu, .. } = problem;
        let fits = |k: &Kernel| k.ty == ty && k.act == format.bits() && k.glu == u32::from(glu);
        // Tiles of 8 tokens are for no more: they decode each weight for as little as that.
        let fitting = all().filter(|k| fits(k) && k.runs_on(gpu) && k.tokens >= m.min(16));
        let mut kernels: Vec<_> = fitting.map(|k| (Plan::new(&k, problem, gpu).time(&k, gpu), k)).collect();
        kernels.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        kernels
    }

    fn with(kernel: Kernel, problem: GemmProblem<'_>, gpu: &Properties) -> Result<Self> {
        let Plan { tiles, k_tiles, grid, cut } = Plan::new(&kernel, problem, gpu);
        let steps = tiles.saturating_mul(k_tiles);
        let capacity = || Error::Capacity {
            what: "steps of a launch".into(),
            needed: steps as u64,
            available: i32::MAX as u64,
        };
        i32::try_from(steps).map_err(|_| capacity())?;
        Ok(GemmConfig { entry: kernel.entry, grid, cut })
    }

    /// Whether rows of `k` are long enough for sums to be cut.
    pub fn may_cut(k: usize) -> bool {
        k.div_ceil(TILE_COLS) >= 2 * MIN_STEPS
    }

    /// Values that the partial sums of a launch take, and blocks of threads, of the largest launch on this GPU.
    pub fn scratch(gpu: &Properties) -> [usize; 2] {
        let sizes = all().filter(|k| k.runs_on(gpu)).map(|k| {
            let blocks = k.resident(gpu) as usize;
            [blocks * 2 * k.rows * k.tokens, blocks]
        });
        sizes.fold([0, 0], |[a, b], [c, d]| [a.max(c), b.max(d)])
    }
}

/// How the steps of a problem are dealt out.
struct Plan {
    /// Of the output.
    tiles: usize,
    /// Steps of each.
    k_tiles: usize,
    /// Blocks of threads.
    grid: u32,
    cut: bool,
}

impl Plan {
    fn new(kernel: &Kernel, problem: GemmProblem<'_>, gpu: &Properties) -> Self {
        let GemmProblem { m, rows, k, slabs, glu, .. } = problem;
        let tile_rows = kernel.rows / (1 + usize::from(glu));
        let down: usize = rows.iter().map(|n| n.div_ceil(tile_rows)).sum();
        let tiles = down.saturating_mul(m.div_ceil(kernel.tokens)).saturating_mul(slabs);
        let (k_tiles, resident) = (k.div_ceil(TILE_COLS), kernel.resident(gpu) as usize);
        // Few tiles are cut into equal parts, others wherever a share ends, unless whole ones keep nearly all of the GPU busy.
        let parts = (resident / tiles.max(1)).min(k_tiles / MIN_STEPS);
        let rounds = tiles.div_ceil(resident).max(1) as f64;
        let whole = tiles as f64 / (rounds * resident as f64);
        let enough = if rounds > 1.0 { WHOLE_TILES } else { ONE_ROUND };
        let (grid, cut) = if !GemmConfig::may_cut(k) || whole >= enough {
            (resident.min(tiles), false)
        } else if parts == k_tiles / MIN_STEPS
            || (parts > 1 && (tiles * parts) as f64 >= ONE_ROUND * resident as f64)
        {
            (tiles * parts, true)
        } else {
            (resident, true)
        };
        Plan { tiles, k_tiles, grid: grid as u32, cut }
    }

    /// Nanoseconds, an estimate: those of the arithmetic of the SM that has most to do, and those until parts of a tile are added up.
    fn time(&self, kernel: &Kernel, gpu: &Properties) -> f64 {
        let Plan { tiles, k_tiles, grid, cut } = *self;
        let grid = f64::from(grid.max(1));
        let on_sm = (grid / f64::from(gpu.sms.max(1))).ceil();
        let (tiles, k_tiles) = (tiles as f64, k_tiles as f64);
        let steps = if cut { (tiles * k_tiles / grid).ceil() } else { (tiles / grid).ceil() * k_tiles };
        let step = (2 * TILE_COLS * kernel.rows * kernel.tokens) as f64 / kernel.rate();
        let parts = if cut { (grid / tiles).max(1.0) } else { 0.0 };
        steps * on_sm * step + parts * ADD_PART
    }
}

/// Steps of 256 columns that are worth a block of threads of its own.
const MIN_STEPS: usize = 4;

/// Share of the GPU that several rounds of whole tiles must keep busy; with less they are cut.
const WHOLE_TILES: f64 = 0.98;

/// The same for one round, of whole tiles or of equal parts: without pieces of two tiles in a share.
const ONE_ROUND: f64 = 0.9;

/// Nanoseconds for each part of a tile that others sum up; H200.
const ADD_PART: f64 = 500.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(capability: (u32, u32), sms: u32, smem_per_block: u32, smem_per_sm: u32) -> Properties {
        Properties {
            name: "test".into(),
            compute_capability: capability,
            sms,
            memory: 1 << 30,
            l2: 1 << 20,
            smem_per_block,
            smem_per_sm,
            driver: (13, 0),
        }
    }

    fn h200() -> Properties {
        gpu((9, 0), 132, 227 << 10, 228 << 10)
    }

    fn rtx_pro_6000() -> Properties {
        gpu((12, 0), 188, 99 << 10, 100 << 10)
    }

    const Q4_K: GemmProblem<'static> = GemmProblem {
        ty: GgmlType::Q4_K,
        format: ActivationFormat::F16,
        m: 64,
        rows: &[24576],
        k: 6144,
        slabs: 1,
        glu: false,
    };

    #[test]
    fn tokens_take_tiles_that_suit_them() {
        let tokens = |m, rows, gpu: &Properties| {
            let entry = GemmConfig::pick(GemmProblem { m, rows, ..Q4_K }, gpu).unwrap().entry;
            all().find(|k| k.entry == entry).unwrap().tokens
        };
        let many = [1, 8, 9, 16, 17, 32, 64, 100, 8192].map(|m| tokens(m, &[24576], &h200()));
        assert_eq!(many, [8, 8, 16, 16, 32, 32, 64, 128, 128]);
        // Few rows: smaller tiles, so that all SMs have some.
        assert_eq!([64, 2048].map(|m| tokens(m, &[2048], &h200())), [32, 128]);
        assert_eq!([9, 17, 33, 8192].map(|m| tokens(m, &[24576], &rtx_pro_6000())), [16, 32, 32, 32]);
        // Limits of sm_120 on another GPU.
        assert_eq!(tokens(2048, &[24576], &gpu((9, 0), 132, 99 << 10, 228 << 10)), 32);
    }

    #[test]
    fn few_tiles_are_cut_into_equal_parts() {
        let config = GemmConfig::pick(GemmProblem { m: 16, rows: &[2048], ..Q4_K }, &h200()).unwrap();
        assert_eq!((config.grid, config.cut), (192, true));
        // Short rows are not worth it, and whole tiles that are nearly even are not cut.
        let short = GemmConfig::pick(GemmProblem { m: 16, rows: &[2048], k: 512, ..Q4_K }, &h200()).unwrap();
        assert!(!short.cut);
        let even = GemmConfig::pick(GemmProblem { m: 1024, rows: &[132 * 128], ..Q4_K }, &h200()).unwrap();
        assert_eq!((even.grid, even.cut), (132, false));
    }

    #[test]
    fn every_type_has_kernels_of_both_formats_on_every_gpu() {
        for ty in crate::quant::tiles::TYPES {
            for format in [ActivationFormat::Int8, ActivationFormat::F16] {
                for gpu in [h200(), rtx_pro_6000()] {
                    let problem = GemmProblem { ty, format, m: 100, ..Q4_K };
                    let config = GemmConfig::pick(problem, &gpu).unwrap();
                    assert_eq!(GemmConfig::of(config.entry, problem, &gpu).unwrap(), config);
                    assert_eq!(GemmConfig::candidates(problem, &gpu)[0], config.entry);
                    let [_, blocks] = GemmConfig::scratch(&gpu);
                    assert!(config.grid as usize <= blocks && config.grid >= gpu.sms, "{config:?}");
                }
            }
        }
        let none = GemmProblem { ty: GgmlType::Q3_K, ..Q4_K };
        assert!(matches!(GemmConfig::pick(none, &h200()), Err(Error::Unsupported { .. })));
        assert!(GemmConfig::candidates(none, &h200()).is_empty());
    }

    #[test]
    fn a_launch_has_as_many_steps_as_fit() {
        let huge = GemmProblem { m: usize::MAX, ..Q4_K };
        assert!(matches!(GemmConfig::pick(huge, &h200()), Err(Error::Capacity { .. })));
        // Never more blocks of threads than steps.
        let small = GemmProblem { m: 8, rows: &[16], k: 256, ..Q4_K };
        assert_eq!(GemmConfig::pick(small, &h200()).unwrap().grid, 1);
        let groups = GemmProblem { m: 8, rows: &[16, 1, 16], k: 256, slabs: 5, ..Q4_K };
        assert_eq!(GemmConfig::pick(groups, &h200()).unwrap().grid, 15);
    }
}
