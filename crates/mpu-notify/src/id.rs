//! Shortens container ids for names in the file descriptor store. No two ids get the same short id.

use sha2::{Digest, Sha256};

/// Length of a short id: twice the length that Docker and containerd show.
const MAX_ID: usize = 24;
/// Length of the digest in the short id of an unusual id, in digits of five bits.
const DIGEST_DIGITS: usize = 11;
const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Separates the digest. Unchanged ids do not contain it.
const BEFORE_DIGEST: char = '~';
/// Short id of a container without an id.
const NAMELESS: &str = "unknown";

/// The short id. It has only characters that are allowed in names of the file descriptor store.
///
/// A random hexadecimal id is cut. Any other id that is too long or has other characters ends in a digest.
pub(crate) fn short_id(container: &str) -> String {
    let is_hex = container.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hex && container.len() > MAX_ID {
        return container[..MAX_ID].to_string();
    }
    let is_allowed = |c: &char| c.is_ascii_alphanumeric() || "._-".contains(*c);
    // An id of just that many hexadecimal digits could equal a cut one.
    let is_short = container.len() < MAX_ID + usize::from(!is_hex);
    match container {
        "" => NAMELESS.to_string(),
        id if is_short && id != NAMELESS && id.chars().all(|c| is_allowed(&c)) => id.to_string(),
        id => {
            let beginning = id.chars().filter(is_allowed).take(MAX_ID - DIGEST_DIGITS - 1);
            beginning.chain([BEFORE_DIGEST]).chain(digest(id)).collect()
        }
    }
}

fn digest(id: &str) -> impl Iterator<Item = char> {
    let digest: [u8; 32] = Sha256::digest(id).into();
    let number = u64::from_le_bytes(*digest.first_chunk().unwrap_or(&[0; 8]));
    (0..DIGEST_DIGITS).map(move |place| char::from(DIGITS[(number >> (5 * place)) as usize % DIGITS.len()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_ids_are_unique() {
        let hex = "0123456789abcdef".repeat(4);
        for id in ["a", "mpu-run-4711", "k8s_pod.1_c-23-characte", "k8s_pod.1_c-24-character"] {
            assert_eq!(short_id(id), id, "what fits is kept");
        }
        assert_eq!(short_id(&hex), hex[..24], "an id of Docker's or containerd's is known by its beginning");
        let long = "a-name-that-goes-on-and-on-for-";
        let ids = ["my-pod/c0", "my-podc0", "my-pod c0", "\u{fc}", "\u{e4}", "", "unknown", "~", &hex, &hex[..24]];
        let long = (0..100).map(|number| format!("{long}{number}")).chain([long.to_string()]);
        let all: Vec<String> = ids.iter().map(|id| id.to_string()).chain(long).collect();
        // Short ids as ids.
        let all: Vec<String> = all.iter().cloned().chain(all.iter().map(|id| short_id(id))).collect();
        let ids: std::collections::BTreeSet<&String> = all.iter().collect();
        let names: std::collections::BTreeSet<String> = ids.iter().map(|id| short_id(id)).collect();
        assert_eq!(names.len(), ids.len(), "{names:?}");
        assert!(names.iter().all(|name| name.len() <= MAX_ID && !name.is_empty()));
    }
}
