//! What a case says.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};
use toml_edit::{DocumentMut, Item};

/// A case. In its texts `$W` is the folder of everything, `$D` the driver's root in it, `$L` the distribution's folder of libraries; the
/// bundle is `$W/bundle`, and programs are in `$W/bin`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// The file that it stands in.
    #[serde(default)]
    pub area: String,
    /// Its name.
    pub name: String,

    /// The program's name.
    pub run: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its standard input; for hooks the container's state if it is not said.
    pub input: Option<String>,
    /// Its environment, besides PATH and the configuration's place.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// config.toml, besides the places of the driver, of CDI files and of the low-level runtime.
    #[serde(default)]
    pub config: String,
    /// The host, in words (`host.rs`).
    #[serde(default)]
    pub host: Vec<String>,
    /// Files that are put somewhere: a text; `-> TARGET` for a link, `fifo` for a FIFO, and a path that ends in `/` for a folder.
    #[serde(default)]
    pub put: BTreeMap<String, String>,
    /// What the container's environment has.
    #[serde(default)]
    pub asks: Vec<String>,
    /// A change of config.json (a JSON merge patch).
    pub spec: Option<String>,
    /// The whole config.json, in place of the usual one.
    pub text: Option<String>,
    /// The same in hexadecimal digits, for what is no text.
    pub bytes: Option<String>,

    /// The exit code.
    #[serde(default)]
    pub exit: i32,
    /// What standard error has in it.
    #[serde(default)]
    pub says: Vec<String>,
    /// Nothing is said on standard error.
    #[serde(default)]
    pub silent: bool,
    /// What standard output has in it.
    #[serde(default)]
    pub prints: Vec<String>,
    /// What standard output has not in it.
    #[serde(default)]
    pub hides: Vec<String>,
    /// What is so in the container's specification, or in the CDI file that is printed (`facts.rs`): a fact, or the words that it begins
    /// with. `*` is anything.
    #[serde(default)]
    pub has: Vec<String>,
    /// What is not.
    #[serde(default)]
    pub lacks: Vec<String>,
    /// All facts of a kind, by their second word, in their order.
    #[serde(default)]
    pub whole: BTreeMap<String, Vec<String>>,
    /// config.json has not changed by a byte, and the low-level runtime was called as we were.
    #[serde(default)]
    pub untouched: bool,
    /// What is in files afterwards: their parts; `gone` if there is none, `-> TARGET` for a link.
    #[serde(default)]
    pub left: BTreeMap<String, Vec<String>>,

    /// The name of the difference in the docs that this case shows.
    pub differs: Option<String>,
    /// Why it does not hold yet.
    pub pending: Option<String>,
}

impl Case {
    /// Whether there is a statement in it that says more than an exit code.
    pub fn states(&self) -> bool {
        let lists = [&self.says, &self.prints, &self.hides, &self.has, &self.lacks];
        self.silent
            || self.untouched
            || !self.left.is_empty()
            || !self.whole.is_empty()
            || lists.iter().any(|list| !list.is_empty())
    }
}

/// The cases of a file. Its table `usual` has what a case has that does not say otherwise.
pub fn read(area: &str, text: &str) -> Vec<Case> {
    let document: DocumentMut = text.parse().unwrap_or_else(|error| panic!("{area}: {error}"));
    let document = json(document.as_item());
    let usual = document.get("usual").and_then(Value::as_object).cloned().unwrap_or_default();
    let tables = document["case"].as_array().unwrap_or_else(|| panic!("{area}: no case"));
    let cases: Vec<Case> = tables.iter().map(|table| one(area, &usual, table)).collect();
    for case in &cases {
        assert!(case.states(), "{area}: {}: the case states nothing", case.name);
        assert!(
            case.exit == 0 || !case.says.is_empty() || case.pending.is_some(),
            "{area}: {}: why the refusal?",
            case.name
        );
    }
    cases
}

fn one(area: &str, usual: &Map<String, Value>, table: &Value) -> Case {
    let mut whole = usual.clone();
    whole.extend(table.as_object().into_iter().flatten().map(|(key, value)| (key.clone(), value.clone())));
    whole.insert("area".into(), area.into());
    // Words of a command line rarely have spaces in them.
    if let Some(Value::String(line)) = whole.get("args") {
        let words = line.split_whitespace().map(Value::from).collect();
        whole.insert("args".into(), Value::Array(words));
    }
    serde_json::from_value(Value::Object(whole)).unwrap_or_else(|error| panic!("{area}: {}: {error}", table["name"]))
}

fn json(item: &Item) -> Value {
    match item {
        Item::None => Value::Null,
        Item::Value(value) => of_value(value),
        Item::Table(table) => table.iter().map(|(key, item)| (key.to_owned(), json(item))).collect(),
        Item::ArrayOfTables(tables) => tables.iter().map(|table| json(&Item::Table(table.clone()))).collect(),
    }
}

fn of_value(value: &toml_edit::Value) -> Value {
    match value {
        toml_edit::Value::String(text) => text.value().as_str().into(),
        toml_edit::Value::Integer(number) => (*number.value()).into(),
        toml_edit::Value::Boolean(truth) => (*truth.value()).into(),
        toml_edit::Value::Array(list) => list.iter().map(of_value).collect(),
        toml_edit::Value::InlineTable(table) => {
            table.iter().map(|(key, value)| (key.to_owned(), of_value(value))).collect()
        }
        other => panic!("{other}: cases have no such values"),
    }
}

#[test]
fn a_case_that_states_nothing_is_refused() {
    let refused = |text: &'static str| std::panic::catch_unwind(move || read("x", text)).is_err();
    let case = "[[case]]\nname = 'x'\nrun = 'nvidia-ctk'\n";
    assert!(!refused("[[case]]\nname = 'x'\nrun = 'nvidia-ctk'\nsilent = true\n"));
    assert!(refused("[[case]]\nname = 'x'\nrun = 'nvidia-ctk'\n"), "{case}");
    assert!(refused("[[case]]\nname = 'x'\nrun = 'nvidia-ctk'\nexit = 1\nsilent = true\n"), "a refusal says why");
    assert!(refused("[[case]]\nname = 'x'\nrun = 'nvidia-ctk'\nsilent = true\nsay = ['x']\n"), "a key with a slip");
}
