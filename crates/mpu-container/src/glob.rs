//! The patterns of containerd's imports, which are those of Go's `path/filepath.Match`.
//!
//! `*` and `?` are any characters and one; `[a-z]` and `[^a-z]` one of these, and one that is none of these; `\` takes the
//! next character as it is. A pattern that ends too early is none: containerd refuses it, too.

enum Part {
    Any,
    /// One of these ranges of characters, or one that is in none.
    One {
        ranges: Vec<(char, char)>,
        is_positive: bool,
    },
}

pub fn matches(pattern: &str, name: &str) -> Option<bool> {
    let parts = parts(pattern)?;
    let name: Vec<char> = name.chars().collect();
    // Which beginnings of the name fit the parts so far: a pattern of many stars takes no longer for that.
    let mut fits = vec![false; name.len() + 1];
    fits[0] = true;
    for part in parts {
        match part {
            Part::Any => {
                let first = fits.iter().position(|fits| *fits).unwrap_or(fits.len());
                fits[first..].fill(true);
            }
            Part::One { ranges, is_positive } => {
                for at in (0..name.len()).rev() {
                    let within = ranges.iter().any(|(low, high)| (*low..=*high).contains(&name[at]));
                    fits[at + 1] = fits[at] && within == is_positive;
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
            '?' => Part::One { ranges: Vec::new(), is_positive: false },
            '[' => {
                let is_positive = rest.next_if_eq(&'^').is_none();
                let mut ranges = Vec::new();
                while ranges.is_empty() || rest.next_if_eq(&']').is_none() {
                    let low = character(&mut rest)?;
                    let high = if rest.next_if_eq(&'-').is_some() { character(&mut rest)? } else { low };
                    ranges.push((low, high));
                }
                Part::One { ranges, is_positive }
            }
            '\\' => same(rest.next()?),
            plain => same(plain),
        });
    }
    Some(all)
}

fn same(one: char) -> Part {
    Part::One { ranges: vec![(one, one)], is_positive: true }
}

fn character(rest: &mut impl Iterator<Item = char>) -> Option<char> {
    match rest.next()? {
        '-' | ']' => None,
        '\\' => rest.next(),
        plain => Some(plain),
    }
}
