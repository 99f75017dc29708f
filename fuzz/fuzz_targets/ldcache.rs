//! Any bytes as the dynamic linker's cache: a list or none, never a panic; and every string that comes back is one
//! that stands in the file, followed by its 0.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mpu_container::driver::ldcache;

fuzz_target!(|data: &[u8]| {
    let Some(entries) = ldcache::entries(data) else { return };
    assert!(entries.len() <= data.len() / 24, "an entry has 24 bytes");
    let within = data.as_ptr_range();
    for text in entries.iter().flat_map(|entry| [entry.name, entry.path]) {
        let here = text.as_bytes().as_ptr_range();
        assert!(within.contains(&here.start) && here.end < within.end, "outside the file");
        assert_eq!(data[here.end as usize - within.start as usize], 0);
        assert!(!text.contains('\0'));
    }
});
