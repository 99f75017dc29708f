//! Finds the machine owner's key, and whether the firmware has it. Reads no private key.

use mpu_host::host::Host;
use percent_encoding::percent_decode;

/// A private key with its certificate, as paths of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    /// The private key: a file, or a `pkcs11:` address that the signing tool understands.
    pub private: String,
    pub certificate: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enrolled {
    /// It is in the machine owner's list, or in the firmware's own.
    Yes,
    /// It is in none of the lists. The kernel may still have it built in.
    No,
    /// No list can be read, or the certificate is not in the lists' format (DER).
    Unknown,
}

pub const MPU_KEY: (&str, &str) = ("/etc/mpu/signing.key", "/etc/mpu/signing.der");

pub const DKMS_KEY: (&str, &str) = ("/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub");

/// Those two, and Ubuntu's, which its DKMS uses.
const PLACES: [(&str, &str); 3] =
    [MPU_KEY, DKMS_KEY, ("/var/lib/shim-signed/mok/MOK.priv", "/var/lib/shim-signed/mok/MOK.der")];

/// DKMS's configuration file, which can name another key. Files in the folder `framework.conf.d` override it.
const DKMS_CONFIG: &str = "/etc/dkms/framework.conf";

/// shim's copies of the machine owner's list, as table and variable, and the firmware's own list. All contain whole certificates.
const LISTS: [&str; 3] = [
    "/sys/firmware/efi/mok-variables/MokListRT",
    "/sys/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23",
    "/sys/firmware/efi/efivars/db-d719b2cb-3d3a-4596-a3bc-dad00e67656f",
];

/// Size limit of a certificate or list.
const LIMIT: usize = 1 << 20;

impl Key {
    /// The key to sign with: the first that is enrolled, or the first that is there.
    pub fn find(host: &Host) -> Option<Key> {
        let keys = candidates(host);
        keys.iter().find(|key| key.enrolled(host) == Enrolled::Yes).or(keys.first()).cloned()
    }

    /// The certificate's bytes; empty when it cannot be read.
    pub fn certificate_bytes(&self, host: &Host) -> Vec<u8> {
        host.bounded(&self.certificate, LIMIT).unwrap_or_default()
    }

    pub fn enrolled(&self, host: &Host) -> Enrolled {
        let certificate = self.certificate_bytes(host);
        let lists: Vec<Vec<u8>> = LISTS.iter().filter_map(|list| host.bounded(list, LIMIT)).collect();
        // A certificate in DER is a sequence with a length in two bytes.
        if lists.is_empty() || !certificate.starts_with(&[0x30, 0x82]) {
            return Enrolled::Unknown;
        }
        let contains_certificate = |list: &Vec<u8>| list.windows(certificate.len()).any(|part| part == certificate);
        match lists.iter().any(contains_certificate) {
            true => Enrolled::Yes,
            false => Enrolled::No,
        }
    }

    fn is_there(&self, host: &Host) -> bool {
        let private = self.private.starts_with(PKCS11) || host.at(&self.private).is_file();
        private && host.at(&self.certificate).is_file()
    }
}

fn candidates(host: &Host) -> Vec<Key> {
    let (own, others) = PLACES.split_at(1);
    let key = |(private, certificate): &(&str, &str)| Key {
        private: private.to_string(),
        certificate: certificate.to_string(),
    };
    let keys = own.iter().map(key).chain(dkms_key(host)).chain(others.iter().map(key));
    keys.filter(|key| key.is_there(host)).collect()
}

/// The key that DKMS is configured to use. Its files are shell; values with variables are ignored.
fn dkms_key(host: &Host) -> Option<Key> {
    let folder = format!("{DKMS_CONFIG}.d");
    let names = host.names(&folder).into_iter().filter(|name| name.ends_with(".conf"));
    let parts = names.map(|name| format!("{folder}/{name}"));
    let (mut private, mut certificate) = (None, None);
    for part in std::iter::once(DKMS_CONFIG.to_string()).chain(parts) {
        let text = host.bounded(&part, LIMIT).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        for line in text.unwrap_or_default().lines() {
            let Some((name, value)) = line.trim().split_once('=') else { continue };
            let value = value.trim_matches(['"', '\'']).to_string();
            match name {
                _ if value.contains('$') => {}
                "mok_signing_key" => private = Some(value),
                "mok_certificate" => certificate = Some(value),
                _ => {}
            }
        }
    }
    let (private, certificate) = (private?, certificate?);
    // The signing tool asks for the PIN itself, and reports if it is missing.
    let private = if has_pin(&private) { without_pin(&private) } else { private };
    Some(Key { private, certificate })
}

// The address of a key in a token may have a PIN (RFC 7512, `pin-value`). Every user can read a command line, and logs repeat it, so no
// address with a PIN is passed on.

/// The prefix of a token key's address.
pub(super) const PKCS11: &str = "pkcs11:";

const PIN: &str = "pin-value";

/// Whether a key's address has a PIN, in any spelling.
pub(super) fn has_pin(name: &str) -> bool {
    let plain = percent_decode_all(name);
    plain.trim_start().starts_with(PKCS11) && plain.contains(PIN)
}

fn without_pin(address: &str) -> String {
    let parts = address.split_inclusive([';', '?', '&']).filter(|part| !percent_decode_all(part).contains(PIN));
    parts.collect::<String>().trim_end_matches([';', '?', '&']).to_string()
}

/// In lower case, with all levels of percent encoding decoded.
fn percent_decode_all(text: &str) -> String {
    let mut text = text.as_bytes().to_vec();
    loop {
        let decoded: Vec<u8> = percent_decode(&text).collect();
        if decoded == text {
            return String::from_utf8_lossy(&text).to_lowercase();
        }
        text = decoded;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpu_host::host::fake::FakeHost;
    use std::fs;

    const DER: [u8; 6] = [0x30, 0x82, 0, 2, 7, 9];

    fn put(fake: &FakeHost, place: (&str, &str), certificate: &[u8]) {
        fake.write(place.0, "private");
        fake.write(place.1, "");
        fs::write(fake.host().at(place.1), certificate).expect("a certificate");
    }

    fn found(fake: &FakeHost) -> Option<String> {
        Key::find(&fake.host()).map(|key| key.private)
    }

    fn list(fake: &FakeHost, path: &str, bytes: &[u8]) {
        fake.write(path, "");
        fs::write(fake.host().at(path), bytes).expect("a list");
    }

    #[test]
    fn complete_keys_are_found_in_usual_places() {
        for place in PLACES {
            let fake = FakeHost::in_order();
            assert_eq!(found(&fake), None);
            fake.write(place.0, "private");
            assert_eq!(found(&fake), None, "half a pair");
            put(&fake, place, &DER);
            assert_eq!(found(&fake).as_deref(), Some(place.0));
        }
    }

    #[test]
    fn signing_key_comes_from_dkms_configuration() {
        let fake = FakeHost::in_order();
        put(&fake, PLACES[1], &DER);
        put(&fake, ("/root/k", "/root/c"), &DER);
        fake.write(
            DKMS_CONFIG,
            "# mok_signing_key=/no\nmok_signing_key=\"/root/k\"\nmok_certificate=/root/$kernelver\n",
        );
        assert_eq!(found(&fake).as_deref(), Some(PLACES[1].0), "half an answer");
        fake.write(&format!("{DKMS_CONFIG}.d/own.conf"), "mok_certificate='/root/c'\n");
        assert_eq!(found(&fake).as_deref(), Some("/root/k"));
        fake.write(&format!("{DKMS_CONFIG}.d/token.conf"), "mok_signing_key=pkcs11:object=mok\n");
        assert_eq!(found(&fake).as_deref(), Some("pkcs11:object=mok"));
        fake.write(&format!("{DKMS_CONFIG}.d/token.conf"), "mok_signing_key='pkcs11:object=mok?pin-value=4711'\n");
        assert_eq!(found(&fake).as_deref(), Some("pkcs11:object=mok"), "the PIN goes nowhere");
        fake.write(&format!("{DKMS_CONFIG}.d/token.conf"), "mok_signing_key=pkcs11:pin-value=4711\n");
        assert_eq!(found(&fake).as_deref(), Some(PLACES[1].0), "nothing else is left of that address");
    }

    #[test]
    fn certificate_is_enrolled_when_list_holds_it_whole() {
        let fake = FakeHost::in_order();
        put(&fake, PLACES[1], &DER);
        let key = Key::find(&fake.host()).expect("a key");
        let check = |expect| assert_eq!(key.enrolled(&fake.host()), expect);
        check(Enrolled::Unknown);
        for path in LISTS {
            list(&fake, path, &DER[..5]);
            check(Enrolled::No);
            list(&fake, path, &[b"\x06\0\0\0 list ".as_slice(), &DER, b"more"].concat());
            check(Enrolled::Yes);
            fake.remove(path);
        }
        list(&fake, LISTS[0], b"");
        check(Enrolled::No);
        put(&fake, PLACES[1], b"-----BEGIN CERTIFICATE-----");
        check(Enrolled::Unknown);
        put(&fake, PLACES[1], b"");
        check(Enrolled::Unknown);
    }

    #[test]
    fn enrolled_key_comes_before_the_others() {
        let fake = FakeHost::in_order();
        put(&fake, PLACES[1], &DER);
        put(&fake, PLACES[2], &[0x30, 0x82, 1]);
        assert_eq!(found(&fake).as_deref(), Some(PLACES[1].0));
        list(&fake, LISTS[0], &[0, 0x30, 0x82, 1]);
        assert_eq!(found(&fake).as_deref(), Some(PLACES[2].0));
    }

    #[test]
    fn pin_value_attribute_is_recognized() {
        for name in ["/keys/pin-value.pem", "pkcs11:token=t?pin-source=file:/root/pin", "pkcs11:object=100%25%zz%", ""]
        {
            assert!(!has_pin(name), "{name}");
        }
        assert!(has_pin("pkcs11:token=t?pin-value=1") && has_pin("pkcs11:token=t;pin%2Dvalue=1"));
    }

    #[test]
    fn address_keeps_all_but_pin() {
        for (address, expect) in [
            ("pkcs11:token=t;object=k?pin-value=1", "pkcs11:token=t;object=k"),
            ("pkcs11:token=t?PIN%2Dvalue=1&module-path=/x", "pkcs11:token=t?module-path=/x"),
            ("pkcs11:token=t;type=private", "pkcs11:token=t;type=private"),
            ("pkcs11:pin-value=1", ""),
        ] {
            assert_eq!(without_pin(address), expect);
        }
    }
}
