//! The choice between the host's and the image's libraries.

use super::*;
use object::write::Object;
use object::{Architecture, BinaryFormat, Endianness, SectionKind};
use object::{Object as _, ObjectSection};

/// An ELF file with one note section.
fn library(section: &str, owner: &[u8], text: &[u8]) -> Vec<u8> {
    let mut note = Vec::new();
    for number in [owner.len() + 1, text.len() + 1, 1] {
        note.extend_from_slice(&u32::try_from(number).unwrap().to_le_bytes());
    }
    for bytes in [owner, text] {
        note.extend_from_slice(bytes);
        note.push(0);
        note.resize(note.len().next_multiple_of(4), 0);
    }
    let mut file = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
    let id = file.add_section(Vec::new(), section.into(), SectionKind::Note);
    file.append_section_data(id, &note, 4);
    file.write().unwrap()
}

const SECTION: &str = ".note.cuda.fwd_compatibility";
/// With the keys of NVIDIA's libraries.
const TEXT: &[u8] = br#"{"CUDA version": "12.9", "driver": [535, 550, 570, 575], "device": [7, 8]}"#;

#[test]
fn note_is_read() {
    let expected = Note { cuda: "12.9".into(), branches: vec![535, 550, 570, 575] };
    assert_eq!(note(library(SECTION, b"NVIDIA Corporation", TEXT).as_slice()), Some(expected));
    assert_eq!(note(library(SECTION, b"Another vendor", TEXT).as_slice()), None);
    assert_eq!(note(library(".note.other", b"NVIDIA Corporation", TEXT).as_slice()), None);
    assert_eq!(note(library(SECTION, b"NVIDIA Corporation", b"{").as_slice()), None);
    // The case of a key does not matter.
    let other = br#"{"CUDA Version": "12.9", "Driver": [535, 550, 570, 575]}"#;
    assert_eq!(
        note(library(SECTION, b"NVIDIA Corporation", other).as_slice()),
        note(library(SECTION, b"NVIDIA Corporation", TEXT).as_slice())
    );
    let wrong = br#"{"CUDA version": "12.9", "driver": "575"}"#;
    assert_eq!(note(library(SECTION, b"NVIDIA Corporation", wrong).as_slice()), None);
    let short = br#"{"CUDA version": "13.2"}"#;
    let expected = Note { cuda: "13.2".into(), branches: Vec::new() };
    assert_eq!(note(library(SECTION, b"NVIDIA Corporation", short).as_slice()), Some(expected));
}

/// Sections cost the image little, but each name costs us up to 4 KiB of memory.
#[test]
fn library_of_thousands_of_sections_has_no_note() {
    let with = |more: usize| {
        let mut file = Object::new(BinaryFormat::Elf, Architecture::X86_64, Endianness::Little);
        for number in 0..more {
            file.add_section(Vec::new(), number.to_string().into_bytes(), SectionKind::Data);
        }
        let whole = library(SECTION, b"NVIDIA Corporation", TEXT);
        let read = object::File::parse(whole.as_slice()).unwrap();
        let data = read.section_by_name(SECTION).unwrap().data().unwrap();
        let id = file.add_section(Vec::new(), SECTION.into(), SectionKind::Note);
        file.append_section_data(id, data, 4);
        note(file.write().unwrap().as_slice())
    };
    assert!(with(100).is_some());
    assert_eq!(with(2000), None);
}

#[test]
fn malformed_libraries_never_panic() {
    let whole = library(SECTION, b"NVIDIA Corporation", TEXT);
    for end in 0..whole.len() {
        let _ = note(&whole[..end]);
    }
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let _ = note(bytes.as_slice());
        }
    }
    assert_eq!(note(&b"not an ELF file"[..]), None);
}

/// Host driver, host CUDA, whether the image's 575.57.08 is used: with its note, and without one.
#[test]
fn newer_compatible_libcuda_is_preferred() {
    let cases = [
        // The branch is in the note, and older.
        ("570.211.01", "", true, true),
        // The same branch: later or earlier within it.
        ("575.10.10", "", true, false),
        ("575.57.08", "", false, false),
        ("575.99.99", "", false, false),
        // A branch that the note does not have, newer or older.
        ("590.44.01", "", false, false),
        ("565.57.01", "", false, true),
        // By CUDA's version alone, compared as numbers.
        ("", "12.8", true, false),
        ("", "12.9", false, false),
        ("", "12.10", false, false),
        // Both: with a note, the driver's version counts.
        ("570.1", "12.9", true, false),
        ("what", "", false, false),
        ("99.55.66", "", false, true),
    ];
    let (image, mut note) = (version("575.57.08").unwrap(), Note::default());
    (note.cuda, note.branches) = ("12.9".into(), vec![535, 550, 570, 575]);
    for (driver, cuda, with_note, without) in cases {
        let folder = String::new();
        let args = CompatArgs {
            host_driver_version: driver.into(),
            host_cuda_version: cuda.into(),
            cuda_compat_container_root: folder,
        };
        assert_eq!(is_preferred(&image, Some(&note), &args), with_note, "{driver} {cuda} with a note");
        assert_eq!(is_preferred(&image, None, &args), without, "{driver} {cuda} without");
    }
}

#[test]
fn versions_are_numbers() {
    assert_eq!(version("575.57.08"), Some(vec![575, 57, 8]));
    for text in ["", "575.", "a", "575.x", "+1.2", "-1", "99999999999"] {
        assert_eq!(version(text), None, "{text}");
    }
}
