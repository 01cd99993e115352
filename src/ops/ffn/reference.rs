//! SwiGLU feed-forward, as specified.

use crate::error::Result;
use crate::ops::expect_len;
use crate::ops::linear::reference::linear;

/// `y[i] = silu(gate[i]) up[i]` with `silu(z) = z / (1 + exp(-z))`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the lengths differ.
pub fn swiglu<X: Copy + Into<f64>>(gate: &[X], up: &[X]) -> Result<Vec<f64>> {
    expect_len("swiglu", "up", up.len(), gate.len())?;
    let mut y = Vec::new();
    for i in 0..gate.len() {
        let z: f64 = gate[i].into();
        y.push(z / (1.0 + (-z).exp()) * up[i].into());
    }
    Ok(y)
}

/// Dequantized weights of one layer or of a stack of experts: `gate`, `up` `[slabs, ff, hidden]`, `down`
/// `[slabs, hidden, ff]`.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    /// `[slabs, ff, hidden]`; the argument of silu.
    pub gate: &'a [f32],
    /// `[slabs, ff, hidden]`; the other factor.
    pub up: &'a [f32],
    /// `[slabs, hidden, ff]`.
    pub down: &'a [f32],
    /// Width of input and output.
    pub hidden: usize,
    /// Width between.
    pub ff: usize,
}

impl<'a> Weights<'a> {
    /// The weights of expert `e`.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if the stack does not reach that far.
    pub fn slab(&self, e: usize) -> Result<Weights<'a>> {
        let n = self.hidden * self.ff;
        for (what, w) in [("gate", self.gate), ("up", self.up), ("down", self.down)] {
            expect_len("ffn", what, w.len().min((e + 1) * n), (e + 1) * n)?;
        }
        let part = e * n..(e + 1) * n;
        Ok(Weights {
            gate: &self.gate[part.clone()],
            up: &self.up[part.clone()],
            down: &self.down[part],
            ..*self
        })
    }
}

/// `y = down (silu(gate x) * up x)`. `w` has one slab, `x` `[m, hidden]`; gives `[m, hidden]`.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape) if the lengths do not fit.
pub fn ffn<X: Copy + Into<f64>>(w: &Weights, x: &[X]) -> Result<Vec<f64>> {
    let gate = linear(w.gate, x, w.ff, w.hidden)?;
    let up = linear(w.up, x, w.ff, w.hidden)?;
    linear(w.down, &swiglu(&gate, &up)?, w.hidden, w.ff)
}
