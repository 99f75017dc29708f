//! Any configuration of a container and any edits: nothing panics, what edits do not speak of stays, and a tree that was
//! edited can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mpu_container::edits::ContainerEdits;
use mpu_container::spec;
use serde_json::Value;

const SPOKEN_OF: [&str; 4] = ["process", "linux", "mounts", "hooks"];

fuzz_target!(|data: &[u8]| {
    // 0xff is in no JSON text.
    let mut texts = data.splitn(2, |byte| *byte == 0xff);
    let (Some(tree), Some(edits)) = (texts.next(), texts.next()) else { return };
    let Ok(mut tree) = serde_json::from_slice::<Value>(tree) else { return };
    let Ok(mut edits) = serde_json::from_slice::<ContainerEdits>(edits) else { return };
    // The host's own devices are no part of this: a device says all of itself.
    for node in &mut edits.device_nodes {
        node.kind.get_or_insert_with(|| "c".into());
        node.major = Some(node.major.filter(|major| *major != 0).unwrap_or(195));
    }
    let before = tree.clone();
    if spec::edit(&mut tree, &edits).is_err() {
        return;
    }
    for (key, value) in before.as_object().into_iter().flatten().filter(|(key, _)| !SPOKEN_OF.contains(&key.as_str())) {
        assert_eq!(tree.get(key), Some(value));
    }
    for text in &edits.env {
        let all = tree.pointer("/process/env").and_then(Value::as_array).expect("edits made the list");
        let name = text.split_once('=').expect("others are refused").0;
        assert!(all.iter().any(|one| one.as_str().and_then(|one| one.split_once('=')).is_some_and(|(n, _)| n == name)));
    }
    let again: Value = serde_json::from_str(&tree.to_string()).expect("what was written can be read");
    assert_eq!(again, tree);
});
