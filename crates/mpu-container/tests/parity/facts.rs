//! Flattens a container's specification or a CDI file into lines of facts: kind, subject and rest.
//!
//! `node /dev/nvidia0 c 195:0 mode 666`, `rule c 195:0 rwm`, `mount DESTINATION from SOURCE with OPTIONS`, `env NAME=VALUE`,
//! `hook NAME at STAGE ARGUMENTS`, `process PROGRAM at STAGE` for several hooks in one, `link PATH to TARGET`,
//! `folder PATH`, `gid N`; `low ARGUMENTS` for the low-level runtime's call. A CDI file also has `kind`, `version` and `device NAME`. Facts
//! of a device begin with `NAME:`.

use serde_json::Value;

pub fn of_spec(spec: &Value) -> Vec<String> {
    let mut facts = Vec::new();
    let linux = &spec["linux"];
    for node in list(&linux["devices"]) {
        facts.push(format!(
            "node {} {} {}:{} mode {:o}{}",
            text(&node["path"]),
            text(&node["type"]),
            node["major"],
            node["minor"],
            node["fileMode"].as_u64().unwrap_or_default(),
            owner_suffix(node)
        ));
    }
    for rule in list(&linux["resources"]["devices"]).iter().filter(|rule| rule["allow"] == true) {
        facts.push(format!(
            "rule {} {}:{} {}",
            text(&rule["type"]),
            rule["major"],
            rule["minor"],
            text(&rule["access"])
        ));
    }
    for mount in list(&spec["mounts"]) {
        facts.push(mount_fact(text(&mount["destination"]), text(&mount["source"]), mount));
    }
    facts.extend(list(&spec["process"]["env"]).iter().map(|env| format!("env {}", text(env))));
    for (stage, hooks) in spec["hooks"].as_object().into_iter().flatten() {
        list(hooks).iter().for_each(|hook| hook_facts(stage, hook, &mut facts));
    }
    facts.extend(list(&spec["process"]["user"]["additionalGids"]).iter().map(|gid| format!("gid {gid}")));
    facts
}

pub fn of_cdi(spec: &Value) -> Vec<String> {
    let mut facts = vec![format!("kind {}", text(&spec["kind"])), format!("version {}", text(&spec["cdiVersion"]))];
    edit_facts(&spec["containerEdits"], &mut facts);
    for device in list(&spec["devices"]) {
        let name = text(&device["name"]);
        facts.push(format!("device {name}"));
        let mut own = Vec::new();
        edit_facts(&device["containerEdits"], &mut own);
        facts.extend(own.iter().map(|fact| format!("{name}: {fact}")));
    }
    facts
}

fn edit_facts(edits: &Value, facts: &mut Vec<String>) {
    for node in list(&edits["deviceNodes"]) {
        let from = node["hostPath"].as_str().map(|path| format!(" from {path}")).unwrap_or_default();
        facts.push(format!(
            "node {} {}:{} mode {:o} {}{from}{}",
            text(&node["path"]),
            node["major"],
            node["minor"],
            node["fileMode"].as_u64().unwrap_or_default(),
            text(&node["permissions"]),
            owner_suffix(node)
        ));
    }
    for mount in list(&edits["mounts"]) {
        facts.push(mount_fact(text(&mount["containerPath"]), text(&mount["hostPath"]), mount));
    }
    facts.extend(list(&edits["env"]).iter().map(|env| format!("env {}", text(env))));
    list(&edits["hooks"]).iter().for_each(|hook| hook_facts(text(&hook["hookName"]), hook, facts));
    facts.extend(list(&edits["additionalGids"]).iter().map(|gid| format!("gid {gid}")));
}

fn mount_fact(destination: &str, source: &str, mount: &Value) -> String {
    let options: Vec<&str> = list(&mount["options"]).iter().map(text).collect();
    format!("mount {destination} from {source} with {}", options.join(","))
}

fn owner_suffix(node: &Value) -> String {
    ["uid", "gid"].iter().filter_map(|key| Some(format!(" {key} {}", node[key].as_u64()?))).collect()
}

fn hook_facts(stage: &str, hook: &Value, facts: &mut Vec<String>) {
    let args: Vec<&str> = list(&hook["args"]).iter().map(text).collect();
    let rest = match args.as_slice() {
        ["nvidia-cdi-hook", rest @ ..] | ["nvidia-ctk", "hook", rest @ ..] => rest,
        [_, rest @ ..] => rest,
        [] => &[],
    };
    let is_own = matches!(args.first(), Some(&("nvidia-cdi-hook" | "nvidia-ctk")));
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let program = match last(text(&hook["path"])) {
        // Our executable is named after its first argument.
        program if program == "mpu-container" => last(args.first().unwrap_or(&"")),
        program => program,
    };
    if let ["in-turn", hooks @ ..] = rest {
        facts.push(format!("process {program} at {stage}"));
        for words in hooks.split(|word| *word == "--") {
            let args: Vec<&str> = args[..args.len() - rest.len()].iter().chain(words).copied().collect();
            hook_facts(stage, &serde_json::json!({ "path": hook["path"], "args": args }), facts);
        }
        return;
    }
    let (name, rest) = match rest {
        [name, rest @ ..] if is_own => ((*name).to_owned(), rest),
        rest => (program, rest),
    };
    facts.push(format!("hook {name} at {stage} {}", rest.join(" ")));
    facts.push(format!("program {name} is {}", text(&hook["path"])));
    for pair in rest.windows(2) {
        match pair {
            ["--link", link] => {
                let (target, path) = link.split_once("::").unwrap_or((link, ""));
                facts.push(format!("link {path} to {target}"));
            }
            ["--folder", folder] => facts.push(format!("folder {folder}")),
            _ => {}
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
