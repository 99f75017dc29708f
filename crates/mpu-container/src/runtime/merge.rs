//! Merges consecutive hooks of ours into one, because starting a process takes longer than most of these hooks.

use super::program;
use crate::cdi::HookName;
use crate::cdi_hooks::{IN_TURN, SEPARATOR};
use crate::edits::Hook;
use crate::kebab_name::KebabName;
use std::path::Path;

/// Merges hooks of the same OCI hook name. Keeps the order.
pub(super) fn merge_hooks(hooks: &mut Vec<Hook>) {
    let mut done: Vec<Hook> = Vec::new();
    for hook in hooks.drain(..) {
        let last = done.iter_mut().rev().find(|last| last.hook_name == hook.hook_name);
        match last.and_then(|last| merged(last, &hook).map(|args| (last, args))) {
            Some((last, args)) => last.args = args,
            None => done.push(hook),
        }
    }
    *hooks = done;
}

/// The arguments of the merged hook. None if the hooks cannot be merged.
fn merged(first: &Hook, second: &Hook) -> Option<Vec<String>> {
    let alike = (&first.path, &first.env) == (&second.path, &second.env);
    if !alike || first.timeout.is_some() || second.timeout.is_some() || !program::is_ours(Path::new(&first.path)) {
        return None;
    }
    let ((name, before), (_, words)) = (split_program(first)?, split_program(second)?);
    let before = match before {
        [word, before @ ..] if word == IN_TURN => before,
        before => before,
    };
    let are_mergeable =
        before.split(|word| word == SEPARATOR).all(|words| is_mergeable(first, words)) && is_mergeable(second, words);
    are_mergeable.then(|| [name, &[IN_TURN.into()], before, &[SEPARATOR.into()], words].concat())
}

/// Splits a hook's arguments after the program's name.
fn split_program(hook: &Hook) -> Option<(&[String], &[String])> {
    match hook.args.as_slice() {
        [name, ..] if name == "nvidia-cdi-hook" => Some(hook.args.split_at(1)),
        [name, word, ..] if name == "nvidia-ctk" && word == "hook" => Some(hook.args.split_at(2)),
        _ => None,
    }
}

fn is_mergeable(hook: &Hook, words: &[String]) -> bool {
    let name = words.first().and_then(|word| HookName::from_kebab_name(word));
    name.is_some_and(|name| name != HookName::ApplyCudaMemoryLimits && name.point() == hook.hook_name)
        && words.iter().all(|word| word != SEPARATOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(point: &str, path: &str, words: &[&str]) -> Hook {
        Hook {
            hook_name: point.into(),
            path: path.into(),
            args: words.iter().map(ToString::to_string).collect(),
            ..Hook::default()
        }
    }

    fn own_path() -> String {
        std::env::current_exe().unwrap().display().to_string()
    }

    #[test]
    fn foreign_or_different_hooks_stay_separate() {
        let first = hook("createContainer", &own_path(), &["nvidia-cdi-hook", "update-ldcache"]);
        let of_ours = |words: &[&str]| hook("createContainer", &own_path(), words);
        let others = [
            ("another program", hook("createContainer", "/bin/true", &["nvidia-cdi-hook", "hide-other-gpus"])),
            ("another call", of_ours(&["other", "hide-other-gpus"])),
            ("an unknown hook", of_ours(&["nvidia-cdi-hook", "of-tomorrow"])),
            ("an option first", of_ours(&["nvidia-cdi-hook", "--debug", "hide-other-gpus"])),
            ("our own sign", of_ours(&["nvidia-cdi-hook", "chmod", "--path", "--"])),
            (
                "several with one that is none of them",
                of_ours(&["nvidia-cdi-hook", "in-turn", "chmod", "--", "of-tomorrow"]),
            ),
            ("limits", of_ours(&["nvidia-cdi-hook", "apply-cuda-memory-limits"])),
            ("no words", of_ours(&["nvidia-cdi-hook"])),
            ("none at all", of_ours(&[])),
            (
                "another environment",
                Hook { env: vec!["A=1".into()], ..of_ours(&["nvidia-cdi-hook", "hide-other-gpus"]) },
            ),
            ("a limit of time", Hook { timeout: Some(1), ..of_ours(&["nvidia-cdi-hook", "hide-other-gpus"]) }),
            ("another time", hook("startContainer", &own_path(), &["nvidia-cdi-hook", "hide-other-gpus"])),
        ];
        for (what, other) in others {
            for pair in [[first.clone(), other.clone()], [other.clone(), first.clone()]] {
                let mut hooks = pair.to_vec();
                merge_hooks(&mut hooks);
                assert_eq!(hooks, pair, "{what}");
            }
            // No hook is moved across it.
            let mut between = vec![first.clone(), other.clone(), first.clone()];
            merge_hooks(&mut between);
            let points = if other.hook_name == first.hook_name { 3 } else { 2 };
            assert_eq!(between.len(), points, "{what}");
        }
    }
}
