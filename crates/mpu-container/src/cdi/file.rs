//! Reads and writes CDI files.
//!
//! Unknown fields are refused, as all engines do. Otherwise a misspelt `mounts` would give a container without mounts.

use crate::edits::Spec;
use mpu_os::file::{self, Links, Mode};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use serde_saphyr::DoubleQuoted;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Limit of a file's size. A spec of 8 GPUs with 7 MIG devices each takes about 100 KiB.
pub const MAX_SIZE: u64 = 4 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Json,
    Yaml,
}

impl Format {
    pub fn of_path(path: &Path) -> Option<Format> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "json" => Some(Format::Json),
            "yaml" | "yml" => Some(Format::Yaml),
            _ => None,
        }
    }
}

/// A spec cannot be read. The text contains the cause, so that a list of broken files has one line for each.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ReadError(String);

impl From<serde_json::Error> for ReadError {
    fn from(error: serde_json::Error) -> ReadError {
        ReadError(format!("not a CDI spec in JSON: {error}"))
    }
}

impl From<serde_saphyr::Error> for ReadError {
    fn from(error: serde_saphyr::Error) -> ReadError {
        // The parser shows the position on further lines.
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        ReadError(format!("not a CDI spec in YAML: {}", line.strip_prefix("error: ").unwrap_or(line)))
    }
}

impl From<io::Error> for ReadError {
    fn from(error: io::Error) -> ReadError {
        ReadError(match error.kind() {
            io::ErrorKind::InvalidInput => "it is not a regular file".into(),
            io::ErrorKind::FileTooLarge => format!("it is larger than {} MiB", MAX_SIZE >> 20),
            _ => format!("cannot read it: {error}"),
        })
    }
}

/// A file cannot be written. An earlier file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("'{0}' is not the path of a file")]
    NoName(PathBuf),
    #[error("cannot write {path}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// Parses a spec without validating it. Of several YAML documents the first one counts, as for engines.
pub fn parse(bytes: &[u8], format: Format) -> Result<Spec, ReadError> {
    let parsed: Parsed = match format {
        Format::Json => serde_json::from_slice(bytes)?,
        Format::Yaml => {
            // Engines read YAML 1.1's octal numbers (`fileMode: 0666`), so we do. No spec needs many aliases.
            let options = serde_saphyr::options! {
                legacy_octal_numbers: true,
                alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 10_000 },
            };
            let first = serde_saphyr::read_with_options(&mut &*bytes, options).next();
            first.ok_or_else(|| ReadError("not a CDI spec in YAML: there is nothing in it".into()))??
        }
    };
    match parsed.unknown.is_empty() {
        true => Ok(parsed.spec),
        false => Err(ReadError(format!("CDI has no field {}", parsed.unknown.join(", ")))),
    }
}

struct Parsed {
    spec: Spec,
    unknown: Vec<String>,
}

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Parsed, D::Error> {
        let mut unknown = Vec::new();
        let spec = serde_ignored::deserialize(from, |path| unknown.push(field_path(&path)))?;
        Ok(Parsed { spec, unknown })
    }
}

/// A field's path. `serde_ignored` adds a part `?` for each optional value.
fn field_path(path: &serde_ignored::Path) -> String {
    path.to_string().split('.').filter(|part| *part != "?").collect::<Vec<_>>().join(".")
}

pub fn read(path: &Path) -> Result<Spec, ReadError> {
    parse_named(&file::read_bounded(path, MAX_SIZE, Links::Followed)?, path)
}

/// Parses the contents of a file. The error is that of its name's format.
pub fn parse_named(bytes: &[u8], path: &Path) -> Result<Spec, ReadError> {
    // CDI's own library reads any file as YAML, whatever its name.
    match Format::of_path(path) {
        Some(Format::Json) => parse(bytes, Format::Json).or_else(|error| parse(bytes, Format::Yaml).map_err(|_| error)),
        _ => parse(bytes, Format::Yaml),
    }
}

/// Writes a spec as text. Equal specs give equal text.
pub fn serialize(spec: &Spec, format: Format) -> String {
    match format {
        Format::Json => {
            let mut text = serde_json::to_string_pretty(spec).expect("a spec has string keys only");
            text.push('\n');
            text
        }
        Format::Yaml => {
            let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
            let tree = serde_json::to_value(spec).expect("a spec has string keys only");
            let text =
                serde_saphyr::to_string_with_options(&Plain(&tree), options).expect("a spec is a tree of scalars");
            format!("---\n{text}")
        }
    }
}

/// Replaces a file atomically, readable by all. Creates its directory.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    let failed = |source| WriteError::Io { path: path.into(), source };
    path.file_name().ok_or_else(|| WriteError::NoName(path.into()))?;
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    file::replace_file_atomically(path, bytes, Mode::Of(0o644)).map(drop).map_err(failed)
}

/// A JSON tree for another serializer: `serde_json`'s numbers of arbitrary precision need a conversion.
struct Plain<'a>(&'a Value);

impl Serialize for Plain<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Number(number) => match (number.as_u64(), number.as_i64(), number.as_f64()) {
                (Some(number), _, _) => to.serialize_u64(number),
                (_, Some(number), _) => to.serialize_i64(number),
                (_, _, number) => to.serialize_f64(number.unwrap_or(f64::NAN)),
            },
            Value::String(text) if is_number_of_yaml_1_1(text) => DoubleQuoted(text).serialize(to),
            Value::Array(values) => to.collect_seq(values.iter().map(Plain)),
            Value::Object(fields) => to.collect_map(fields.iter().map(|(name, value)| (name, Plain(value)))),
            other => other.serialize(to),
        }
    }
}

/// Whether a text is a number or a date in YAML 1.1 but not in YAML 1.2: `1:0` is 60.
fn is_number_of_yaml_1_1(text: &str) -> bool {
    let parts = |letter: char| letter.is_ascii_digit() || "+-.:_".contains(letter);
    text.contains([':', '-', '_']) && text.chars().all(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const YAML: &str = "---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: 0
  containerEdits:
    deviceNodes:
    - {path: /dev/nvidia0, major: 195, minor: 0, fileMode: 0666, permissions: rwm}
    hooks:
    - hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
      args: [nvidia-cdi-hook, chmod, --mode, 755]
";

    #[test]
    fn yaml_is_read_as_engines_read_it() {
        let spec = parse(YAML.as_bytes(), Format::Yaml).unwrap();
        let edits = &spec.devices[0].container_edits;
        assert_eq!(spec.devices[0].name, "0", "a number is a name, where a name is wanted");
        assert_eq!(edits.device_nodes[0].file_mode, Some(0o666));
        assert_eq!(edits.hooks[0].args[3], "755");
    }

    #[test]
    fn yaml_in_json_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nvidia.json");
        fs::write(&path, YAML).unwrap();
        assert_eq!(read(&path).unwrap(), parse(YAML.as_bytes(), Format::Yaml).unwrap());
        fs::write(&path, r#"{"cdiVersion": "0.5.0", "x": 1"#).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.starts_with("not a CDI spec in JSON: EOF"), "{error}");
    }

    #[test]
    fn written_spec_round_trips_to_same_text() {
        let mut spec = parse(YAML.as_bytes(), Format::Yaml).unwrap();
        for name in ["0:1", "1e3", "yes", "null", "0x1", "MIG-1", "010", "1.5", "2001-01-01", "~"] {
            spec.container_edits.env.push(format!("NAME={name}"));
            spec.container_edits.env.push(name.into());
        }
        spec.container_edits.intel_rdt = Some(serde_json::json!({"closID": "a", "future": [1, -1, 1.5, true, null]}));
        spec.container_edits.env.push("LONG=".to_string() + &"a b ".repeat(100));
        spec.container_edits.env.push("ODD=\u{1}\n\t'\"\\: #- ".into());
        for format in [Format::Json, Format::Yaml] {
            let written = serialize(&spec, format);
            assert_eq!(parse(written.as_bytes(), format).unwrap(), spec, "{written}");
            assert_eq!(written, serialize(&spec, format));
        }
        // JSON is YAML, too.
        assert_eq!(parse(serialize(&spec, Format::Json).as_bytes(), Format::Yaml).unwrap(), spec);
    }

    #[test]
    fn unknown_fields_are_named() {
        let error_of = |text: &str, format| parse(text.as_bytes(), format).unwrap_err().to_string();
        let json =
            r#"{"cdiVersion":"0.5.0","kind":"a/b","devices":[{"name":"0","containerEdits":{"mount":[]}}],"x":1}"#;
        assert_eq!(error_of(json, Format::Json), "CDI has no field devices.0.containerEdits.mount, x");
        let error = error_of(&YAML.replace("hookName", "hookname"), Format::Yaml);
        assert!(error.contains("hookName") && error.contains("line 12") && error.lines().count() == 1, "{error}");
    }

    #[test]
    fn malformed_specs_are_errors() {
        let deep = "[".repeat(200_000);
        let deep_map = "{\"a\":".repeat(100_000);
        let bomb = {
            let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
            for level in 1..30 {
                let alias = format!("*a{},", level - 1).repeat(10);
                text.push_str(&format!("a{level}: &a{level} [{alias}]\n"));
            }
            text + "cdiVersion: *a29\n"
        };
        for text in
            ["", "\0", "---", "[]", "{", "a: b: c", "- - -", "&a *a", "!!binary x", "\u{feff}", &deep, &deep_map, &bomb]
        {
            for format in [Format::Json, Format::Yaml] {
                assert!(parse(text.as_bytes(), format).is_err(), "{:.40}", text);
            }
        }
        assert!(parse(&[0xff, 0xfe, 0, 1], Format::Yaml).is_err());
    }

    proptest::proptest! {
        #[test]
        fn corrupted_spec_never_panics(changes in proptest::collection::vec((0..YAML.len(), 0u8..=255), 1..20)) {
            let mut bytes = YAML.as_bytes().to_vec();
            for (place, byte) in changes {
                bytes[place] = byte;
            }
            for format in [Format::Json, Format::Yaml] {
                if let Ok(spec) = parse(&bytes, format) {
                    proptest::prop_assert_eq!(parse(serialize(&spec, Format::Yaml).as_bytes(), Format::Yaml).unwrap(), spec);
                }
            }
        }
    }

    /// `1:0` is 60 in YAML 1.1, `1_0` is 10 and `2001-01-01` a date.
    #[test]
    fn numbers_of_yaml_1_1_are_quoted() {
        let mut spec = parse(YAML.as_bytes(), Format::Yaml).unwrap();
        for name in ["0:1", "1:0", "1_0", "190:20:30.15", "2001-01-01"] {
            spec.devices[0].name = name.into();
            let written = serialize(&spec, Format::Yaml);
            assert!(written.contains(&format!("name: \"{name}\"\n")), "{written}");
        }
        assert!(serialize(&spec, Format::Yaml).contains("cdiVersion: 0.5.0\n"));
    }

    #[test]
    fn file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/nvidia.yaml");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
        // A directory in its place: nothing is left then, either.
        let taken = dir.path().join("taken.yaml");
        fs::create_dir(&taken).unwrap();
        assert!(write(&taken, b"three").unwrap_err().to_string().contains("taken.yaml"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        assert!(matches!(write(Path::new("/"), b""), Err(WriteError::NoName(_))));
    }
}
