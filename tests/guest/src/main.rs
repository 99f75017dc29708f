//! See the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    mpu_guest::main()
}
