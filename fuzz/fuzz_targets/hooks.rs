//! Any bytes where a hook reads what others wrote: a container's state, the loader's configuration of an image, a library
//! of an image, a program under ldconfig's name. A value or none, never a panic, and never more than the bytes hold.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mpu_container::cdi_hooks::{compat, state::State};
use mpu_container::ldconfig::{conf, is_static};

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    match choice % 4 {
        0 => drop(State::read(data)),
        1 => {
            let lines = conf::lines(data);
            assert!(lines.len() <= data.len());
            for line in lines {
                let (conf::Line::Folder(text) | conf::Line::Include(text)) = line;
                assert!(!text.contains(['\n', '#']));
                // A name without wildcards matches itself.
                let plain = !text.contains(['*', '?', '[']);
                assert!(!plain || conf::matches(text.as_bytes(), text.as_bytes()));
                conf::matches(text.as_bytes(), data);
            }
        }
        2 => drop(compat::note(data)),
        _ => {
            // What has no segments cannot be a program.
            assert!(!is_static(data) || data.len() > 64);
        }
    }
});
