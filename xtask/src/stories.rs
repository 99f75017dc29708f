//! Prints the stories of tests/guest.

use mpu_guest::stories;

use crate::outcome::Outcome;

#[derive(clap::Args)]
pub struct Args {
    /// Those that prove this line of docs/contract.md
    #[arg(long)]
    line: Option<u8>,
}

/// The verb.
pub fn stories(args: &Args) -> Outcome {
    println!("| story | line | engines | real driver | what it proves |\n|---|---|---|---|---|");
    for story in stories::all().filter(|story| args.line.is_none_or(|line| story.lines.contains(&line))) {
        let lines: Vec<String> = story.lines.iter().map(u8::to_string).collect();
        let real = format!("{:?}", story.real).to_lowercase();
        println!("| `{}` | {} | {} | {real} | {} |", story.name, lines.join(" "), story.engines.names(), story.claim);
    }
    Outcome::Passed
}
