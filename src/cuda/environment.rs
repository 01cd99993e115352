//! [`Environment`]: what this build and this machine have to offer, for reports and for people who ask why.

use std::fmt;

use super::runtime::Properties;
use crate::kernels::{Entry, Image};

/// GPUs, driver and kernels.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Environment {
    /// The CUDA version that the driver speaks.
    pub driver: Option<(u32, u32)>,
    /// Why no GPU can be used, if so.
    pub trouble: Option<String>,
    /// The GPUs, in order.
    pub gpus: Vec<Usable>,
    /// The nvcc that made the kernels of this binary.
    pub nvcc: Option<&'static str>,
    /// The kernels of this binary.
    pub images: Vec<Images>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Usable {
    /// What is known of it.
    #[serde(flatten)]
    pub properties: Properties,
    /// Kernels of this binary that run on it.
    pub kernels: usize,
}

/// Images that are for the same architectures.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Images {
    /// The architectures.
    pub archs: &'static [&'static str],
    /// Number of kernels.
    pub kernels: usize,
    /// Their size.
    pub bytes: usize,
}

impl Environment {
    /// Looks at this machine. Opens no GPU.
    pub fn look() -> Self {
        let (gpus, trouble) = match machine::gpus() {
            Ok(gpus) => (gpus, None),
            Err(trouble) => (Vec::new(), Some(trouble)),
        };
        let usable = |properties: Properties| {
            let runs = |e: &&Entry| e.image().is_some_and(|i| i.runs_on(properties.compute_capability));
            let kernels = Entry::ALL.iter().filter(runs).count();
            Usable { properties, kernels }
        };
        let mut images: Vec<Images> = Vec::new();
        for image in Image::ALL.iter().filter(|image| !image.archs.is_empty()) {
            let kernels =
                Entry::ALL.iter().filter(|e| e.image().is_some_and(|i| i.unit == image.unit)).count();
            match images.iter_mut().find(|i| i.archs == image.archs) {
                Some(same) => {
                    (same.kernels, same.bytes) = (same.kernels + kernels, same.bytes + image.bytes.len())
                }
                None => images.push(Images { archs: image.archs, kernels, bytes: image.bytes.len() }),
            }
        }
        Environment {
            driver: machine::driver(),
            trouble,
            gpus: gpus.into_iter().map(usable).collect(),
            nvcc: Image::NVCC,
            images,
        }
    }
}

#[cfg(feature = "cuda")]
mod machine {
    use super::Properties;
    use crate::cuda::driver;

    pub(super) fn driver() -> Option<(u32, u32)> {
        driver::driver_version().ok()
    }

    pub(super) fn gpus() -> Result<Vec<Properties>, String> {
        driver::devices().map_err(|e| e.to_string())
    }
}

#[cfg(not(feature = "cuda"))]
mod machine {
    use super::Properties;

    pub(super) fn driver() -> Option<(u32, u32)> {
        None
    }

    pub(super) fn gpus() -> Result<Vec<Properties>, String> {
        Err("this build has no kernels for GPUs (feature `cuda`)".into())
    }
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        if let Some((major, minor)) = self.driver {
            writeln!(f, "driver: CUDA {major}.{minor}")?;
        }
        if let Some(trouble) = &self.trouble {
            writeln!(f, "{trouble}")?;
        }
        for (i, Usable { properties: p, kernels }) in self.gpus.iter().enumerate() {
            writeln!(
                f,
                "GPU {i}: {p}, {:.1} GiB, {} SMs, L2 {:.0} MiB, {} KiB of shared memory per block; {kernels} of {} \
                 kernels run on it",
                gib(p.memory),
                p.sms,
                gib(p.l2) * 1024.0,
                p.smem_per_block / 1024,
                Entry::ALL.len()
            )?;
        }
        for Images { archs, kernels, bytes } in &self.images {
            writeln!(
                f,
                "{kernels} kernels for {}: {:.1} MiB",
                archs.join(", "),
                gib(*bytes as u64) * 1024.0
            )?;
        }
        if let Some(nvcc) = self.nvcc {
            writeln!(f, "made by nvcc {nvcc}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_is_there_or_why_not() {
        let e = Environment::look();
        let text = e.to_string();
        assert_eq!(e.trouble.is_some(), e.gpus.is_empty(), "{text}");
        assert_eq!(e.images.iter().map(|i| i.kernels).sum::<usize>() > 0, cfg!(feature = "cuda"), "{text}");
        if let Some(trouble) = &e.trouble {
            assert!(text.contains(trouble));
            assert!(cfg!(feature = "cuda") || trouble.contains("feature `cuda`"));
        }
        for i in 0..e.gpus.len() {
            assert!(text.contains(&format!("GPU {i}: ")), "{text}");
        }
        let json = serde_json::to_value(&e).unwrap();
        assert_eq!(json["gpus"].as_array().unwrap().len(), e.gpus.len());
    }
}
