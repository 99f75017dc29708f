//! Any text as config.toml, and any change to it: nothing panics, an error names a line that is there, and a changed file
//! can be read and says what was asked for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mpu_container::config::{Config, edit, keys};

fuzz_target!(|data: &[u8]| {
    let [pick, rest @ ..] = data else { return };
    let mut parts = rest.splitn(2, |byte| *byte == 0xff).map(std::str::from_utf8);
    let Some(Ok(text)) = parts.next() else { return };
    match Config::parse(text, Config::default()) {
        Ok((_, notes)) => assert!(notes.iter().all(|note| (1..=text.lines().count()).contains(&note.line))),
        Err((line, what)) => {
            assert!(line >= 1 && line <= text.lines().count().max(1) && !what.is_empty(), "{line} {what}")
        }
    }
    let Some(Ok(value)) = parts.next() else { return };
    let key = &keys::KEYS[usize::from(*pick) % keys::KEYS.len()];
    let sets = [format!("{}={value}", key.name)];
    let Ok(changed) = edit::set(text, &sets, ":") else { return };
    Config::parse(&changed, Config::default()).expect("a changed file can be read");
    assert_eq!(edit::set(&changed, &sets, ":").as_ref(), Ok(&changed), "once is enough");
});
