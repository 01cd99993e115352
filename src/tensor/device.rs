//! [`Device`]: where data lives and work runs, and how one is chosen.

use std::fmt;
use std::str::FromStr;

use crate::cpu::Cpu;
use crate::cuda::{Environment, Gpu};
use crate::error::{Error, Result};

/// Where data lives and work runs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Device {
    /// This machine's processor, with its own thread pool.
    Cpu(Cpu),
    /// A GPU, or an emulated one.
    Cuda(Gpu),
}

impl Device {
    /// The CPU with `threads` threads (`None`: as many as the machine has).
    ///
    /// # Errors
    /// [`Error::Argument`] for zero or more than 1024 threads, [`Error::Unsupported`] if threads cannot be started.
    pub fn cpu(threads: Option<usize>) -> Result<Self> {
        Ok(Device::Cpu(Cpu::new(threads)?))
    }

    /// GPU number `ordinal` of this machine.
    ///
    /// # Errors
    /// [`Error::NoGpu`] if there is none, or no driver; [`Error::Driver`].
    #[cfg(feature = "cuda")]
    pub fn cuda(ordinal: usize) -> Result<Self> {
        Ok(Device::Cuda(crate::cuda::driver::gpu(ordinal)?))
    }

    /// What is asked for, and in words why it was taken. On the CPU with `threads` threads.
    ///
    /// [`DeviceChoice::Auto`] is the first GPU that kernels of this build run on, if there is one.
    ///
    /// # Errors
    /// As [`Device::cpu`]; [`Error::NoGpu`] for a GPU that is not there or that this build has no kernels for; [`Error::Driver`], also if
    /// the GPU that was found does not work.
    pub fn open(choice: DeviceChoice, threads: Option<usize>) -> Result<Chosen> {
        let cpu = |why: String| Ok(Chosen { device: Device::cpu(threads)?, why });
        if choice == DeviceChoice::Cpu {
            return cpu("asked for".into());
        }
        let Environment { gpus, trouble, .. } = Environment::look();
        let ordinal = match choice {
            DeviceChoice::Cuda(ordinal) => Some(ordinal),
            _ => gpus.iter().position(|gpu| gpu.kernels > 0),
        };
        let why = match (choice, trouble) {
            (DeviceChoice::Cuda(_), Some(trouble)) => return Err(Error::NoGpu(trouble)),
            (DeviceChoice::Cuda(i), None) if gpus.get(i).is_some_and(|gpu| gpu.kernels == 0) => {
                return Err(Error::NoGpu(format!("no kernel of this build runs on number {i}")));
            }
            (DeviceChoice::Cuda(_), None) => "asked for".into(),
            (_, Some(trouble)) => trouble,
            (_, None) if ordinal.is_none() => {
                format!("no kernel of this build runs on any of {} GPUs", gpus.len())
            }
            (_, None) => "the first GPU that kernels of this build run on".into(),
        };
        match ordinal {
            None => cpu(why),
            Some(ordinal) => Ok(Chosen { device: Self::gpu_number(ordinal)?, why }),
        }
    }

    #[cfg(feature = "cuda")]
    fn gpu_number(ordinal: usize) -> Result<Self> {
        Self::cuda(ordinal)
    }

    /// [`Environment::look`] has said that there is none.
    #[cfg(not(feature = "cuda"))]
    fn gpu_number(ordinal: usize) -> Result<Self> {
        Err(Error::NoGpu(format!("number {ordinal} of a build without kernels")))
    }

    /// The GPU, if it is one.
    pub fn as_gpu(&self) -> Option<&Gpu> {
        match self {
            Device::Cuda(gpu) => Some(gpu),
            Device::Cpu(_) => None,
        }
    }

    /// The GPU.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it is none.
    pub fn gpu(&self) -> Result<&Gpu> {
        match self {
            Device::Cuda(gpu) => Ok(gpu),
            Device::Cpu(_) => Err(Error::unsupported("work of a GPU", format!("this is {}", self.name()))),
        }
    }

    /// Whether both have the same memory: that of the host, or that of one GPU.
    pub(crate) fn same(&self, other: &Device) -> bool {
        match (self, other) {
            (Device::Cpu(_), Device::Cpu(_)) => true,
            (Device::Cuda(a), Device::Cuda(b)) => a.same(b),
            _ => false,
        }
    }

    /// Short name for reports, for example `cpu (2 threads, avx512)`.
    pub fn name(&self) -> String {
        match self {
            Device::Cpu(cpu) => cpu.name(),
            Device::Cuda(gpu) => gpu.name(),
        }
    }
}

/// Which device is asked for: `auto`, `cpu`, `cuda` (the first GPU) or `cuda:1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// A GPU that can be used, or else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU of this number, from zero.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str| text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda(0)),
            _ => number(text)
                .map(DeviceChoice::Cuda)
                .ok_or_else(|| Error::argument("device", "`auto`, `cpu`, `cuda` or `cuda:1`", text)),
        }
    }
}

/// A device that was chosen.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// It.
    pub device: Device,
    /// Why it is this one.
    pub why: String,
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}: {}", self.device.name(), self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_by_name() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda", DeviceChoice::Cuda(0)),
            ("cuda:12", DeviceChoice::Cuda(12)),
        ] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap(), choice);
        }
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "CPU", "cuda:99999999999999999999"] {
            let e = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(e.contains("cuda:1") && e.contains(text), "{e}");
        }
    }

    #[test]
    fn what_was_chosen_is_said() {
        let cpu = Device::open(DeviceChoice::Cpu, Some(1)).unwrap();
        assert!(
            cpu.to_string().starts_with("device cpu (1 thread") && cpu.to_string().ends_with(": asked for")
        );
        let auto = Device::open(DeviceChoice::Auto, Some(1)).unwrap();
        assert!(auto.why.contains("GPU"), "{auto}");
        assert!(matches!(Device::open(DeviceChoice::Cuda(1000), None), Err(Error::NoGpu(_))));
    }
}
