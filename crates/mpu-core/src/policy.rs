//! The policy: which callers see more than their own PID namespace. Root gives an engine rules, matched against a caller's cgroup.
//!
//! One rule a line: a word of [`Sees`], a blank, and a glob over cgroup paths. The first rule that fits decides; without one a caller
//! sees its own. A rule fits a cgroup and everything below it. `*` and `?` stay within one name, `**` does not.

/// A rule's glob is at most this long, so that matching is bounded.
pub const LONGEST_GLOB: usize = 255;
/// More rules than this are refused.
pub const MOST_RULES: usize = 128;
/// The longest text of rules, in bytes: what the kernel gives a module parameter.
pub const LONGEST_RULES: usize = 4095;

/// The view of a caller in its own PID namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sees {
    /// The processes of its own namespace.
    Own,
    /// Those, and every process below the cgroup that the rule names. A process without a number in the caller's namespace appears with
    /// its host PID.
    Group {
        /// The number of path components, from the root, down to that cgroup.
        depth: u32,
    },
    /// The view of a caller on the host.
    Host,
}

/// The first words of rules.
const WORDS: [(&[u8], Sees); 3] = [(b"own ", Sees::Own), (b"group ", Sees::Group { depth: 0 }), (b"host ", Sees::Host)];

/// The place of one rule in its text. Small: the kernel keeps [`MOST_RULES`] of them beside the text.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Place {
    /// The beginning of the glob.
    at: u16,
    /// The glob's length.
    length: u8,
    /// The index of its word in [`WORDS`].
    word: u8,
}

const _: () = assert!(LONGEST_RULES <= u16::MAX as usize && LONGEST_GLOB <= u8::MAX as usize);

/// The places of all rules in a text, found once, so that no call parses the text.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Table {
    count: u32,
    places: [Place; MOST_RULES],
}

impl Table {
    /// No rules.
    pub const EMPTY: Table = Table { count: 0, places: [Place { at: 0, length: 0, word: 0 }; MOST_RULES] };

    /// Parses a text of rules; empty lines are ignored. After an error there are no rules.
    ///
    /// # Errors
    /// [`BadRule`] for the first line that is not a known word and an absolute glob, or is beyond [`MOST_RULES`].
    pub fn read(&mut self, text: &[u8]) -> Result<(), BadRule> {
        self.count = 0;
        let (mut at, mut count) = (0, 0);
        for (line, bytes) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            let begins = at;
            at += bytes.len() + 1;
            if bytes.is_empty() {
                continue;
            }
            let (Some((word, glob)), Some(place)) = (rule(bytes), self.places.get_mut(count)) else {
                return Err(BadRule { line });
            };
            if text.len() > LONGEST_RULES {
                return Err(BadRule { line });
            }
            // Neither is truncated: text and globs are short enough.
            *place = Place { at: (begins + bytes.len() - glob.len()) as u16, length: glob.len() as u8, word };
            count += 1;
        }
        self.count = count as u32;
        Ok(())
    }

    /// The view of a caller in the cgroup with this path.
    pub fn of(&self, text: &[u8], path: &[u8]) -> Sees {
        let path = beginning(path);
        for place in self.places.iter().take(self.count as usize) {
            let rest = text.get(usize::from(place.at)..).unwrap_or_default();
            let glob = rest.get(..usize::from(place.length)).unwrap_or_default();
            if let Some(depth) = nearest(glob, path) {
                return match WORDS.get(usize::from(place.word)) {
                    Some((_, Sees::Group { .. })) => Sees::Group { depth },
                    Some((_, other)) => *other,
                    None => Sees::Own,
                };
            }
        }
        Sees::Own
    }
}

/// Parsed rules with their text.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    text: &'a [u8],
    table: Table,
}

/// The number of an invalid line, from 1, or of the first one too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRule {
    /// The line.
    pub line: u32,
}

impl<'a> Rules<'a> {
    /// Parses a text of rules.
    ///
    /// # Errors
    /// As [`Table::read`].
    pub fn parse(text: &'a [u8]) -> Result<Rules<'a>, BadRule> {
        let mut table = Table::EMPTY;
        table.read(text)?;
        Ok(Rules { text, table })
    }

    /// The view of a caller in the cgroup with this path.
    pub fn of(&self, path: &[u8]) -> Sees {
        self.table.of(self.text, path)
    }
}

/// The index of a line's word in [`WORDS`], and its glob.
fn rule(line: &[u8]) -> Option<(u8, &[u8])> {
    let (word, glob) = (0..).zip(&WORDS).find_map(|(at, (word, _))| Some((at, line.strip_prefix(*word)?)))?;
    let sound = glob.first() == Some(&b'/') || glob.starts_with(b"**");
    (sound && glob.len() <= LONGEST_GLOB && !glob.contains(&0)).then_some((word, glob))
}

/// The most components of a path that are matched. A container can make cgroups below its own, as deep as the kernel's longest path,
/// and each component costs time for each rule.
pub const MOST_NAMES: usize = 16;
const MOST_BYTES: usize = 1024;

/// The first components of a path. A deeper cgroup counts as the one that these lead to: a rule also fits everything below its cgroup.
fn beginning(path: &[u8]) -> &[u8] {
    let ends = path.iter().enumerate().skip(1).filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at);
    let end = ends.chain([path.len()]).take(MOST_NAMES).take_while(|&end| end <= MOST_BYTES).last();
    path.get(..end.unwrap_or(0)).unwrap_or_default()
}

/// The number of components of the deepest cgroup on this path that fits. The root never does: it is shared by all.
fn nearest(glob: &[u8], path: &[u8]) -> Option<u32> {
    let mut end = path.len();
    loop {
        let (cgroup, rest) = path.split_at_checked(end)?;
        if rest.first().is_none_or(|&byte| byte == b'/') && cgroup.len() > 1 && fits(glob, cgroup) {
            return Some(cgroup.iter().filter(|&&byte| byte == b'/').count() as u32);
        }
        end = end.checked_sub(1)?;
    }
}

/// Whether the glob fits the whole path. Only the last star of each kind is retried, which bounds the work by the product of the
/// lengths, times the components.
fn fits(glob: &[u8], path: &[u8]) -> bool {
    let (mut at, mut here) = (0, 0);
    // Where to continue in the glob, and how far the star reaches in the path.
    let mut star: Option<(usize, usize)> = None;
    let mut stars: Option<(usize, usize)> = None;
    loop {
        match (glob.get(at), path.get(here)) {
            (Some(b'*'), _) if glob.get(at + 1) == Some(&b'*') => {
                stars = Some((at + 2, here));
                star = None;
                at += 2;
                continue;
            }
            (Some(b'*'), _) => {
                star = Some((at + 1, here));
                at += 1;
                continue;
            }
            (Some(&pattern_byte), Some(&byte)) if pattern_byte == byte || pattern_byte == b'?' && byte != b'/' => {
                at += 1;
                here += 1;
                continue;
            }
            (None, None) => return true,
            _ => {}
        }
        let more = |star: Option<(usize, usize)>, across: bool| {
            star.filter(|&(_, to)| path.get(to).is_some_and(|&byte| across || byte != b'/'))
        };
        if let Some((after, to)) = more(star, false) {
            star = Some((after, to + 1));
            (at, here) = (after, to + 1);
        } else if let Some((after, to)) = more(stars, true) {
            stars = Some((after, to + 1));
            star = None;
            (at, here) = (after, to + 1);
        } else {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCKER: &[u8] = b"/system.slice/docker-0123abcd.scope";
    const POD: &[u8] =
        b"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-ff.scope";

    fn of(rules: &str, path: &[u8]) -> Sees {
        Rules::parse(rules.as_bytes()).expect("sound rules").of(path)
    }

    #[test]
    fn caller_without_matching_rule_sees_own() {
        assert_eq!(of("", DOCKER), Sees::Own);
        assert_eq!(of("host /system.slice/docker-9*.scope", DOCKER), Sees::Own);
        assert_eq!(of("host /system", DOCKER), Sees::Own, "names are not cut");
    }

    #[test]
    fn rule_matches_cgroup_and_descendants() {
        for glob in ["/system.slice", "/system.slice/docker-*.scope", "**/docker-0???abcd.scope", "**", "/*/*"] {
            assert_eq!(of(&std::format!("host {glob}"), DOCKER), Sees::Host, "{glob}");
        }
        assert_eq!(of("host /*", b"/"), Sees::Own, "the root is everybody's");
        assert_eq!(of("host **", b"/"), Sees::Own, "the root is everybody's");
    }

    #[test]
    fn first_matching_rule_decides() {
        assert_eq!(of("own /system.slice\nhost **", DOCKER), Sees::Own);
        assert_eq!(of("host **\nown /system.slice", DOCKER), Sees::Host);
    }

    #[test]
    fn group_is_deepest_matching_cgroup() {
        assert_eq!(of("group **/kubepods*-pod*.slice", POD), Sees::Group { depth: 3 });
        assert_eq!(of("group /kubepods.slice", POD), Sees::Group { depth: 1 });
        assert_eq!(of("group **", POD), Sees::Group { depth: 4 });
    }

    #[test]
    fn single_star_stays_within_component() {
        assert_eq!(of("host /*.scope", DOCKER), Sees::Own);
        assert_eq!(of("host /**.scope", DOCKER), Sees::Host);
        assert_eq!(of("host **/a*b/c", b"/x/ab/c"), Sees::Host);
        assert_eq!(of("host **/a*b/c", b"/ab/x/aab/c/d"), Sees::Host, "the first a*b is followed by something else");
    }

    #[test]
    fn deep_cgroup_is_matched_by_first_names() {
        let deep = |names: usize| "/a".repeat(names);
        for names in [1, MOST_NAMES, MOST_NAMES + 1, 2000] {
            let depth = names.min(MOST_NAMES) as u32;
            assert_eq!(of("group **", deep(names).as_bytes()), Sees::Group { depth }, "{names}");
            assert_eq!(of("group /a", deep(names).as_bytes()), Sees::Group { depth: 1 }, "{names}");
        }
        assert_eq!(of("host **/b", std::format!("{}/b", deep(MOST_NAMES - 1)).as_bytes()), Sees::Host);
        assert_eq!(of("host **/b", std::format!("{}/b", deep(MOST_NAMES)).as_bytes()), Sees::Own, "deeper");
        let long = std::format!("/{}", "b".repeat(255)).repeat(MOST_NAMES);
        assert_eq!(of("group **", long.as_bytes()), Sees::Group { depth: (MOST_BYTES / 256) as u32 });
        assert_eq!(beginning(b"/"), b"/");
        assert_eq!(beginning(b""), b"");
        assert_eq!(beginning(&[b'a'; 2000]), b"", "a name that no kernel has");
        // The most work that a path can cause: only as much of it is matched as the longest path of containers has.
        for path in [deep(2000), long] {
            assert!(beginning(path.as_bytes()).len() <= MOST_BYTES);
        }
    }

    #[test]
    fn invalid_text_leaves_no_rules() {
        let mut text = *b"own /a\n\nhost /system.slice\ngroup **";
        let mut table = Table::EMPTY;
        assert_eq!(table.read(&text), Ok(()));
        assert_eq!(table.of(&text, DOCKER), Sees::Host);
        // The table decides: neither words nor lines are parsed again.
        text[8..12].copy_from_slice(b"own ");
        text[26] = b'!';
        assert_eq!(table.of(&text, DOCKER), Sees::Host);
        assert_eq!(table.of(b"", DOCKER), Sees::Own, "a text that is not the table's is never read beyond its end");
        assert!(table.read(b"host **\nnone").is_err());
        assert_eq!(table.of(b"host **\nnone", DOCKER), Sees::Own);
    }

    #[test]
    fn first_bad_line_is_named() {
        for (text, line) in [
            ("hosts /a", 1),
            ("host /a\n\nown a", 3),
            ("host ", 1),
            ("host\t/a", 1),
            ("host /a\r\nbe", 2),
            ("host /a\0", 1),
        ] {
            assert_eq!(Rules::parse(text.as_bytes()).err(), Some(BadRule { line }), "{text:?}");
        }
        let long = std::format!("host /{}", "a".repeat(LONGEST_GLOB));
        assert_eq!(Rules::parse(long.as_bytes()).err(), Some(BadRule { line: 1 }));
        let many = "host /a\n".repeat(MOST_RULES + 1);
        assert_eq!(Rules::parse(many.as_bytes()).err(), Some(BadRule { line: MOST_RULES as u32 + 1 }));
        assert!(Rules::parse("host /a\n".repeat(MOST_RULES).as_bytes()).is_ok());
    }
}
