//! Runs the program that is selected by the executable's name or its first argument.

use mpu_container::{names, output};
use std::process::ExitCode;

fn main() -> ExitCode {
    let (program, arguments) = names::choose(std::env::args_os().collect());
    if let Some(program) = program {
        return (program.run)(arguments);
    }
    let page = match arguments.get(1).and_then(|word| word.to_str()) {
        Some("--version" | "-V") => format!("mpu-container {}\n", env!("CARGO_PKG_VERSION")),
        Some("--help" | "-h" | "help") => names::help(),
        other => {
            let message = match other {
                Some(word) => format!("there is no program '{word}'"),
                None => "which program?".to_string(),
            };
            output::eprint_line(format!("mpu-container: {message}\n\n{}", names::help().trim_end()));
            return ExitCode::from(2);
        }
    };
    output::print_page("mpu-container", &page)
}
