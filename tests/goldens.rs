//! Golden values of independent implementations, met by the CPU.

mod suites;

/// One pool for all tests, so that their number does not multiply the threads.
fn devices() -> Vec<Vec<glm5::tensor::Device>> {
    static DEVICE: std::sync::OnceLock<glm5::tensor::Device> = std::sync::OnceLock::new();
    vec![vec![DEVICE.get_or_init(|| glm5::tensor::Device::cpu(Some(2)).unwrap()).clone()]]
}

suites::goldens::goldens_properties!(crate::devices);
