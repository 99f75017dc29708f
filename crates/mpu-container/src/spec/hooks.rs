//! The prestart hooks that a specification already has, told by the file name of their program.

use std::path::Path;

use serde_json::Value;

/// Removes hooks by name; says whether there were any.
pub(super) fn remove(tree: &mut Value, names: &[&str]) -> bool {
    let Some(Value::Array(hooks)) = tree.pointer_mut("/hooks/prestart") else { return false };
    let before = hooks.len();
    hooks.retain(|hook| !is(hook, names));
    hooks.len() != before
}

/// Whether there is a hook of that name.
pub(super) fn has(tree: &Value, names: &[&str]) -> bool {
    let hooks = tree.pointer("/hooks/prestart").and_then(Value::as_array);
    hooks.is_some_and(|hooks| hooks.iter().any(|hook| is(hook, names)))
}

fn is(hook: &Value, names: &[&str]) -> bool {
    let program = hook.get("path").and_then(Value::as_str).map(Path::new).and_then(Path::file_name);
    program.is_some_and(|program| names.iter().any(|name| program == *name))
}
