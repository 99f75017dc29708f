//! The prestart hooks that a specification already has, told by the name of their program.

use std::path::Path;

use serde_json::Value;

pub(super) fn remove(tree: &mut Value, names: &[&str]) -> bool {
    let Some(Value::Array(hooks)) = tree.pointer_mut("/hooks/prestart") else { return false };
    let before = hooks.len();
    hooks.retain(|hook| !is(hook, names));
    hooks.len() != before
}

pub(super) fn has(tree: &Value, names: &[&str]) -> bool {
    let hooks = tree.pointer("/hooks/prestart").and_then(Value::as_array);
    hooks.is_some_and(|hooks| hooks.iter().any(|hook| is(hook, names)))
}

/// By the program's file name, or by the name that it is called by: one executable can have many names.
fn is(hook: &Value, names: &[&str]) -> bool {
    let words = [hook.get("path"), hook.pointer("/args/0")].into_iter().flatten().filter_map(Value::as_str);
    words.filter_map(|word| Path::new(word).file_name()).any(|program| names.iter().any(|name| program == *name))
}
