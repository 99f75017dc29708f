//! The executable: chooses the program by the name it is called by.

use mpu_container::names;
use std::process::ExitCode;

fn main() -> ExitCode {
    let (program, arguments) = names::choose(std::env::args_os().collect());
    if let Some(program) = program {
        return (program.run)(arguments);
    }
    match arguments.get(1).and_then(|word| word.to_str()) {
        Some("--version" | "-V") => println!("mpu-container {}", env!("CARGO_PKG_VERSION")),
        Some("--help" | "-h" | "help") => print!("{}", names::help()),
        other => {
            match other {
                Some(word) => eprintln!("mpu-container: there is no program '{word}'\n"),
                None => eprintln!("mpu-container: which program?\n"),
            }
            eprint!("{}", names::help());
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
