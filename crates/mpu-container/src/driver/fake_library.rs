//! Builds a minimal shared library for tests, without a compiler.

/// A shared library with nothing but a soname: header, one loaded segment, one dynamic segment.
pub fn library(soname: &str, wide: bool) -> Vec<u8> {
    let (header, segment, word) = if wide { (64usize, 56usize, 8usize) } else { (52, 32, 4) };
    let dynamic = header + 2 * segment;
    let strings = dynamic + 3 * 2 * word;
    let end = strings + 1 + soname.len() + 1;
    let mut file = vec![0x7f, b'E', b'L', b'F', if wide { 2 } else { 1 }, 1, 1];
    file.resize(16, 0);
    let put = |file: &mut Vec<u8>, value: usize, size: usize| file.extend_from_slice(&value.to_le_bytes()[..size]);
    let machine = match (wide, cfg!(target_arch = "aarch64")) {
        (true, false) => 62,
        (false, false) => 3,
        (true, true) => 183,
        (false, true) => 40,
    };
    for (value, size) in [(3, 2), (machine, 2), (1, 4), (0, word), (header, word), (0, word), (0, 4), (header, 2)] {
        put(&mut file, value, size);
    }
    for value in [segment, 2, 0, 0, 0] {
        put(&mut file, value, 2);
    }
    for (kind, start, length) in [(1usize, 0usize, end), (2, dynamic, 3 * 2 * word)] {
        put(&mut file, kind, 4);
        if wide {
            put(&mut file, 4, 4);
        }
        for value in [start, start, start, length, length] {
            put(&mut file, value, word);
        }
        if !wide {
            put(&mut file, 4, 4);
        }
        put(&mut file, 1, word);
    }
    for (tag, value) in [(5, strings), (14, 1), (0, 0)] {
        put(&mut file, tag, word);
        put(&mut file, value, word);
    }
    file.push(0);
    file.extend_from_slice(soname.as_bytes());
    file.push(0);
    assert_eq!(file.len(), end);
    file
}
