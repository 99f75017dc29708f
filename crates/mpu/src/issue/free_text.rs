//! What free text may tell besides names: numbers of processes and users, ids, and paths of somebody's.
//!
//! Owns how they are found in a line. Knows no names.

/// Stands for a path.
pub const PATH: &str = "<path>";

/// Folders whose files belong to the system or to us.
const FOLDERS: [&str; 25] = [
    "/lib/modules/",
    "/usr/bin/",
    "/usr/sbin/",
    "/usr/src/",
    "/usr/lib",
    "/usr/lib64",
    "/boot/",
    "/sys/",
    "/proc/sys/",
    "/proc/driver/",
    "/proc/version",
    "/proc/config.gz",
    "/etc/mpu",
    "/etc/dkms",
    "/etc/docker/daemon.json",
    "/etc/containerd/",
    "/etc/crio/",
    "/etc/containers/",
    "/etc/ld.so.preload",
    "/etc/modprobe.d",
    "/var/lib/mpu",
    "/var/lib/dkms",
    "/var/lib/shim-signed",
    "/run/mpu",
    "/dev/null",
];
/// What the driver's nodes begin with.
const NODES: &str = "/dev/nvidia";
/// Folders of the kernel's tree, as its makefiles name them, and files that our own advice names.
const RELATIVE: [&str; 6] =
    ["include/", "arch/", "scripts/", "docs/container/README.md", "mpu-container_", "mpu-container-"];
/// An id of a container, cut as short as tools print it.
const SHORTEST_ID: usize = 12;
/// What ends before a path begins.
const BEFORE_PATHS: &[char] = &['=', ':', ';', ',', '|', '(', '[', '{', '<', '>', '"', '\'', '`'];
/// What a holder's line goes on with behind the brackets. A program's name may have brackets of its own.
const BEHIND_HOLDERS: [&str; 3] = [") in control ", ") in an ioctl ", "), whose argument "];
/// What is counted, as somebody's number.
const COUNTED: [&str; 10] = ["process", "pid", "ppid", "tgid", "tid", "task", "thread", "uid", "gid", "user"];

/// A line without them.
pub fn hide(line: &str) -> String {
    paths(&without_holders(line))
}

/// `process 4242 (python3, in container x)` without what is between the brackets, which go as far as they can: what is
/// between them is chosen by others.
fn without_holders(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("process ") {
        out += before;
        out += "process ";
        let digits = after.chars().take_while(char::is_ascii_digit).count();
        rest = match after[digits..].strip_prefix(" (") {
            Some(inner) if digits > 0 => {
                out += "<number> (<names>)";
                let ours = BEHIND_HOLDERS.iter().filter_map(|behind| inner.rfind(behind)).max();
                ours.or_else(|| inner.rfind(')')).map_or("", |at| &inner[at + 1..])
            }
            _ => after,
        };
    }
    out + rest
}

/// Paths from where they begin, at any place in a word, to the word's end; or to the quote that closes them. A path of
/// the system's stays, and what stands behind it in the same word is looked at anew.
fn paths(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut numbers = Numbers::default();
    let mut rest = line;
    while let Some(slash) = rest.find('/') {
        let ends = |c: char| c.is_whitespace() || BEFORE_PATHS.contains(&c);
        let start = rest[..slash].char_indices().rev().find(|(_, c)| ends(*c)).map_or(0, |(at, c)| at + c.len_utf8());
        // The folder behind an option of a compiler's: `-I/usr/include`.
        let start = if is_option(&rest[start..slash]) { start + 2 } else { start };
        let (before, path) = rest.split_at(start);
        out += &numbers.hide(before);
        let own = path.find(|c: char| !(c.is_alphanumeric() || "/._-+~@".contains(c))).unwrap_or(path.len());
        let is_alone = &path[..own] == "/" && path[own..].chars().next().is_none_or(char::is_whitespace);
        if is_alone || is_of_the_system(&path[..own]) || is_no_path(&path[..own]) {
            out += if is_id(&path[..own]) { "<id>" } else { &path[..own] };
            rest = &path[own..];
            continue;
        }
        let quote = before.chars().next_back().filter(|c| "'\"`".contains(*c));
        let word = path.find(char::is_whitespace).unwrap_or(path.len());
        let end = quote
            .and_then(|quote| path.find(quote))
            .unwrap_or_else(|| path[..word].trim_end_matches([',', ';', ':', '.', ')', '\'', '"', '`']).len().max(1));
        out += PATH;
        rest = &path[end..];
    }
    out + &numbers.hide(rest)
}

/// Whether a path is the system's or ours.
pub fn is_of_the_system(path: &str) -> bool {
    let is_straight = !path.split('/').any(|part| part == "..");
    let plain = path.strip_prefix("./").unwrap_or(path);
    is_straight
        && (FOLDERS.iter().any(|folder| is_below(path, folder))
            || path.starts_with(NODES)
            || RELATIVE.iter().any(|known| plain.starts_with(known)))
}

/// Whether it is the folder, or in it: what a name of somebody's only begins like is neither.
fn is_below(path: &str, folder: &str) -> bool {
    let rest = path.strip_prefix(folder.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn is_option(text: &str) -> bool {
    text.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
}

/// `3/8` is no path, nor is a system's name.
fn is_no_path(text: &str) -> bool {
    text == "GNU/Linux"
        || text.starts_with(|c: char| c.is_ascii_digit())
            && text.chars().all(|c| c.is_ascii_digit() || "./".contains(c))
}

/// Looks at a line word by word. What stands before a number says whether it is somebody's.
#[derive(Default)]
struct Numbers {
    counted: Option<Counted>,
    /// What stood between the last word and this one.
    gap: String,
}

struct Counted {
    /// `processes`: all numbers of the list that follows are theirs.
    several: bool,
    listed: bool,
}

impl Numbers {
    /// A part of the line without numbers of somebody's and ids.
    fn hide(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let in_word = |c: char| c.is_alphanumeric() || "._-+~".contains(c);
            let end = rest.find(|c| !in_word(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            out += match word {
                "" => "",
                _ if self.is_somebodys(word, after) => "<number>",
                _ if is_id(word) => "<id>",
                _ => word,
            };
            let between = after.chars().next().map_or(0, char::len_utf8);
            self.gap += &after[..between];
            out += &after[..between];
            rest = &after[between..];
        }
        out
    }

    fn is_somebodys(&mut self, word: &str, after: &str) -> bool {
        let gap = std::mem::take(&mut self.gap);
        let lower = word.to_lowercase();
        let is_number = word.starts_with(|c: char| c.is_ascii_digit())
            && word.trim_end_matches('.').chars().all(|c| c.is_ascii_digit() || c == '-');
        if !is_number {
            let one = COUNTED.contains(&lower.as_str());
            let several = lower == "processes" || lower.strip_suffix('s').is_some_and(|one| COUNTED.contains(&one));
            if one || several {
                self.counted = Some(Counted { several, listed: false });
            } else if !["and", "or", "to"].contains(&lower.as_str()) {
                self.counted = None;
            }
            return false;
        }
        let Some(counted) = &mut self.counted else { return false };
        // `process 7, 22 threads`, `3 processes, 4 GPUs`
        let is_of_others = after.strip_prefix(' ').is_some_and(|next| next.starts_with(char::is_alphabetic));
        let is_theirs = match counted.listed {
            false => !gap.contains(','),
            true => counted.several || !is_of_others,
        };
        counted.listed |= is_theirs;
        is_theirs
    }
}

/// As runtimes and Kubernetes write ids: many hexadecimal digits, perhaps in groups, perhaps after a word.
fn is_id(word: &str) -> bool {
    let is_hex = |part: &str| {
        let digits = part.chars().filter(|c| *c != '-').count();
        digits >= SHORTEST_ID
            && part.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
            && part.chars().any(|c| c.is_ascii_digit())
    };
    word.split(['.', '/', '_']).any(is_hex) || word.split(['.', '/', '_', '-']).any(is_hex)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(texts: &[(&str, &str)]) {
        for (text, told) in texts {
            assert_eq!(hide(text), *told, "{text}");
        }
    }

    #[test]
    fn a_path_goes_from_its_beginning_to_its_end() {
        check(&[
            ("CC [M] /home/ada/mpu.o", "CC [M] <path>"),
            ("/srv/acme@prod/secret-llm/mpu.ko (named)", "<path> (named)"),
            ("-I/home/ada/acme/inc -I./include/x --sysroot=/home/ada", "-I<path> -I./include/x --sysroot=<path>"),
            ("-isystem/home/ada and secret-llm/mpu.c:3:1:", "<path> and <path>:"),
            ("'/home/ada/My Own Models/x', \"/srv/a b\" and `/srv/c d`", "'<path>', \"<path>\" and `<path>`"),
            ("make: Entering directory '/usr/src/linux'", "make: Entering directory '/usr/src/linux'"),
            ("/home/ada/My Models/llama/mpu.ko", "<path> <path>"),
            ("/usr/bin/x:/home/ada/bin", "/usr/bin/x:<path>"),
            ("/usr/src/../../home/ada and ~/x, and ../secret", "<path> and <path>, and <path>"),
            ("(/home/ada/x), /", "(<path>), /"),
            ("é/secret/é ü/", "<path> <path>"),
            ("/usr/src/linux/a.c:12:5: error: pid 7", "/usr/src/linux/a.c:12:5: error: pid <number>"),
            (
                "cat /sys/kernel/livepatch and /lib/modules/6.1.0/build",
                "cat /sys/kernel/livepatch and /lib/modules/6.1.0/build",
            ),
            ("3/8 of Debian GNU/Linux 12", "3/8 of Debian GNU/Linux 12"),
            ("/etc/mpu-acme/x, /run/mpu-secret, /usr/libacme/x", "<path>, <path>, <path>"),
            (
                "/etc/mpu/config.toml, /run/mpu, /usr/lib64/x, /dev/nvidiactl",
                "/etc/mpu/config.toml, /run/mpu, /usr/lib64/x, /dev/nvidiactl",
            ),
        ]);
    }

    #[test]
    fn numbers_of_somebody_go_and_counts_stay() {
        check(&[
            ("pid 4242, uid=1000, 22 processes, PID: 7", "pid <number>, uid=<number>, 22 processes, PID: <number>"),
            ("processes 4242, 4343 and 44 hold it", "processes <number>, <number> and <number> hold it"),
            ("PIDs: 4242,4343; tasks 1-9.", "PIDs: <number>,<number>; tasks <number>"),
            ("pid 4242, 4343", "pid <number>, <number>"),
            ("3 processes, 4 GPUs, 5 of 6", "3 processes, 4 GPUs, 5 of 6"),
            ("docker-3f2a81bc9d0e44aa.scope", "<id>"),
            ("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "<id>"),
            ("kernel 6.1.0-28-amd64, driver 550.163.01", "kernel 6.1.0-28-amd64, driver 550.163.01"),
        ]);
    }

    #[test]
    fn brackets_in_a_programs_name_end_nothing() {
        check(&[
            (
                "process 4242 (python3, in container x) in control GPU_GET_PIDS (0x2080018d)",
                "process <number> (<names>) in control GPU_GET_PIDS (0x2080018d)",
            ),
            (
                "process 4242 (a) secret, in container x) in control GPU_GET_PIDS (0x2080018d) for 3 s",
                "process <number> (<names>) in control GPU_GET_PIDS (0x2080018d) for 3 s",
            ),
            ("process 4242 (a) in an ioctl x) in an ioctl y", "process <number> (<names>) in an ioctl y"),
            ("stop, process 4242 (a) secret) end", "stop, process <number> (<names>) end"),
            ("process 4242 (secret", "process <number> (<names>)"),
        ]);
    }
}
