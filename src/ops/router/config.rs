//! Which kernels find the experts of tokens.

use crate::error::{Error, Result};
use crate::kernels::{self, Entry};

/// Experts of a token, at most.
pub const MAX_EXPERTS_PER_TOK: usize = 32;

/// Tokens up to which one kernel computes logits and chooses. More have their logits from a linear layer, which reads the weights once.
pub const FUSED_TOKENS: usize = 16;

/// Of a block of threads that computes logits (`ROUTER_TOKENS` of `cuda/include/params/router.h`).
pub(crate) const TOKENS: usize = 4;

/// Tokens up to which blocks of threads have two experts, not four. Measured on an H200.
const FEW_TOKENS: usize = 4;

/// A router on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterProblem {
    /// Tokens.
    pub m: usize,
    /// Experts.
    pub n_experts: usize,
    /// Experts of a token.
    pub n_experts_per_tok: usize,
    /// Whether the weights are F32 in rows that can be loaded by 16 bytes.
    pub is_float: bool,
}

/// A launch that chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouterConfig {
    /// The kernel.
    pub entry: Entry,
    /// Blocks of threads.
    pub grid: u32,
    /// Whether it computes the logits, too.
    pub fused: bool,
}

impl RouterConfig {
    /// The kernel for a problem.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for more experts, in all or of a token, than kernels have room for; [`Error::Capacity`] for more
    /// tokens than a grid has.
    pub fn pick(problem: RouterProblem) -> Result<Self> {
        let RouterProblem { m, n_experts, n_experts_per_tok, is_float } = problem;
        let fused = is_float && m <= FUSED_TOKENS;
        let found = match fused {
            true => kernels::router::INSTANCES
                .iter()
                .find(|i| n_experts <= i.experts as usize && (m <= FEW_TOKENS) == (i.rows == 2))
                .map(|i| (i.entry, n_experts.div_ceil(i.rows as usize) * m.div_ceil(TOKENS))),
            false => kernels::router_choose::INSTANCES
                .iter()
                .find(|i| n_experts <= i.experts as usize)
                .map(|i| (i.entry, m.div_ceil(i.warps as usize))),
        };
        let (entry, grid) = found.filter(|_| n_experts_per_tok <= MAX_EXPERTS_PER_TOK).ok_or_else(|| {
            let most = kernels::router_choose::INSTANCES.iter().map(|i| i.experts).max().unwrap_or(0);
            Error::unsupported(
                format!("a router to {n_experts_per_tok} of {n_experts} experts"),
                format!("kernels have room for {MAX_EXPERTS_PER_TOK} of {most}"),
            )
        })?;
        let what = || Error::Capacity {
            what: "blocks of a grid".into(),
            needed: grid as u64,
            available: u32::MAX.into(),
        };
        Ok(RouterConfig { entry, grid: u32::try_from(grid).map_err(|_| what())?, fused })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(m: usize, n_experts: usize, n_experts_per_tok: usize, is_float: bool) -> Result<RouterConfig> {
        RouterConfig::pick(RouterProblem { m, n_experts, n_experts_per_tok, is_float })
    }

    #[test]
    fn few_tokens_are_one_launch() {
        let config = pick(1, 256, 8, true).unwrap();
        assert_eq!((config.entry.name(), config.grid, config.fused), ("router_e256_r2_b1_w16", 128, true));
        let config = pick(16, 7, 2, true).unwrap();
        assert_eq!((config.entry.name(), config.grid), ("router_e256_r4_b2_w8", 2 * 4));
        let config = pick(33, 257, 16, true).unwrap();
        assert_eq!((config.entry.name(), config.grid, config.fused), ("router_choose_e512_w4", 9, false));
        assert!(!pick(1, 256, 8, false).unwrap().fused);
    }

    #[test]
    fn what_has_no_room_is_refused() {
        for (n, k) in [(513, 8), (512, 33)] {
            for is_float in [false, true] {
                assert!(matches!(pick(1, n, k, is_float), Err(Error::Unsupported { .. })), "{k} of {n}");
            }
        }
        assert!(pick(1, 512, 32, true).is_ok());
        assert!(matches!(pick(usize::MAX, 8, 2, true), Err(Error::Capacity { .. })));
    }
}
