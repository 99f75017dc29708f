//! Changes keys of config.toml. The rest of the file stays, also comments.
//!
//! Source: NVIDIA Container Toolkit 1.20, `cmd/nvidia-ctk/config`.

use super::Config;
use super::keys::{self, Field, Key};
use toml_edit::{Array, DocumentMut, Item, Table, Value};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EditError {
    #[error("invalid --set option {set}: invalid config option: undefined field: {key:?}")]
    UnknownKey { set: String, key: String },
    #[error("invalid --set option {set}: invalid format: {message}")]
    Value { set: String, message: String },
    #[error("line {line}: {message}")]
    Malformed { line: usize, message: String },
}

/// Applies changes of the forms `KEY=VALUE`, `KEY` (for `KEY=true`) and `features.KEY=nil` (removes the line). Commas separate several
/// changes in one argument. Elements of a list are separated by `separator` or, if there is none, by commas. Of several changes to one
/// key, the last one wins.
pub fn set(text: &str, sets: &[String], separator: &str) -> Result<String, EditError> {
    set_each(text, &sets.iter().flat_map(|set| split_changes(set)).collect::<Vec<_>>(), separator)
}

/// Like [`set`], but each argument is one change: commas separate only the elements of a list.
pub fn set_each(text: &str, sets: &[String], separator: &str) -> Result<String, EditError> {
    let mut text = text.to_string();
    for set in sets {
        let (name, value) = set.split_once('=').map_or((set.as_str(), None), |(name, value)| (name, Some(value)));
        let key = keys::find(name).ok_or_else(|| EditError::UnknownKey { set: set.clone(), key: name.to_string() })?;
        let value =
            parse_value(key, value, separator).map_err(|message| EditError::Value { set: set.clone(), message })?;
        text = match value {
            Some(value) => set_key(&text, key, value)?,
            None => remove_key(&text, key)?,
        };
    }
    Config::parse(&text, Config::default()).map_err(|(line, message)| EditError::Malformed { line, message })?;
    Ok(text)
}

/// Splits an argument into changes. A comma can separate changes or elements of a list. A part that begins with a key is a change. A
/// part with a `=` after a change that is no list is one, too: then the error names its unknown key.
fn split_changes(set: &str) -> Vec<String> {
    let name = |part: &str| part.split('=').next().map(str::to_string).unwrap_or_default();
    let mut all: Vec<String> = Vec::new();
    for part in set.split(',') {
        let in_list = |last: &String| {
            keys::find(&name(last)).is_some_and(|key| matches!(key.field, Field::Texts(_) | Field::Paths(_)))
        };
        match all.last_mut() {
            Some(last) if keys::find(&name(part)).is_none() && (!part.contains('=') || in_list(last)) => {
                *last = format!("{last},{part}");
            }
            _ => all.push(part.to_string()),
        }
    }
    all
}

/// This list must not become empty: the wrapper would start no container.
const RUNTIMES: &str = "nvidia-container-runtime.runtimes";

/// Parses the value of a key; `None` removes the key's line.
fn parse_value(key: &Key, value: Option<&str>, separator: &str) -> Result<Option<Value>, String> {
    if key.name.starts_with("features.") && value == Some("nil") {
        return Ok(None);
    }
    let text = |value: Option<&str>| value.map(str::to_string).ok_or(format!("expected key=value; got {}", key.name));
    Ok(Some(match key.field {
        Field::Bool(_) => match value {
            None => true.into(),
            Some(word) => parse_bool(word).ok_or_else(|| format!("{word:?} is neither true nor false"))?.into(),
        },
        Field::Text(_) | Field::Path(_) => text(value)?.into(),
        Field::Parsed(parse) => {
            let word = text(value)?;
            parse(&mut Config::default(), &word)?;
            word.into()
        }
        Field::Texts(_) | Field::Paths(_) => {
            let text = text(value)?;
            let separator = [separator, ","].into_iter().find(|s| !s.is_empty() && text.contains(s));
            let words: Vec<&str> = separator.map_or(vec![text.as_str()], |separator| text.split(separator).collect());
            // An empty value is an empty list, not a list of one empty string.
            let words: Vec<&str> = words.into_iter().filter(|word| !word.trim().is_empty()).collect();
            if words.is_empty() && key.name == RUNTIMES {
                return Err("one runtime at least must be named: every container starts by it".into());
            }
            words.into_iter().collect::<Array>().into()
        }
    }))
}

/// Parses a boolean as Go's `strconv.ParseBool` does, and so as NVIDIA's toolkit does.
pub fn parse_bool(word: &str) -> Option<bool> {
    match word {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn document(text: &str) -> Result<DocumentMut, EditError> {
    text.parse::<DocumentMut>().map_err(|error| {
        let at = error.span().map_or(text.len(), |span| span.start);
        EditError::Malformed { line: super::line_of(text, at), message: error.message().to_string() }
    })
}

fn set_key(text: &str, key: &Key, value: Value) -> Result<String, EditError> {
    let mut document = document(text)?;
    let words: Vec<&str> = key.name.split('.').collect();
    let Some((word, tables)) = words.split_last() else { return Ok(text.to_string()) };
    let exists = words.iter().try_fold(document.as_item(), |item, word| item.get(word)).is_some();
    if !exists && let Some(text) = replace_commented_line(text, tables, word, &value) {
        return Ok(text);
    }
    let mut table = document.as_item_mut();
    for (depth, name) in tables.iter().enumerate() {
        let tables = table.as_table_like_mut().ok_or_else(|| not_a_table(&words[..depth]))?;
        let inner = tables.entry(name).or_insert_with(|| {
            let mut made = Table::new();
            made.set_implicit(true);
            Item::Table(made)
        });
        table = inner;
    }
    let table = table.as_table_like_mut().ok_or_else(|| not_a_table(tables))?;
    match table.get_mut(word) {
        Some(item) => {
            // Keeps the comment at the end of the line.
            let decor = item.as_value().map(|old| old.decor().clone());
            let mut value = value;
            if let Some(decor) = decor {
                *value.decor_mut() = decor;
            }
            *item = Item::Value(value);
        }
        None => {
            table.insert(word, Item::Value(value));
        }
    }
    Ok(document.to_string())
}

fn remove_key(text: &str, key: &Key) -> Result<String, EditError> {
    let mut document = document(text)?;
    if let Some((tables, word)) = key.name.rsplit_once('.') {
        let table = tables.split('.').try_fold(document.as_item_mut(), |item, word| item.get_mut(word));
        if let Some(table) = table.and_then(Item::as_table_like_mut) {
            table.remove(word);
        }
    }
    Ok(document.to_string())
}

fn not_a_table(words: &[&str]) -> EditError {
    EditError::Malformed { line: 1, message: format!("{} is a value, not a table", words.join(".")) }
}

/// Replaces the commented-out line of a key (`#key = …`) in its table; `None` if there is no such line.
fn replace_commented_line(text: &str, tables: &[&str], word: &str, value: &Value) -> Option<String> {
    let mut table = String::new();
    let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_string).collect();
    let line = lines.iter_mut().find(|line| {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            table = name.trim().to_string();
        }
        let shown = line.strip_prefix('#').and_then(|rest| rest.split_once('='));
        table == tables.join(".") && shown.is_some_and(|(name, _)| name.trim() == word)
    })?;
    let end = line[line.trim_end_matches(['\r', '\n']).len()..].to_string();
    *line = format!("{word} = {}{end}", value.to_string().trim());
    let changed = lines.concat();
    // The line may be part of a multi-line string: then the changed text does not have the key.
    let read = changed.parse::<DocumentMut>().ok()?;
    let item = tables.iter().chain([&word]).try_fold(read.as_item(), |item, word| item.get(word))?;
    let same = item.as_value()?.to_string().trim() == value.to_string().trim();
    same.then_some(changed)
}
