//! What ARCHITECTURE.md promises in bold of what a part does not know, as tests of the sources: each bold sentence names one.
//!
//! Reads names in product code; comments, texts and tests may say what they like. Who may use which crate is `arrows`, and which
//! room which is `walls`'s.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quote::ToTokens;

use super::imports::{attributes, is_for_tests};
use super::{quoted, read, tracked, with_ending};

/// The product code of a Rust source: its tokens with single spaces, paths in one piece, without texts.
fn product(text: &str, place: &Path) -> String {
    let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
    // A module of that name makes a host up, for the tests of other crates too.
    let is_fake = |item: &syn::Item| matches!(item, syn::Item::Mod(module) if module.ident == "fake");
    let items = file.items.iter().filter(|item| !is_for_tests(attributes(item)) && !is_fake(item));
    items.map(|item| code(item.to_token_stream())).collect::<Vec<_>>().join(" ").replace(" : : ", "::")
}

fn code(tokens: proc_macro2::TokenStream) -> String {
    let text = |token| match token {
        proc_macro2::TokenTree::Group(group) => {
            let inside = code(group.stream());
            match group.delimiter() {
                proc_macro2::Delimiter::Parenthesis => format!("( {inside} )"),
                proc_macro2::Delimiter::Brace => format!("{{ {inside} }}"),
                _ => format!("[ {inside} ]"),
            }
        }
        proc_macro2::TokenTree::Literal(literal) if literal.to_string().contains('"') => "\"\"".to_owned(),
        other => other.to_string(),
    };
    // A comment before an item is an attribute, and a text.
    tokens.into_iter().map(text).collect::<Vec<_>>().join(" ")
}

/// The product code below a folder, by file.
fn below(folder: &str) -> Vec<(PathBuf, String)> {
    let files = tracked();
    let is_product = |file: &&PathBuf| {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        file.starts_with(folder) && !["tests", "fake"].contains(&stem.as_str())
    };
    let found: Vec<_> = with_ending(&files, &["rs"])
        .filter(is_product)
        .map(|file| (file.clone(), product(&read(file), file)))
        .collect();
    assert!(!found.is_empty(), "there is no Rust source below {folder}");
    found
}

/// Where one of some names, or a path that ends in one, stands in a code.
fn named<'a>(code: &'a str, names: &[&str]) -> Vec<&'a str> {
    let is_it = |word: &&str| names.iter().any(|name| *word == *name || word.ends_with(&format!("::{name}")));
    code.split(' ').filter(is_it).collect()
}

/// None of these names stands below a folder.
fn nowhere(folder: &str, names: &[&str]) {
    for (file, code) in below(folder) {
        let found = named(&code, names);
        assert!(found.is_empty(), "{} names {found:?}", file.display());
    }
}

/// Every path into a crate that stands below a folder, without the crate.
fn uses(folder: &str, of: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (file, _) in below(folder) {
        let target = super::imports::paths(&read(&file));
        found.extend(target.into_iter().filter_map(|path| Some(path.strip_prefix(of)?.strip_prefix("::")?.to_owned())));
    }
    found
}

fn manifest(package: &str) -> toml::Table {
    read(&Path::new(package).join("Cargo.toml")).parse().unwrap()
}

#[test]
fn the_rows_crate_holds_no_behaviour() {
    assert!(manifest("crates/mpu-abi").get("dependencies").is_none(), "data needs nobody");
    for (file, code) in below("crates/mpu-abi/src") {
        // To be printed is not to behave.
        let changes = code.replace("& mut fmt::Formatter", "").contains("& mut ");
        let found = named(&code, &["std", "unsafe", "Cell", "RefCell", "AtomicU32", "dyn", "async"]);
        assert!(!changes && found.is_empty(), "{} does something: {found:?}", file.display());
    }
}

#[test]
fn the_core_knows_no_ioctl_namespace_driver_or_kernel() {
    let uses = uses("crates/mpu-core/src", "mpu_abi");
    let outside: Vec<_> = uses.iter().filter(|path| path.starts_with("ioctl") || path.contains("Release")).collect();
    assert!(outside.is_empty(), "{outside:?}");
    nowhere("crates/mpu-core/src", &["std", "libc", "alloc", "unsafe", "extern", "asm", "PidNamespace", "Namespace"]);
    let needs = manifest("crates/mpu-core");
    let needs: Vec<_> = needs["dependencies"].as_table().unwrap().keys().collect();
    assert_eq!(needs, ["mpu-abi"]);
}

#[test]
fn the_kernels_rust_knows_nothing_of_what_bytes_mean() {
    let uses: Vec<_> = uses("crates/mpu-kmod/src", "mpu_abi").into_iter().collect();
    assert_eq!(uses, ["Control", "ControlCmd", "may_carry_pids"]);
    nowhere("crates/mpu-kmod/src", &["from_ne_bytes", "from_le_bytes", "read_unaligned", "Layout", "Rows", "Samples"]);
}

#[test]
fn the_kernels_c_has_no_control_and_no_layout_of_one() {
    let files = tracked();
    let mut seen = 0;
    for file in with_ending(&files, &["c", "h", "S"]).filter(|file| file.starts_with("kmod")) {
        seen += 1;
        let text = read(file).to_lowercase();
        assert!(!text.contains("_ctrl_"), "{} names a control's parameters", file.display());
        let numbers = text.split(|c: char| !c.is_alphanumeric()).filter_map(|word| {
            let word = word.trim_end_matches(['u', 'l']);
            word.strip_prefix("0x").map_or_else(|| word.parse().ok(), |digits| u32::from_str_radix(digits, 16).ok())
        });
        for number in numbers.filter(|number| *number > 0xff) {
            let row = mpu_abi::ROWS.iter().find(|row| row.cmd.0 == number || row.params_size == number);
            assert!(row.is_none(), "{} has {number:#x}, which is of {:?}", file.display(), row.map(|row| row.control));
        }
    }
    assert!(seen > 8, "{seen} files");
}

#[test]
fn what_stands_below_engines_asks_no_driver_and_changes_nothing() {
    let writes = [
        "write",
        "write_all",
        "create",
        "create_new",
        "create_dir",
        "create_dir_all",
        "remove_file",
        "remove_dir",
        "remove_dir_all",
        "rename",
        "copy",
        "hard_link",
        "symlink",
        "set_permissions",
        "truncate",
        "append",
        "set_len",
        "mount",
        "kill",
        "finit_module",
        "delete_module",
        "ioctl",
    ];
    for (file, code) in below("crates/mpu-host/src") {
        // Text and pipes are written to, and change no host.
        let code = code.replace("write ! (", "").replace("f . write_str", "");
        let found: Vec<_> = named(&code, &writes)
            .into_iter()
            .filter(|found| found.contains("fs::") || code.contains(&format!(". {found} (")) || code.contains("libc::"))
            .collect();
        assert!(found.is_empty(), "{} calls {found:?}", file.display());
    }
    nowhere("crates/mpu-host/src", &["rm_control", "rm_alloc", "NV_ESC_RM_CONTROL", "NV_ESC_RM_ALLOC"]);
}

/// Where the supervisor of the notify engine lives.
const SUPERVISOR: &str = "crates/mpu-notify/src";

#[test]
fn the_supervisor_asks_the_driver_nothing_of_its_own() {
    let mut calls = Vec::new();
    for (file, code) in below(SUPERVISOR) {
        let name = file.strip_prefix(SUPERVISOR).unwrap().display().to_string();
        assert!(named(&code, &["rm_alloc", "rm_free", "NV_ESC_RM_ALLOC"]).is_empty(), "{name} makes objects");
        let asks = code.matches(". ask (").count() + code.matches(". ask_unreadable (").count();
        let is_driver = asks > 0 && code.contains("driver");
        // The one file that reaches the ioctl, by way of sys.rs.
        assert!(code.matches("sys::rm_control").count() == 0 || name == "driver.rs", "{name} asks by itself");
        // Who asks does so with the block that the caller sent: with its client, its object and its control.
        let own_blocks = code.matches("block = [ 0").count();
        assert_eq!(own_blocks, 0, "{name} makes a question of its own");
        let other_controls = code.matches("nvos54::CMD ,").count();
        if is_driver || other_controls > 0 {
            calls.push((name, asks, other_controls));
        }
    }
    // Among those that ask are `ask` of the two files themselves. The record of each process in a list of accounting records is the
    // one control that no caller named: docs/notify.md.
    let expected = [("ask.rs", 3, 0), ("question.rs", 5, 1)].map(|(name, asks, other)| (name.to_owned(), asks, other));
    calls.sort();
    assert_eq!(calls, expected, "docs/notify.md lists what the supervisor asks; add to it, or take it back");
}

#[test]
fn containers_have_no_pids_translated_and_no_code_of_the_driver_loaded() {
    let used = uses("crates/mpu-container/src", "mpu_abi");
    let others: Vec<_> = used.iter().filter(|path| !path.starts_with("ioctl")).collect();
    assert!(others.is_empty(), "{others:?}");
    let folder = "crates/mpu-container/src";
    nowhere(folder, &["HostPid", "ViewPid", "PidMap", "dlopen", "dlmopen", "libloading", "nvml_wrapper"]);
}

#[test]
fn the_simulator_shares_nothing_with_the_rows() {
    let files = tracked();
    let mut seen = 0;
    for file in files.iter().filter(|file| file.starts_with("sim")) {
        let text = read(file);
        for line in text.lines().filter(|line| line.trim_start().starts_with("#include \"")) {
            seen += 1;
            assert!(!line.contains("crates") && !line.contains("kmod"), "{}: {line}", file.display());
        }
        let makes = file.ends_with("Makefile") || file.ends_with("Kbuild");
        assert!(!makes || !text.contains("crates"), "{} builds of the rows", file.display());
    }
    assert!(seen > 20, "{seen} includes");
    // Nor does anything write there.
    for (file, code) in below("crates/mpu-abi/src") {
        assert!(!code.contains("sim"), "{} knows the simulator", file.display());
    }
    assert!(!super::repo().join("crates/mpu-abi/build.rs").exists());
}

#[test]
fn nothing_of_the_made_up_gpu_is_shipped() {
    let files = tracked();
    let ships = |file: &&PathBuf| {
        let part = ["crates", "kmod", "packaging", "xtask/src/dist"].iter().any(|part| file.starts_with(part));
        let text = ["rs", "toml", "sh", "yaml", "tpl", "service", "conf", "c", "h"];
        part && file.extension().is_some_and(|ending| text.iter().any(|one| ending == *one))
    };
    let mut seen = 0;
    for file in files.iter().filter(ships) {
        seen += 1;
        let text = read(file);
        for word in ["tests/real-driver", "made_up_gpu", "made_up_overrides"] {
            assert!(!text.contains(word), "{} names {word}", file.display());
        }
    }
    assert!(seen > 100, "{seen} files");
}

#[test]
fn the_checker_makes_no_row() {
    for (file, code) in below("xtask/src/abi") {
        let makes = code.contains("Row {") || code.contains("fs::write") || code.contains("File::create");
        assert!(!makes, "{} makes something", file.display());
    }
}

/// A bold sentence is a promise: behind it, in parentheses and before the next one, stands the test that holds it.
fn without_a_test<'a>(map: &'a str, is_test: &dyn Fn(&str) -> bool) -> Vec<&'a str> {
    let mut told = Vec::new();
    for item in map.split("\n- ").flat_map(|item| item.split("\n\n")) {
        let parts: Vec<&str> = item.split("**").collect();
        for (at, bold) in parts.iter().enumerate().skip(1).step_by(2) {
            // The name of a paragraph.
            if at == 1 && parts[0].is_empty() {
                continue;
            }
            let after = parts.get(at + 1).copied().unwrap_or_default().trim_start_matches([',', ';', ':', '.']);
            let held = after.trim_start().strip_prefix('(').and_then(|rest| rest.split_once(')'));
            if !held.is_some_and(|(held, _)| quoted(held).next().is_some() && quoted(held).all(is_test)) {
                told.push(*bold);
            }
        }
    }
    told
}

#[test]
fn bold_sentences_name_their_tests() {
    let files = tracked();
    let code: Vec<String> = with_ending(&files, &["rs"]).map(|file| read(file)).collect();
    let is_function = |name: &str| {
        let function = format!("fn {name}(");
        let is_it = |text: &String| {
            let mut before = text.split(&function);
            let head = before.next().unwrap_or_default();
            before.next().is_some() && head.trim_end().ends_with("#[test]")
        };
        code.iter().any(is_it)
    };
    let is_test = |name: &str| match Path::new(name).extension() {
        Some(_) => files.contains(&PathBuf::from(name)) && read(Path::new(name)).contains("#[test]"),
        None => is_function(name),
    };
    let map = read(Path::new("ARCHITECTURE.md"));
    assert!(map.matches("**").count() > 40, "the reader has lost its eyes");
    let told = without_a_test(&map, &is_test);
    assert!(told.is_empty(), "ARCHITECTURE.md says these and names no test of them: {told:#?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_needs_a_test_that_is_there() {
        let is_test = |name: &str| name == "it_holds";
        let told = |text| without_a_test(text, &is_test);
        assert_eq!(told("- `a`: **knows nothing** (`it_holds`), and more.\n- **Errors.** None."), [] as [&str; 0]);
        assert_eq!(told("- `a`: **Knows nothing.** (`it_holds`)\n  **Says nothing.**"), ["Says nothing."]);
        assert_eq!(
            told("- `a`: **knows nothing** (`it_held`), **nor more**\n- `b` (`it_holds`)."),
            ["knows nothing", "nor more"]
        );
        assert_eq!(told("- `a`: **knows nothing** of `b` (`it_holds`)"), ["knows nothing"]);
    }

    #[test]
    fn comments_texts_and_tests_are_no_product() {
        let text = "//! std\n/// unsafe\nfn f() { std::fs::write(\"libc\", x.y()) }\n#[cfg(test)]\nmod tests { fn g() { libc() } }\n";
        let code = product(text, Path::new("x"));
        assert_eq!(named(&code, &["write"]), ["std::fs::write"]);
        assert_eq!(named(&code, &["libc", "unsafe"]), [] as [&str; 0]);
    }
}
