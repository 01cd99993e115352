//! The property suites on the emulated GPU: the kernels' own source, run on the host.

#[path = "../../../tests/suites/mod.rs"]
mod suites;

mod emu {
    use glm5::tensor::Device;

    /// A new device for every case: the first error of a device is the last thing that it does, and a case that failed
    /// must be able to shrink.
    pub fn devices() -> Vec<Vec<Device>> {
        let device = glm5_emu::device();
        println!("{}", device.name());
        vec![vec![device]]
    }

    crate::suites::dequantize::dequantize_properties!(crate::emu::devices, 48);
    crate::suites::embedding::embedding_properties!(crate::emu::devices, 48);
    crate::suites::linear::linear_properties!(crate::emu::devices, 16);
    crate::suites::linear_int8::linear_int8_properties!(crate::emu::devices, 16);
    crate::suites::norm::norm_properties!(crate::emu::devices, 24);
    crate::suites::overlap::overlap_properties!(crate::emu::devices, 1);
    crate::suites::memory::memory_properties!(crate::emu::devices, 1);
    crate::suites::roofs::roofs_properties!(crate::emu::devices, 24);
    crate::suites::tensor::tensor_properties!(crate::emu::devices, 1);
}
