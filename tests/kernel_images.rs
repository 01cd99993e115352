//! The kernels in this build keep to the gates (registers, shared memory, spills, instructions). No GPU is needed.

#[cfg(feature = "cuda")]
#[test]
fn kernels_keep_to_the_gates() {
    use std::path::Path;

    use glm5::kernels::{Entry, Image};
    use glm5_kernels::{Table, Toolkit, gates, generate, inspect};

    let table = Table::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda")).unwrap();
    let toolkit = Toolkit::find().unwrap();
    let kernels = Path::new(concat!(env!("OUT_DIR"), "/kernels"));
    let units = generate::units(&table);
    assert_eq!(units.len(), Image::ALL.len());
    let mut broken = Vec::new();
    let mut inspected = 0;
    for (unit, image) in units.iter().zip(Image::ALL).filter(|(_, image)| !image.archs.is_empty()) {
        assert_eq!(unit.name, image.unit);
        // What is inspected is what was embedded.
        assert!(
            std::fs::read(kernels.join(format!("{}.fatbin", unit.name))).unwrap() == image.bytes,
            "{}",
            unit.name
        );
        let made = inspect::inspect(&toolkit, kernels, &unit.name).unwrap();
        broken.extend(gates::check_unit(unit, image.archs, &made));
        inspected += made.len();
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(inspected >= Entry::ALL.len());
    println!("{inspected} kernels inspected");
}

#[cfg(not(feature = "cuda"))]
#[test]
fn skipped_without_the_feature_cuda() {
    assert!(glm5::kernels::Image::ALL.is_empty());
    println!("skipped: this build holds no kernels (feature `cuda`)");
}
