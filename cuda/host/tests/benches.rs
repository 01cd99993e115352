//! The benches of the kernels, each row once on an emulated GPU: what they call, and what they compare before they would measure.
//! The tests beside their code run here, too, since a bench has no harness.

#[path = "../../../benches/kernels/main.rs"]
mod kernels;

#[test]
fn every_bench_runs_once() {
    let bench = kernels::Bench::new(glm5_emu::device(), false, String::new());
    kernels::run(&bench, &mut criterion::Criterion::default());
}
