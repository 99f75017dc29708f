//! The provenance of a release: checksums, an in-toto statement by SLSA, and a signature over both.
//!
//! openssl signs, with a key in a file: a host with Debian, Red Hat or SUSE can verify that. Without a key nothing is signed, and the
//! output says so.
//!
//! Source: slsa.dev/spec/v1.0/provenance; in-toto's Statement v1; DSSE (github.com/secure-systems-lab/dsse), protocol.md.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};

use crate::arch::Arch;
use crate::files::{self, below};
use crate::paths;
use crate::run::{output, print_progress};

/// The checksums of all other files, and their signatures.
pub const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.sig";
const STATEMENT: &str = "provenance.json";
const ENVELOPE: &str = "provenance.dsse.json";
/// DSSE's `payloadType` for an in-toto statement.
const STATEMENT_TYPE: &str = "application/vnd.in-toto+json";
const REPOSITORY: &str = "https://github.com/mpu-project/mpu";

pub struct ReleaseFacts<'a> {
    pub version: &'a str,
    pub is_quick: bool,
    pub arches: &'a [Arch],
    pub sources: &'a Sources,
}

/// The sources of a build: the commit, and the working tree's differences from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    commit: String,
    /// Each changed or unknown file, and the change; empty if there is none.
    changes: String,
}

impl Sources {
    pub fn now() -> Result<Sources> {
        Sources::of(paths::repo())
    }

    fn of(repository: &Path) -> Result<Sources> {
        let git = |args: &[&str]| output(Command::new("git").args(args).current_dir(repository));
        let commit = git(&["rev-parse", "HEAD"]).context("a release is made in its git repository")?;
        // An untracked file can be part of the build, too.
        let mut changes = git(&["status", "--porcelain", "--untracked-files=all"])?;
        if !changes.is_empty() {
            changes += &git(&["diff", "HEAD", "--binary"])?;
        }
        Ok(Sources { commit: commit.trim().to_owned(), changes })
    }

    pub fn are_committed(&self) -> bool {
        self.changes.is_empty()
    }
}

/// Writes statement and checksums; and signatures, if there is a key.
pub fn seal(out: &Path, facts: &ReleaseFacts, key: Option<&Path>) -> Result<()> {
    let statement = serde_json::to_string_pretty(&statement(facts, &digests(out)?)?)? + "\n";
    std::fs::write(out.join(STATEMENT), &statement)?;
    let sums: String = digests(out)?.into_iter().map(|(name, hex)| format!("{hex}  {name}\n")).collect();
    std::fs::write(out.join(SUMS), &sums)?;
    let Some(key) = key else {
        print_progress("unsigned: `--sign-key FILE` signs checksums and provenance");
        return Ok(());
    };
    std::fs::write(out.join(SIGNATURE), sign(key, &sums)?)?;
    std::fs::write(out.join(ENVELOPE), envelope(&statement, key)?)?;
    print_progress(format!("signed with {}", key.display()));
    Ok(())
}

/// Checks a release's folder. Returns the faults and the state of the signature.
pub fn verify(dir: &Path, key: Option<&Path>) -> Result<(Vec<String>, String)> {
    let mut faults = Vec::new();
    let sums = files::read(&dir.join(SUMS))?;
    let rows = sums.lines().filter_map(|line| line.split_once("  "));
    let mut listed: BTreeMap<String, String> = rows.map(|(hex, name)| (name.to_owned(), hex.to_owned())).collect();
    let found = digests(dir)?;
    for (name, hex) in &found {
        match listed.remove(name) {
            None => faults.push(format!("{name} is not in {SUMS}")),
            Some(listed) if listed != *hex => faults.push(format!("{name} is not what {SUMS} says")),
            Some(_) => {}
        }
    }
    faults.extend(listed.keys().map(|name| format!("{name} is missing")));
    let statement = std::fs::read_to_string(dir.join(STATEMENT)).unwrap_or_default();
    let subjects = subjects(&statement).with_context(|| format!("{STATEMENT} is no statement"))?;
    let about: Vec<_> = found.iter().filter(|(name, _)| name != STATEMENT).cloned().collect();
    if subjects != about {
        faults.push(format!("{STATEMENT} is about other files"));
    }
    let is_signed = dir.join(SIGNATURE).exists();
    let signature = match key {
        None if is_signed => "signed; --key KEY checks the signature".to_owned(),
        None => "unsigned: these checksums find accidents, and no signature protects them".to_owned(),
        Some(key) => {
            if !is_signed || !is_signed_by(key, &sums, &std::fs::read(dir.join(SIGNATURE))?) {
                let why = if is_signed { "is not by this key, or not of these checksums" } else { "is missing" };
                faults.push(format!("{SIGNATURE} {why}"));
            }
            if !is_signed || !is_envelope_signed_by(key, dir, &statement) {
                faults.push(format!("{ENVELOPE} is not this statement, or not signed by this key"));
            }
            format!("signed, as {} says", key.display())
        }
    };
    Ok((faults, signature))
}

/// The digests of all files except the checksums and signatures, sorted by name.
fn digests(dir: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for path in below(dir)? {
        let name = path.strip_prefix(dir)?.display().to_string();
        if ![SUMS, SIGNATURE, ENVELOPE].contains(&name.as_str()) {
            found.push((name, sha256_of_file(&path)?));
        }
    }
    found.sort();
    Ok(found)
}

fn sha256_of_file(path: &Path) -> Result<String> {
    Ok(files::sha256(fs_err::read(path)?))
}

/// The statement has no time and no machine name: the same sources give the same statement.
fn statement(facts: &ReleaseFacts, digests: &[(String, String)]) -> Result<Value> {
    let rust = output(Command::new("rustc").arg("--version"))?;
    let subjects: Vec<Value> =
        digests.iter().map(|(name, hex)| json!({ "name": name, "digest": { "sha256": hex } })).collect();
    Ok(json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": format!("{REPOSITORY}/blob/main/docs/versions.md#what-a-release-says-of-itself"),
                "externalParameters": {
                    "version": facts.version,
                    "machines": facts.arches.iter().map(ToString::to_string).collect::<Vec<_>>(),
                    "profile": if facts.is_quick { "quick" } else { "release" },
                },
                "internalParameters": { "rust": rust.trim() },
                "resolvedDependencies": [
                    {
                        "uri": format!("git+{REPOSITORY}"),
                        "digest": { "gitCommit": facts.sources.commit },
                        "annotations": { "uncommittedChanges": !facts.sources.are_committed() },
                    },
                    { "name": "Cargo.lock", "digest": { "sha256": sha256_of_file(&paths::repo().join("Cargo.lock"))? } },
                ],
            },
            "runDetails": { "builder": { "id": format!("{REPOSITORY}/tree/main/xtask/src/dist") } },
        },
    }))
}

fn subjects(statement: &str) -> Option<Vec<(String, String)>> {
    let statement: Value = serde_json::from_str(statement).ok()?;
    let pair = |subject: &Value| {
        Some((subject["name"].as_str()?.to_owned(), subject["digest"]["sha256"].as_str()?.to_owned()))
    };
    statement["subject"].as_array()?.iter().map(pair).collect()
}

/// DSSE's pre-authentication encoding: type and statement, each after its length.
fn signed_text(statement: &str) -> String {
    format!("DSSEv1 {} {STATEMENT_TYPE} {} {statement}", STATEMENT_TYPE.len(), statement.len())
}

fn envelope(statement: &str, key: &Path) -> Result<String> {
    let envelope = json!({
        "payload": BASE64_STANDARD.encode(statement), "payloadType": STATEMENT_TYPE,
        "signatures": [{ "sig": BASE64_STANDARD.encode(sign(key, &signed_text(statement))?) }],
    });
    Ok(serde_json::to_string_pretty(&envelope)? + "\n")
}

fn is_envelope_signed_by(key: &Path, dir: &Path, statement: &str) -> bool {
    let text = std::fs::read_to_string(dir.join(ENVELOPE)).unwrap_or_default();
    let envelope: Value = serde_json::from_str(&text).unwrap_or_default();
    let is_it =
        envelope["payload"] == json!(BASE64_STANDARD.encode(statement)) && envelope["payloadType"] == STATEMENT_TYPE;
    let signature = BASE64_STANDARD.decode(envelope["signatures"][0]["sig"].as_str().unwrap_or_default());
    is_it && signature.is_ok_and(|signature| is_signed_by(key, &signed_text(statement), &signature))
}

fn sign(key: &Path, text: &str) -> Result<Vec<u8>> {
    openssl("-sign", key, text, &[]).context(
        "cannot sign: the key is one that `openssl ecparam -name prime256v1 -genkey -noout` makes, or an RSA key",
    )
}

fn is_signed_by(key: &Path, text: &str, signature: &[u8]) -> bool {
    openssl("-verify", key, text, signature).is_ok()
}

/// Signs or verifies with openssl, which reads text and signature from files only.
fn openssl(what: &str, key: &Path, text: &str, signature: &[u8]) -> Result<Vec<u8>> {
    let folder = tempfile::tempdir()?;
    let [text_file, signature_file] = ["text", "signature"].map(|name| folder.path().join(name));
    std::fs::write(&text_file, text)?;
    std::fs::write(&signature_file, signature)?;
    let option = if what == "-sign" { "-out" } else { "-signature" };
    let mut openssl = Command::new("openssl");
    output(openssl.args(["dgst", "-sha256", what]).arg(key).arg(option).arg(&signature_file).arg(&text_file))?;
    Ok(std::fs::read(signature_file)?)
}

/// Checks that a file can be read, before minutes of building.
pub fn check_readable(path: &Path) -> Result<PathBuf> {
    fs_err::read(path)?;
    Ok(path.to_owned())
}

#[cfg(test)]
fn keys(dir: &Path, name: &str) -> Result<(PathBuf, PathBuf)> {
    let (private, public) = (dir.join(format!("{name}.key")), dir.join(format!("{name}.pem")));
    let mut make = Command::new("openssl");
    output(make.args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"]).arg(&private))?;
    output(Command::new("openssl").args(["ec", "-pubout", "-in"]).arg(&private).arg("-out").arg(&public))?;
    Ok((private, public))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn release(key: Option<&Path>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("arm64")).unwrap();
        std::fs::write(folder.path().join("arm64/mpu"), "a program").unwrap();
        std::fs::write(folder.path().join("mpu_1_arm64.deb"), "a package").unwrap();
        sealed(folder.path(), key);
        folder
    }

    fn sealed(dir: &Path, key: Option<&Path>) {
        let sources = Sources::now().unwrap();
        let facts = ReleaseFacts { version: "1", is_quick: false, arches: &[Arch::Arm64], sources: &sources };
        seal(dir, &facts, key).unwrap();
    }

    fn faults(folder: &tempfile::TempDir, key: Option<&Path>) -> Vec<String> {
        verify(folder.path(), key).unwrap().0
    }

    #[test]
    fn intact_release_verifies_and_reports_signature() {
        let keys_folder = tempfile::tempdir().unwrap();
        let (private, public) = keys(keys_folder.path(), "ours").unwrap();
        let signed = release(Some(&private));
        assert_eq!(faults(&signed, Some(&public)), Vec::<String>::new());
        assert!(verify(signed.path(), None).unwrap().1.starts_with("signed; "));
        let unsigned = release(None);
        let (faults, signature) = verify(unsigned.path(), None).unwrap();
        assert!(faults.is_empty() && signature.starts_with("unsigned: "), "{faults:?} {signature}");
        assert_eq!(verify(unsigned.path(), Some(&public)).unwrap().0.len(), 2, "a key asks for a signature");
    }

    #[test]
    fn changed_release_does_not_verify() {
        let keys_folder = tempfile::tempdir().unwrap();
        let (private, public) = keys(keys_folder.path(), "ours").unwrap();
        let (other_key, _) = keys(keys_folder.path(), "theirs").unwrap();
        let append = |path: PathBuf| fs_err::write(&path, files::read(&path).unwrap() + "x").unwrap();
        // An attacker who changes a file can make new sums for it, but no signature.
        let resealed = |dir: &Path| {
            append(dir.join("mpu_1_arm64.deb"));
            sealed(dir, None);
        };
        type Case<'a> = (&'a dyn Fn(&Path), &'a [&'a str]);
        let cases: [Case; 5] = [
            (&|dir| append(dir.join("mpu_1_arm64.deb")), &["mpu_1_arm64.deb is not what SHA256SUMS says"]),
            (&|dir| fs_err::write(dir.join("arm64/more"), "").unwrap(), &["arm64/more is not in SHA256SUMS"]),
            (&|dir| fs_err::remove_file(dir.join("arm64/mpu")).unwrap(), &["arm64/mpu is missing"]),
            (&resealed, &["SHA256SUMS.sig is not by this key", "provenance.dsse"]),
            (&|dir| sealed(dir, Some(&other_key)), &["SHA256SUMS.sig is not by this key"]),
        ];
        for (spoil, expected) in cases {
            let folder = release(Some(&private));
            spoil(folder.path());
            let found = faults(&folder, Some(&public)).join("; ");
            assert!(expected.iter().all(|fault| found.contains(fault)), "{found}");
        }
    }

    #[test]
    fn every_change_of_sources_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let git = |args: &[&str]| {
            let mut git = Command::new("git");
            git.args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(args).current_dir(folder.path());
            output(&mut git).unwrap();
        };
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        git(&["init", "--quiet"]);
        write("mpu.c", "one");
        write(".gitignore", "*.o\n");
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", "one"]);
        let of = || Sources::of(folder.path()).unwrap();
        let committed = of();
        write("mpu.o", "what a build makes");
        assert!(committed.are_committed() && of() == committed);
        write("more.c", "git does not know it, and kbuild may");
        let untracked = of();
        assert!(!untracked.are_committed());
        std::fs::remove_file(folder.path().join("more.c")).unwrap();
        write("mpu.c", "two");
        let changed = of();
        write("mpu.c", "three");
        assert!(!changed.are_committed() && changed != of(), "changed once more while it was built");
        git(&["commit", "--quiet", "-a", "-m", "two"]);
        assert!(of().are_committed() && of() != committed, "another commit");
    }

    #[test]
    fn statement_names_files_commit_and_parameters() {
        let folder = release(None);
        let text = std::fs::read_to_string(folder.path().join(STATEMENT)).unwrap();
        let statement: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(statement["predicateType"], "https://slsa.dev/provenance/v1");
        let names: Vec<&str> =
            statement["subject"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["arm64/mpu", "mpu_1_arm64.deb"]);
        let definition = &statement["predicate"]["buildDefinition"];
        assert_eq!(definition["externalParameters"]["machines"], json!(["arm64"]));
        let commit = definition["resolvedDependencies"][0]["digest"]["gitCommit"].as_str().unwrap();
        assert!(commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()), "{commit}");
    }
}
