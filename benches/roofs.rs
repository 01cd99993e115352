//! The roofs of this machine's GPU: memory read and copied, upload over the bus, what a launch costs within a graph.
//! Without a GPU, or without the feature `cuda`, it says so.

use std::time::Instant;

use glm5::Result;
use glm5::cuda::Environment;
use glm5::cuda::roofs::{Roofs, Vector, copy};
use glm5::kernels;
use glm5::tensor::Device;

/// Bytes uploaded: some staging buffers' worth.
const UPLOAD: usize = 256 << 20;

/// Launches of the graph.
const LAUNCHES: usize = 200;

fn main() -> Result<()> {
    println!("{}", Environment::look());
    let device = Device::auto()?;
    let Ok(gpu) = device.gpu() else {
        println!("skipped: no GPU");
        return Ok(());
    };
    println!("{}", Roofs::measure(gpu, None)?);

    let values = vec![1u8; UPLOAD];
    let mut buffer = gpu.alloc::<u8>("bench", UPLOAD)?;
    for run in ["first upload", "second upload"] {
        let start = Instant::now();
        buffer.upload(0, &values)?;
        gpu.synchronize()?;
        println!("{run}: {:.1} GB/s", UPLOAD as f64 / 1e9 / start.elapsed().as_secs_f64());
    }

    let src = gpu.zeros::<Vector>("bench", 16)?;
    let mut dst = gpu.zeros("bench", 16)?;
    let mut graph =
        gpu.capture(|| (0..LAUNCHES).try_for_each(|_| copy(&kernels::copy::INSTANCES[0], &src, &mut dst)))?;
    graph.launch()?;
    let time = gpu.time(|| graph.launch())?;
    println!("launch within a graph: {:.2} us", time.as_secs_f64() * 1e6 / LAUNCHES as f64);
    Ok(())
}
