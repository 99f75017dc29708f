//! A PIN in the address of a key in a token (RFC 7512, `pin-value`).
//!
//! Owns how such an address, and a PIN in it, are recognised. A tool is given the address on its command line, which every user of a
//! machine can read, and messages and logs repeat it: so no address with a PIN goes any further.

/// How the address of a key in a token begins.
pub(super) const PKCS11: &str = "pkcs11:";

const PIN: &str = "pin-value";

/// Whether a key's name is an address that carries one, however it is spelled.
pub(super) fn is_in(name: &str) -> bool {
    let plain = plain(name);
    plain.trim_start().starts_with(PKCS11) && plain.contains(PIN)
}

pub(super) fn taken_from(address: &str) -> String {
    let parts = address.split_inclusive([';', '?', '&']).filter(|part| !plain(part).contains(PIN));
    parts.collect::<String>().trim_end_matches([';', '?', '&']).to_string()
}

/// In lower case and without percent signs that stand for something else, however often they were put there.
fn plain(text: &str) -> String {
    let mut text = text.as_bytes().to_vec();
    loop {
        let decoded = decoded(&text);
        if decoded == text {
            return String::from_utf8_lossy(&text).to_lowercase();
        }
        text = decoded;
    }
}

fn decoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_told_from_names_that_are_like_it() {
        for name in ["/keys/pin-value.pem", "pkcs11:token=t?pin-source=file:/root/pin", "pkcs11:object=100%25%zz%", ""]
        {
            assert!(!is_in(name), "{name}");
        }
        assert!(is_in("pkcs11:token=t?pin-value=1") && is_in("pkcs11:token=t;pin%2Dvalue=1"));
    }

    #[test]
    fn an_address_keeps_all_but_the_pin() {
        for (address, expect) in [
            ("pkcs11:token=t;object=k?pin-value=1", "pkcs11:token=t;object=k"),
            ("pkcs11:token=t?PIN%2Dvalue=1&module-path=/x", "pkcs11:token=t?module-path=/x"),
            ("pkcs11:token=t;type=private", "pkcs11:token=t;type=private"),
            ("pkcs11:pin-value=1", ""),
        ] {
            assert_eq!(taken_from(address), expect);
        }
    }
}
