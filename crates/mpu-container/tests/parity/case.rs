//! The format of a case.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::cases::{self, list};

/// A case. In its texts `$W` is the folder of everything, `$D` the driver's root in it, `$L` the distribution's folder of libraries; the
/// bundle is `$W/bundle`, and programs are in `$W/bin`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    pub name: String,

    pub run: String,
    /// Its arguments. `run` alone has the program and its arguments.
    pub args: Vec<String>,
    /// Its standard input; the default for hooks is the container's state.
    pub input: Option<String>,
    /// Its environment, besides PATH and the configuration's place.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// config.toml, besides the places of the driver, of CDI files and of the low-level runtime.
    #[serde(default, deserialize_with = "texts")]
    pub config: Vec<String>,
    /// The host, in words (`host.rs`).
    #[serde(default, deserialize_with = "texts")]
    pub host: Vec<String>,
    /// Files that are put somewhere: a text; `-> TARGET` for a link, `fifo` for a FIFO, and a path that ends in `/` for a folder.
    #[serde(default)]
    pub put: BTreeMap<String, String>,
    /// What the container's environment has, also several in one text with `; ` between them.
    #[serde(default, deserialize_with = "texts")]
    pub asks: Vec<String>,
    /// A change of config.json (a JSON merge patch).
    pub spec: Option<String>,
    /// The whole config.json, in place of the usual one.
    pub text: Option<String>,
    /// The same in hexadecimal digits, for what is no text.
    pub bytes: Option<String>,

    /// The exit code. `fails`, `refused` (and `untouched`) and `misused` set it, and what standard error has in it.
    #[serde(default)]
    pub exit: i32,
    /// What standard error has in it. Here and in the next three, `not: TEXT` is what it has not.
    #[serde(default, deserialize_with = "texts")]
    pub says: Vec<String>,
    /// Standard error stays empty.
    #[serde(default)]
    pub silent: bool,
    /// What standard output has in it. Here and in `says`, `whole: TEXT` is all of it.
    #[serde(default, deserialize_with = "texts")]
    pub prints: Vec<String>,
    /// Facts of the container's specification, or of a printed CDI file (`facts.rs`), or their first words. `*` is anything.
    #[serde(default, deserialize_with = "texts")]
    pub has: Vec<String>,
    /// What is in files afterwards: their parts; `gone` if there is none, `-> TARGET` for a link.
    #[serde(default)]
    pub left: BTreeMap<String, Texts>,
    /// All facts of a kind, by their second word, in their order.
    #[serde(default)]
    pub whole: BTreeMap<String, Vec<String>>,
    /// config.json has not changed by a byte, and the low-level runtime was called as we were.
    #[serde(default)]
    pub untouched: bool,

    /// The name of the difference in the docs that this case shows.
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

/// Keys of cases that fail, with the exit code and whether the container is untouched; the value is what standard error has in it.
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
    // Words of a command line rarely have spaces in them.
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
