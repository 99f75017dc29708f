//! Adds a listener for the engine's requests to a container's seccomp profile.
//!
//! Every other call keeps its action, and unknown fields stay. A profile for which that is impossible stays unchanged.
//!
//! Source: OCI runtime specification 1.2, `config-linux.md`, "Seccomp". Runtimes skip rules whose action is the
//! default one (runc's `matchCall`, crun's `libcrun_generate_seccomp`). libseccomp kills on architectures that a filter does
//! not name: seccomp_attr_set(3), `SCMP_FLTATR_ACT_BADARCH`.

use serde_json::{Map, Value, json};

use super::rules;
use super::{NoListener, TSYNC};

/// The metadata that the listener receives with each container.
const METADATA: &str = "mpu";
const NOTIFY: &str = "SCMP_ACT_NOTIFY";
/// Actions that let a call through.
const ALLOWING_ACTIONS: [&str; 2] = ["SCMP_ACT_ALLOW", "SCMP_ACT_LOG"];

/// Native architectures, each with all architectures whose programs its kernels run.
const ARCHITECTURES: [(&str, &[&str]); 2] = [
    ("x86_64", &["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]),
    ("aarch64", &["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]),
];

/// The profile for a container without one: it allows all other calls.
pub(super) fn allow_all_with_listener(architecture: &str, socket: &str) -> Result<Value, NoListener> {
    let found = ARCHITECTURES.iter().find(|(native, _)| *native == architecture);
    let Some((_, architectures)) = found else { return Err(NoListener::Architecture(architecture.into())) };
    with_listener(&json!({"defaultAction": ALLOWING_ACTIONS[0], "architectures": architectures}), socket)
}

/// Adds the listener to a copy of the profile.
pub(super) fn with_listener(profile: &Value, socket: &str) -> Result<Value, NoListener> {
    let mut profile = profile.as_object().cloned().ok_or_else(|| malformed("", "an object"))?;
    let has = |field: &str, value: &str| profile.get(field).is_some_and(|held| held == value);
    if has("listenerPath", socket) && has("listenerMetadata", METADATA) {
        return Err(NoListener::Already);
    }
    for field in ["listenerPath", "listenerMetadata"] {
        match profile.get(field) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(_) => return Err(NoListener::OtherListener),
        }
    }
    if profile.get("flags").and_then(Value::as_array).is_some_and(|flags| flags.iter().any(|flag| flag == TSYNC)) {
        return Err(NoListener::Tsync);
    }
    let default = text(&profile, "defaultAction", "defaultAction")?;
    let mut rules = match profile.get("syscalls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(rules)) => rules.clone(),
        Some(_) => return Err(malformed("syscalls", "a list")),
    };
    let action = action_of_ioctl(&default, &rules)?;
    if !ALLOWING_ACTIONS.contains(&action.as_str()) {
        return Err(NoListener::Refused(action));
    }
    if action != default {
        for rule in &mut rules {
            if let Some(names) = rule.get_mut("names").and_then(Value::as_array_mut) {
                names.retain(|name| name != "ioctl");
            }
        }
        // A rule needs a name.
        rules.retain(|rule| rule.get("names").and_then(Value::as_array).is_some_and(|names| !names.is_empty()));
        rules.extend(rules::other_requests().into_iter().map(|requests| requests.rule(&action)));
    }
    rules.extend(rules::engine_requests().into_iter().map(|requests| requests.rule(NOTIFY)));
    profile.insert("syscalls".into(), rules.into());
    profile.insert("listenerPath".into(), socket.into());
    profile.insert("listenerMetadata".into(), METADATA.into());
    Ok(profile.into())
}

/// The one action for every `ioctl`.
fn action_of_ioctl(default: &str, rules: &[Value]) -> Result<String, NoListener> {
    if default == NOTIFY {
        return Err(NoListener::NotifyRule);
    }
    let mut action = None;
    for rule in rules {
        let rule = rule.as_object().ok_or_else(|| malformed("syscalls", "a list of objects"))?;
        let names = rule.get("names").and_then(Value::as_array).filter(|names| names.iter().all(Value::is_string));
        let names =
            names.filter(|names| !names.is_empty()).ok_or_else(|| malformed("syscalls.names", "a list of texts"))?;
        let rule_action = text(rule, "action", "syscalls.action")?;
        if rule_action == NOTIFY {
            return Err(NoListener::NotifyRule);
        }
        if !names.iter().any(|name| name == "ioctl") {
            continue;
        }
        match rule.get("args") {
            None | Some(Value::Null) => {}
            Some(Value::Array(conditions)) if conditions.is_empty() => {}
            Some(Value::Array(_)) => return Err(NoListener::ArgumentRule),
            Some(_) => return Err(malformed("syscalls.args", "a list")),
        }
        if action.replace(rule_action.clone()).is_some_and(|before| before != rule_action) {
            return Err(NoListener::SeveralRules);
        }
    }
    Ok(action.unwrap_or_else(|| default.to_owned()))
}

fn text(object: &Map<String, Value>, key: &str, at: &str) -> Result<String, NoListener> {
    object.get(key).and_then(Value::as_str).map(str::to_owned).ok_or_else(|| malformed(at, "a text"))
}

fn malformed(at: &str, expected: &'static str) -> NoListener {
    let at = if at.is_empty() { "linux.seccomp".to_owned() } else { format!("linux.seccomp.{at}") };
    NoListener::Malformed { at, expected }
}
