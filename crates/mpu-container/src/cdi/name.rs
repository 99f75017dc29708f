//! Qualified names: `vendor/class=device`.
//!
//! Source: CDI specification 1.1.0, "CDI JSON Specification", `kind` and `name`. It does not define names of one character;
//! for those, the reference parser, `pkg/parser/parser.go`.

use std::fmt;
use std::str::FromStr;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedName {
    kind: Kind,
    device: String,
}

/// `vendor/class`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    vendor: String,
    class: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    #[error("'{0}' is not a qualified CDI name; it must read vendor/class=device, as in nvidia.com/gpu=0")]
    Unqualified(String),
    #[error("'{0}' is not a CDI kind; it must read vendor/class, as in nvidia.com/gpu")]
    NoKind(String),
    #[error("'{text}' is not a CDI {part} name: {why}")]
    Part { part: &'static str, text: String, why: &'static str },
}

impl QualifiedName {
    pub fn new(kind: Kind, device: &str) -> Result<QualifiedName, NameError> {
        check("device", device, |first| first.is_ascii_alphanumeric(), "-_.:")?;
        Ok(QualifiedName { kind, device: device.into() })
    }

    /// `vendor/class`.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Whether the vendor is `nvidia.com` or a subdomain, such as the device plugin's `k8s.device-plugin.nvidia.com`.
    pub fn is_nvidia(&self) -> bool {
        self.kind.vendor == "nvidia.com" || self.kind.vendor.ends_with(".nvidia.com")
    }

    /// The part after `=`.
    pub fn device(&self) -> &str {
        &self.device
    }

    pub fn is_valid(text: &str) -> bool {
        text.parse::<QualifiedName>().is_ok()
    }
}

impl FromStr for QualifiedName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<QualifiedName, NameError> {
        let unqualified = || NameError::Unqualified(text.into());
        let (kind, device) = text.split_once('=').ok_or_else(unqualified)?;
        let (vendor, class) = kind.split_once('/').ok_or_else(unqualified)?;
        if vendor.is_empty() || class.is_empty() || device.is_empty() {
            return Err(unqualified());
        }
        QualifiedName::new(Kind::new(vendor, class)?, device)
    }
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind, self.device)
    }
}

impl Kind {
    pub fn new(vendor: &str, class: &str) -> Result<Kind, NameError> {
        check("vendor", vendor, |first| first.is_ascii_alphabetic(), "-_.")?;
        check("class", class, |first| first.is_ascii_alphabetic(), "-_.")?;
        Ok(Kind { vendor: vendor.into(), class: class.into() })
    }

    pub fn vendor(&self) -> &str {
        &self.vendor
    }

    pub fn class(&self) -> &str {
        &self.class
    }
}

impl FromStr for Kind {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Kind, NameError> {
        let (vendor, class) = text.split_once('/').ok_or_else(|| NameError::NoKind(text.into()))?;
        Kind::new(vendor, class)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.vendor, self.class)
    }
}

fn check(part: &'static str, text: &str, first: fn(u8) -> bool, inner: &str) -> Result<(), NameError> {
    let bytes = text.as_bytes();
    let fails = |why| Err(NameError::Part { part, text: text.into(), why });
    match (bytes.first(), bytes.last()) {
        (None, _) | (_, None) => fails("it is empty"),
        (Some(head), _) if !first(*head) && part == "device" => fails("it must begin with a letter or digit"),
        (Some(head), _) if !first(*head) => fails("it must begin with a letter"),
        (_, Some(tail)) if !tail.is_ascii_alphanumeric() => fails("it must end with a letter or digit"),
        _ if !bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || inner.as_bytes().contains(byte)) => {
            fails("it may hold ASCII letters, digits, '-', '_' and '.', a device's also ':'")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_grammar() {
        for good in
            ["nvidia.com/gpu=0", "a/b=c", "nvidia.com/gpu.x-y_z=GPU-1:2.a", "V1/c=all", "runtime.nvidia.com/gpu=0:1"]
        {
            assert_eq!(good.parse::<QualifiedName>().map(|name| name.to_string()), Ok(good.to_string()));
        }
        for bad in [
            "",
            "0",
            "all",
            "gpu=0",
            "/gpu=0",
            "nvidia.com/=0",
            "nvidia.com/gpu=",
            "nvidia.com/gpu",
            "1a/b=c",
            "a/1b=c",
            "a/b=-c",
            "a/b=c-",
            "a-/b=c",
            "a/b-=c",
            "a/b=c d",
            "a/b/c=d",
            "a/b=ü",
            "a/b=c=d",
            "a/b=../x",
            "/dev/nvidia0",
            "a\0/b=c",
        ] {
            assert!(!QualifiedName::is_valid(bad), "{bad:?} is no name");
        }
    }

    #[test]
    fn nvidia_subdomain_is_nvidia_lookalike_is_not() {
        let is_nvidia = |name: &str| name.parse::<QualifiedName>().expect("a name").is_nvidia();
        assert!(is_nvidia("nvidia.com/gpu=0") && is_nvidia("k8s.device-plugin.nvidia.com/gpu=0"));
        assert!(!is_nvidia("evilnvidia.com/gpu=0") && !is_nvidia("nvidia.com.evil/gpu=0"));
    }

    #[test]
    fn error_names_malformed_part() {
        let error = "nvidia.com/gpu=a b".parse::<QualifiedName>().unwrap_err().to_string();
        assert!(error.starts_with("'a b' is not a CDI device name: it may hold"), "{error}");
        let error = "nvidia".parse::<QualifiedName>().unwrap_err().to_string();
        assert!(error.contains("as in nvidia.com/gpu=0"), "{error}");
    }
}
