//! Interleaved rotary embedding.

use super::Cpu;
use crate::error::Result;
use crate::tensor::Heads;

pub(crate) fn rope_angles(base: f32, positions: &[u32], dim: usize, angles: &mut [f32]) -> Result<()> {
    for (p, row) in positions.iter().zip(angles.chunks_exact_mut(dim)) {
        for (i, pair) in row.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            // f64 throughout: at position 1 M an f32 product is off by up to 0.06 rad.
            let phi = *p as f64 * (base as f64).powf(-2.0 * i as f64 / dim as f64);
            *pair = [phi.cos() as f32, phi.sin() as f32];
        }
    }
    Ok(())
}

pub(crate) fn rope(cpu: &Cpu, x: &mut [f32], n: usize, heads: Heads, angles: &[f32]) -> Result<()> {
    cpu.for_rows(
        x,
        n,
        2 * heads.n * heads.len,
        #[inline(always)]
        |t, row| {
            let angles = &angles[t * heads.len..][..heads.len];
            for h in 0..heads.n {
                for (z, a) in
                    row[heads.cols(h)].as_chunks_mut::<2>().0.iter_mut().zip(angles.as_chunks::<2>().0)
                {
                    *z = rotate(*z, *a);
                }
            }
        },
    );
    Ok(())
}

#[allow(clippy::too_many_arguments)] // two matrices with their widths and head layouts
pub(crate) fn rope_into(
    cpu: &Cpu,
    x: &[f32],
    nx: usize,
    x_heads: Heads,
    angles: &[f32],
    y: &mut [f32],
    ny: usize,
    y_heads: Heads,
) -> Result<()> {
    cpu.for_rows(
        y,
        ny,
        2 * x_heads.n * x_heads.len,
        #[inline(always)]
        |t, row| {
            let x = &x[t * nx..][..nx];
            let angles = &angles[t * x_heads.len..][..x_heads.len];
            for h in 0..x_heads.n {
                let from = x[x_heads.cols(h)].as_chunks::<2>().0;
                let to = row[y_heads.cols(h)].as_chunks_mut::<2>().0;
                for ((z, a), y) in from.iter().zip(angles.as_chunks::<2>().0).zip(to) {
                    *y = rotate(*z, *a);
                }
            }
        },
    );
    Ok(())
}

#[inline(always)]
fn rotate([re, im]: [f32; 2], [cos, sin]: [f32; 2]) -> [f32; 2] {
    [re * cos - im * sin, re * sin + im * cos]
}
