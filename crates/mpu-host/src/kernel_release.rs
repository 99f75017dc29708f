//! Orders kernel releases, as `uname -r` prints them, and versions of MPU.

/// The numbers of a release, for comparison; numbers in words such as `amd64`, `deb12` or `x86_64` do not count. A release candidate comes
/// before its release: `7.3-rc7` is 7, 3, 0, 7 - 1000, and after the last number is a 0.
pub fn numbers(release: &str) -> Vec<i64> {
    let parts: Vec<&str> = release.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
    let is_number = |part: &&&str| part.parse::<u32>().is_ok();
    let first = parts.iter().take(3).take_while(is_number).count();
    let filled = parts[..first].iter().chain(&["0"; 3][first..]).chain(&parts[first..]).chain(&["0"]);
    filled
        .filter_map(|part| match part.strip_prefix("rc") {
            Some(candidate) => candidate.parse::<u32>().ok().map(|number| i64::from(number) - 1000),
            None => part.parse::<u32>().ok().map(i64::from),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn release_numbers_sort_by_age() {
        let of_old = [
            "5.14.0-427.el9.x86_64",
            "5.14.0-503.11.1.el9_5.x86_64",
            "6.1-amd64",
            "6.1.0-9-amd64",
            "6.1.0-28-cloud-amd64",
            "6.8.0-1013-nvidia-64k",
            "6.12.9-amd64",
            "6.12.95+deb12-amd64",
            "7.3-rc6-amd64",
            "7.3-rc7-amd64",
            "7.3-amd64",
            "7.3.1-arch1-1",
        ];
        for pair in of_old.windows(2) {
            assert!(numbers(pair[0]) < numbers(pair[1]), "{pair:?}: {:?}", numbers(pair[0]));
        }
        assert_eq!(numbers("6.1.0-28-amd64"), numbers("6.1.0-28-rt-amd64"));
        assert_eq!(numbers("junk"), [0; 4]);
    }
}
