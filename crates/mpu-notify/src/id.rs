//! What is kept of a container's id.
//!
//! Owns that it fits where it is kept, and that no two ids come to the same.

use sha2::{Digest, Sha256};

/// Of an id, so much is kept: twice what Docker and containerd show of theirs.
const LONGEST_ID: usize = 24;
/// Of an id that is not kept as it is, so much is a digest of all of it, in digits of five bits.
const DIGEST: usize = 11;
const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// What stands before the digest, and in no name that is kept as it is.
const BEFORE_DIGEST: char = '~';
/// Stands for a container without an id.
const NAMELESS: &str = "unknown";

/// What is kept of a container's id: characters that a keeper's names may have, and not too many. No two ids have the same.
///
/// The digits that fit distinguish a random id from all others. One that is longer or has other characters ends in a digest.
pub(crate) fn kept_id(container: &str) -> String {
    let is_hex = container.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex && container.len() > LONGEST_ID {
        return container[..LONGEST_ID].to_string();
    }
    let ok = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    // So many digits are the beginning of another's.
    let is_short = container.len() < LONGEST_ID + usize::from(!is_hex);
    match container {
        "" => NAMELESS.to_string(),
        id if is_short && id != NAMELESS && id.chars().all(|c| ok(&c)) => id.to_string(),
        id => {
            let beginning = id.chars().filter(ok).take(LONGEST_ID - DIGEST - 1);
            beginning.chain([BEFORE_DIGEST]).chain(digest(id)).collect()
        }
    }
}

fn digest(id: &str) -> impl Iterator<Item = char> {
    let digest: [u8; 32] = Sha256::digest(id).into();
    let number = u64::from_le_bytes(*digest.first_chunk().unwrap_or(&[0; 8]));
    (0..DIGEST).map(move |place| char::from(DIGITS[(number >> (5 * place)) as usize % DIGITS.len()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_containers_never_have_the_same_name() {
        let hex = "0123456789abcdef".repeat(4);
        for id in ["a", "mpu-run-4711", "k8s_pod.1_c-23-characte", "k8s_pod.1_c-24-character"] {
            assert_eq!(kept_id(id), id, "what fits is kept");
        }
        assert_eq!(kept_id(&hex), hex[..24], "an id of Docker's or containerd's is known by its beginning");
        let long = "a-name-that-goes-on-and-on-for-";
        let ids = ["my-pod/c0", "my-podc0", "my-pod c0", "\u{fc}", "\u{e4}", "", "unknown", "~", &hex, &hex[..24]];
        let long = (0..100).map(|number| format!("{long}{number}")).chain([long.to_string()]);
        let all: Vec<String> = ids.iter().map(|id| id.to_string()).chain(long).collect();
        // A digest is no way around it either.
        let all: Vec<String> = all.iter().cloned().chain(all.iter().map(|id| kept_id(id))).collect();
        let ids: std::collections::BTreeSet<&String> = all.iter().collect();
        let names: std::collections::BTreeSet<String> = ids.iter().map(|id| kept_id(id)).collect();
        assert_eq!(names.len(), ids.len(), "{names:?}");
        assert!(names.iter().all(|name| name.len() <= LONGEST_ID && !name.is_empty()));
    }
}
