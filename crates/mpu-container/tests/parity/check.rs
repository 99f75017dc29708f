//! Checks the statements of a case.

use crate::case::Case;
use crate::run::Outcome;

/// The failed statements, and failed checks that apply to every call.
pub fn differences(case: &Case, outcome: &Outcome) -> Vec<String> {
    let mut failed = always(case, outcome);
    let (out, err) = (&outcome.out, &outcome.err);
    if outcome.code != Some(case.exit) {
        let code = outcome.code.map_or("it never ended".into(), |code| code.to_string());
        failed.push(format!("exit code {} was expected: {code}\n{err}", case.exit));
    }
    let mut expect = |holds: bool, statement: String| {
        if !holds {
            failed.push(statement);
        }
    };
    expect(!case.silent || err.is_empty(), format!("it should say nothing:\n{err}"));
    for (does, parts, text) in [("say", &case.says, err), ("print", &case.prints, out)] {
        for part in parts {
            let (expected, wanted) = parse(part);
            expect(contains(text, wanted) == expected, format!("it should {does} {part:?}:\n{out}{err}"));
        }
    }
    for part in &case.has {
        let (expected, pattern) = parse(part);
        let holds = outcome.facts.iter().any(|fact| matches(pattern, fact)) == expected;
        expect(holds, format!("it should have {part:?}:\n{}\n{err}", facts_of_same_kind(pattern, &outcome.facts)));
        expect(expected || !outcome.facts.is_empty(), format!("there is no fact at all that could be lacking\n{err}"));
    }
    for (kind, names) in &case.whole {
        let actual = second_fields(kind, &outcome.facts);
        expect(actual == *names, format!("every {kind} should be {names:?}: {actual:?}\n{err}"));
    }
    if case.untouched {
        let call = format!("low {}", case.args.join(" "));
        expect(outcome.is_unchanged, "config.json was touched".into());
        expect(case.exit != 0 || outcome.facts.contains(&call), format!("the runtime was not called: {call}\n{err}"));
    }
    for (path, parts) in &case.left {
        let path_on_host = outcome.sandbox.at(path);
        let link = std::fs::read_link(&path_on_host).map(|target| format!("-> {}", target.display()));
        let text =
            link.or_else(|_| std::fs::read(&path_on_host).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
        let text = text.unwrap_or_else(|_| if path_on_host.is_dir() { "folder".into() } else { "gone".into() });
        for part in &parts.0 {
            let (expected, wanted) = parse(part);
            let holds = text.contains(&outcome.sandbox.fill(wanted)) == expected;
            expect(holds, format!("{path} should have {part:?}:\n{text}\n{err}"));
        }
    }
    failed
}

/// Splits the prefix `not: ` from a statement. Returns whether the statement is positive, and the rest.
fn parse(part: &str) -> (bool, &str) {
    part.strip_prefix("not: ").map_or((true, part), |part| (false, part))
}

/// Checks of every case: no panic, no partial changes, no control characters on the terminal.
fn always(case: &Case, outcome: &Outcome) -> Vec<String> {
    let mut failed = Vec::new();
    let err = &outcome.err;
    if outcome.code.is_none_or(|code| code < 0 || code == 101) || err.contains("panicked") {
        failed.push(format!("it was killed, hung or panicked ({:?}):\n{err}", outcome.code));
    }
    if !outcome.leftover_files.is_empty() {
        failed.push(format!("it left {:?} in the bundle", outcome.leftover_files));
    }
    if outcome.code != Some(0) && !outcome.is_unchanged {
        failed.push(format!("it failed, and config.json was changed:\n{err}"));
    }
    if outcome.code != Some(0) && case.run.starts_with("nvidia-container-runtime") && !outcome.out.is_empty() {
        failed.push(format!("it failed, and wrote to standard output, which is the runtime's:\n{}", outcome.out));
    }
    let wrapper = ["", ".cdi", ".legacy"].iter().any(|end| case.run == format!("nvidia-container-runtime{end}"));
    if wrapper && outcome.code == Some(1) && err.lines().count() != 1 {
        failed.push(format!("a refusal is one line, which engines show:\n{err}"));
    }
    if err.chars().any(|letter| letter.is_control() && letter != '\n' && letter != '\t') {
        failed.push(format!("there are control characters in what it says: {err:?}"));
    }
    failed
}

/// Copies of the case with one statement inverted each. All of them must fail.
pub fn inverted(case: &Case) -> Vec<(String, Case)> {
    let mut all = Vec::new();
    let mut invert = |statement: String, change: &dyn Fn(&mut Case)| {
        let mut other = case.clone();
        change(&mut other);
        all.push((statement, other));
    };
    invert("exit".into(), &|other| other.exit = 42);
    if case.silent {
        invert("silent".into(), &|other| (other.silent, other.says) = (false, vec!["anything".into()]));
    }
    let lists: [fn(&mut Case) -> &mut Vec<String>; 3] =
        [|case| &mut case.says, |case| &mut case.prints, |case| &mut case.has];
    for list in lists {
        for (at, part) in list(&mut case.clone()).iter().enumerate() {
            invert(part.clone(), &|other| list(other)[at] = opposite(part));
        }
    }
    for (path, parts) in &case.left {
        for (at, part) in parts.0.iter().enumerate() {
            invert(format!("left {path} {part}"), &|other| {
                other.left.get_mut(path).into_iter().for_each(|parts| parts.0[at] = opposite(part))
            });
        }
    }
    for kind in case.whole.keys() {
        invert(format!("whole {kind}"), &|other| {
            other.whole.get_mut(kind).into_iter().for_each(|names| names.push("one-more".into()))
        });
    }
    if case.untouched && case.exit == 0 {
        invert("untouched".into(), &|other| other.args.push("one-more".into()));
    }
    all
}

fn contains(text: &str, part: &str) -> bool {
    part.strip_prefix("whole: ").map_or_else(|| text.contains(part), |whole| text == whole)
}

fn opposite(part: &str) -> String {
    match parse(part) {
        (true, part) => format!("not: {part}"),
        (false, part) => part.to_owned(),
    }
}

/// The facts of the pattern's kind, or all.
fn facts_of_same_kind(pattern: &str, facts: &[String]) -> String {
    let kind = pattern.split(' ').next().unwrap_or_default();
    let same_kind: Vec<&str> =
        facts.iter().map(String::as_str).filter(|fact| fact.split(' ').next() == Some(kind)).collect();
    if same_kind.is_empty() { facts.join("\n") } else { same_kind.join("\n") }
}

fn second_fields(kind: &str, facts: &[String]) -> Vec<String> {
    let of_kind = facts.iter().filter_map(|fact| fact.strip_prefix(kind)?.strip_prefix(' '));
    of_kind.map(|rest| rest.split(' ').next().unwrap_or_default().to_owned()).collect()
}

/// Whether a fact matches the pattern, or begins with whole words that match it. `*` matches any text.
fn matches(pattern: &str, fact: &str) -> bool {
    match pattern.split_once('*') {
        None => fact.strip_prefix(pattern).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')),
        Some((start, rest)) => fact.strip_prefix(start).is_some_and(|fact| {
            let ends = fact.char_indices().map(|(at, _)| at).chain([fact.len()]);
            ends.into_iter().any(|at| matches(rest, &fact[at..]))
        }),
    }
}

#[test]
fn patterns_match_whole_words() {
    for (pattern, fact, expected) in [
        ("node /dev/nvidia0", "node /dev/nvidia0 c 195:0", true),
        ("node /dev/nvidia", "node /dev/nvidia0 c 195:0", false),
        ("node /dev/nvidia*", "node /dev/nvidia0 c 195:0", true),
        ("mount *libcuda.so*", "mount /usr/lib/libcuda.so.1 from /x", true),
        ("mount * with *ro*", "mount /a from /b with nosuid,ro", true),
        ("mount * with *rw", "mount /a from /b with nosuid,ro", false),
        ("", "node", false),
    ] {
        assert_eq!(matches(pattern, fact), expected, "{pattern:?} {fact:?}");
    }
}
