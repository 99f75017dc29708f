//! Parses `ld.so.conf`: folders and include patterns.
//!
//! Source: ldconfig(8) and the parser in glibc's `elf/ldconfig.c`. A line is a folder, or `include` and patterns. `#` starts a
//! comment. The type in `folder=TYPE` is obsolete and ignored. `hwcap` lines are skipped.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line<'a> {
    Folder(&'a str),
    /// A pattern of files to include. A relative one is relative to the including file.
    Include(&'a str),
}

/// The lines of a file. Skips lines that are not UTF-8: our folders have no such names.
pub fn lines(bytes: &[u8]) -> Vec<Line<'_>> {
    let mut found = Vec::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else { continue };
        let line = line.split('#').next().unwrap_or_default().trim();
        match line.split_once([' ', '\t']) {
            Some(("include", patterns)) => {
                found.extend(patterns.split([' ', '\t']).filter(|word| !word.is_empty()).map(Line::Include));
            }
            Some(("hwcap", _)) => {}
            _ if line.is_empty() => {}
            _ => {
                let folder = line.split('=').next().unwrap_or_default().trim_end();
                let folder = if folder.len() > 1 { folder.trim_end_matches('/') } else { folder };
                found.push(Line::Folder(folder));
            }
        }
    }
    found
}

/// Whether a file name matches a pattern of `*` and `?`. As in a shell, a `*` at the beginning matches no hidden file. Sets in brackets
/// match nothing: then a folder is only listed twice.
pub fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && pattern.first() != Some(&b'.') {
        return false;
    }
    // Backtracks to the last star only: linear for a pattern with one star, at most the product of both lengths.
    let (mut p, mut n, mut star) = (0, 0, None);
    while let Some(byte) = name.get(n) {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(b'[') => return false,
            Some(expected) if *expected == b'?' || expected == byte => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, n) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_ldconfig_reads_them() {
        let text = b"# comment\n\n /usr/lib64/  # old\ninclude ld.so.conf.d/*.conf\t/etc/more\nhwcap 0 nosegneg\n/a b=libc6\n\xff\n/";
        let read = lines(text);
        use Line::*;
        let expected =
            [Folder("/usr/lib64"), Include("ld.so.conf.d/*.conf"), Include("/etc/more"), Folder("/a b"), Folder("/")];
        assert_eq!(read, expected);
    }

    #[test]
    fn patterns_match_as_in_shell() {
        let cases = [
            ("*.conf", "x86_64.conf", true),
            ("*.conf", ".conf", false),
            ("*.conf", "x.confs", false),
            ("a?c*", "abcd", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("", "", true),
            ("*", "", true),
            ("[ab].conf", "a.conf", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }
}
