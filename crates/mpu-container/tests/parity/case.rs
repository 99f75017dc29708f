//! The format of a case.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::cases::{self, list};

/// A case. In its strings, `$W` is the case's directory, `$D` the driver's root in it, and `$L` the distribution's library directory. The
/// bundle is `$W/bundle`, and programs are in `$W/bin`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,

    pub run: String,
    /// The arguments. Without this key, `run` has the program and its arguments.
    pub args: Vec<String>,
    /// Standard input; the default is the container's state.
    pub input: Option<String>,
    /// The environment, besides PATH, HOME and the path of config.toml.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Lines of config.toml, besides the paths of the driver, the CDI files and the low-level runtime.
    #[serde(default, deserialize_with = "texts")]
    pub config: Vec<String>,
    /// Features of the host (`host.rs`).
    #[serde(default, deserialize_with = "texts")]
    pub host: Vec<String>,
    /// Files to create: content, `-> TARGET` for a link, or `fifo` for a FIFO. A path that ends in `/` is a directory.
    #[serde(default)]
    pub put: BTreeMap<String, String>,
    /// Variables of the container's environment; `; ` separates several in one string.
    #[serde(default, deserialize_with = "texts")]
    pub asks: Vec<String>,
    /// A change of config.json (a JSON merge patch).
    pub spec: Option<String>,
    /// The whole config.json instead of the usual one.
    pub text: Option<String>,
    /// The whole config.json in hexadecimal digits, for invalid UTF-8.
    pub bytes: Option<String>,

    /// The exit code. `fails`, `refused` and `misused` are short forms that set it and `says`; `refused` also sets `untouched`.
    #[serde(default)]
    pub exit: i32,
    /// Parts of standard error. Here and in `prints`, `has` and `left`, `not: TEXT` must be missing.
    #[serde(default, deserialize_with = "texts")]
    pub says: Vec<String>,
    /// Standard error stays empty.
    #[serde(default)]
    pub silent: bool,
    /// Parts of standard output. Here and in `says`, `whole: TEXT` is the complete output.
    #[serde(default, deserialize_with = "texts")]
    pub prints: Vec<String>,
    /// Facts of the container's specification or of a printed CDI file (`facts.rs`), or their first words. `*` matches any text.
    #[serde(default, deserialize_with = "texts")]
    pub has: Vec<String>,
    /// Parts of files after the run; `gone` for a missing file, `-> TARGET` for a link, `folder` for a directory.
    #[serde(default)]
    pub left: BTreeMap<String, Texts>,
    /// The second words of all facts of a kind, in order.
    #[serde(default)]
    pub whole: BTreeMap<String, Vec<String>>,
    /// config.json has not changed by a byte, and after success the low-level runtime was called with our arguments.
    #[serde(default)]
    pub untouched: bool,

    /// The name of the documented difference that this case shows.
    pub differs: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Value")]
pub struct Texts(pub Vec<String>);

impl From<Value> for Texts {
    fn from(value: Value) -> Self {
        Self(list(value).iter().map(|text| text.as_str().expect("a text").to_owned()).collect())
    }
}

fn texts<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Texts::deserialize(from).map(|texts| texts.0)
}

/// Short keys of failing cases, with the exit code and whether the container is untouched. The value is part of standard error.
const FAILURES: [(&str, i32, bool); 3] = [("fails", 1, false), ("refused", 1, true), ("misused", 2, false)];

/// The cases of a file.
pub fn read(area: &str, text: &str) -> Vec<Case> {
    let cases: Vec<Case> = cases::read(area, text).into_iter().map(|(name, table)| one(area, name, table)).collect();
    for case in &cases {
        let lists = [&case.says, &case.prints, &case.has].iter().any(|list| !list.is_empty());
        let states = lists || case.silent || case.untouched || !case.left.is_empty() || !case.whole.is_empty();
        assert!(states, "{area}: {}: the case states nothing", case.name);
        assert!(case.exit == 0 || !case.says.is_empty(), "{area}: {}: why the refusal?", case.name);
    }
    cases
}

fn one(area: &str, name: String, mut table: Map<String, Value>) -> Case {
    for (key, exit, untouched) in FAILURES {
        if let Some(says) = table.remove(key) {
            let other = ["exit", "untouched", "says"].into_iter().find(|other| table.contains_key(*other));
            assert_eq!(other, None, "{area}: {name}: {key} states that already");
            table.extend([("exit".into(), exit.into()), ("untouched".into(), untouched.into()), ("says".into(), says)]);
        }
    }
    // A string is split at spaces, because arguments rarely contain spaces.
    let words = |value: Value| match value {
        Value::String(line) => line.split_whitespace().map(Value::from).collect(),
        words => list(words),
    };
    let mut run = words(table.remove("run").unwrap_or_default());
    let args = run.split_off(1);
    let args = table.remove("args").map_or(args, words);
    table.extend([("name".into(), name.clone().into()), ("run".into(), run.remove(0)), ("args".into(), args.into())]);
    serde_json::from_value(Value::Object(table)).unwrap_or_else(|error| panic!("{area}: {name}: {error}"))
}

#[test]
fn case_without_statement_is_refused() {
    for (case, is_refused) in [
        ("silent = true", false),
        ("fails = 'x'", false),
        ("", true),
        ("exit = 1\nsilent = true", true),
        ("silent = true\nsay = ['x']", true),
    ] {
        let text = format!("[x]\nrun = 'nvidia-ctk'\n{case}\n");
        assert_eq!(std::panic::catch_unwind(|| read("x", &text)).is_err(), is_refused, "{case}");
    }
}

#[test]
fn rows_become_cases() {
    let text = r"
        usual.run = 'a b'
        [[rows]]
        put.'$1' = '$2 $1'
        has = '$3'
        cases = [['x', 'f', 'g', 'h'], ['y', 'p', '$q', ['r', 's']]]";
    let cases = read("x", text);
    assert_eq!(cases.iter().map(|case| (&*case.name, &*case.run)).collect::<Vec<_>>(), [("x", "a"), ("y", "a")]);
    assert_eq!((&*cases[1].put["p"], &*cases[1].has), ("$q p", &["r".to_owned(), "s".to_owned()][..]));
    assert!(std::panic::catch_unwind(|| read("x", &text.replace("'y'", "'x'"))).is_err(), "a name twice");
}
