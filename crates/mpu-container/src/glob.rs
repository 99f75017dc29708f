//! Matches the patterns of containerd's imports: Go's `path/filepath.Match`.
//!
//! `*` matches any characters, `?` one character, `[a-z]` and `[^a-z]` one character of a class. `\` escapes the next character. An
//! incomplete pattern is invalid, as in containerd.

enum Part {
    Any,
    /// One character in these ranges, or one outside of them.
    Class {
        ranges: Vec<(char, char)>,
        is_positive: bool,
    },
}

/// None if the pattern is invalid.
pub fn matches(pattern: &str, name: &str) -> Option<bool> {
    let parts = parts(pattern)?;
    let name: Vec<char> = name.chars().collect();
    // Whether each prefix of the name matches the parts so far. This is not exponential in the number of stars.
    let mut fits = vec![false; name.len() + 1];
    fits[0] = true;
    for part in parts {
        match part {
            Part::Any => {
                let first = fits.iter().position(|fits| *fits).unwrap_or(fits.len());
                fits[first..].fill(true);
            }
            Part::Class { ranges, is_positive } => {
                for at in (0..name.len()).rev() {
                    let is_in_class = ranges.iter().any(|(low, high)| (*low..=*high).contains(&name[at]));
                    fits[at + 1] = fits[at] && is_in_class == is_positive;
                }
                fits[0] = false;
            }
        }
    }
    fits.last().copied()
}

fn parts(pattern: &str) -> Option<Vec<Part>> {
    let mut rest = pattern.chars().peekable();
    let mut all = Vec::new();
    while let Some(next) = rest.next() {
        all.push(match next {
            '*' => Part::Any,
            '?' => Part::Class { ranges: Vec::new(), is_positive: false },
            '[' => {
                let is_positive = rest.next_if_eq(&'^').is_none();
                let mut ranges = Vec::new();
                while ranges.is_empty() || rest.next_if_eq(&']').is_none() {
                    let low = character(&mut rest)?;
                    let high = if rest.next_if_eq(&'-').is_some() { character(&mut rest)? } else { low };
                    ranges.push((low, high));
                }
                Part::Class { ranges, is_positive }
            }
            '\\' => literal(rest.next()?),
            plain => literal(plain),
        });
    }
    Some(all)
}

fn literal(one: char) -> Part {
    Part::Class { ranges: vec![(one, one)], is_positive: true }
}

fn character(rest: &mut impl Iterator<Item = char>) -> Option<char> {
    match rest.next()? {
        '-' | ']' => None,
        '\\' => rest.next(),
        plain => Some(plain),
    }
}
