//! Any bytes as a CDI file, in both formats: nothing panics, no small file becomes a large spec, and what is valid is read
//! again as it was, from either format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mpu_container::cdi::file::{self, Format};
use mpu_container::cdi::{QualifiedName, generate, transform, validate};
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    if let Some(name) = std::str::from_utf8(data).ok().and_then(|text| text.parse::<QualifiedName>().ok()) {
        assert_eq!(name.to_string().as_bytes(), data);
    }
    for format in [Format::Json, Format::Yaml] {
        let Ok(mut spec) = file::parse(data, format) else { continue };
        if validate::check(&spec).is_err() {
            continue;
        }
        assert_eq!(generate::qualified_names(&spec).len(), spec.devices.len());
        for format in [Format::Json, Format::Yaml] {
            let text = file::serialize(&spec, format);
            assert_eq!(file::parse(text.as_bytes(), format).expect("what was written can be read"), spec);
        }
        transform::change_root(&mut spec, Path::new("/dev"), Path::new("/other/dev"), transform::Relative::Host);
        validate::check(&spec).expect("a spec stays valid when its paths move");
    }
});
