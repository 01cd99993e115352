//! The emulator's tests in C++, with kernels instrumented: twins, planted faults, races, and every instance of the project's
//! kernels on small inputs. The build script made the program; `run.sh` runs it in other ways.

use std::process::Command;

#[test]
fn tests_in_cpp() {
    let output = Command::new(env!("EMU_TESTS")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}");
    assert!(output.status.success(), "{}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    // Otherwise the program skips what only instrumented kernels show.
    assert!(said.trim_end().ends_with(" 0 failed, kernels instrumented"), "{said}");
}
