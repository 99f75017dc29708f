//! Checks the statements of a case.

use crate::case::Case;
use crate::run::Outcome;

/// The failed statements, and failed checks that apply to every call.
pub fn differences(case: &Case, outcome: &Outcome) -> Vec<String> {
    let mut wrong = always(case, outcome);
    let (out, err) = (&outcome.out, &outcome.err);
    if outcome.code != Some(case.exit) {
        let code = outcome.code.map_or("it never ended".into(), |code| code.to_string());
        wrong.push(format!("exit code {} was expected: {code}\n{err}", case.exit));
    }
    let mut expect = |holds: bool, what: String| {
        if !holds {
            wrong.push(what);
        }
    };
    expect(!case.silent || err.is_empty(), format!("it should say nothing:\n{err}"));
    for (does, parts, text) in [("say", &case.says, err), ("print", &case.prints, out)] {
        for part in parts {
            let (is, wanted) = parse(part);
            expect(contains(text, wanted) == is, format!("it should {does} {part:?}:\n{out}{err}"));
        }
    }
    for part in &case.has {
        let (is, pattern) = parse(part);
        let holds = outcome.facts.iter().any(|fact| matches(pattern, fact)) == is;
        expect(holds, format!("it should have {part:?}:\n{}\n{err}", near(pattern, &outcome.facts)));
        expect(is || !outcome.facts.is_empty(), format!("there is no fact at all that could be lacking\n{err}"));
    }
    for (kind, names) in &case.whole {
        let there = second_words(kind, &outcome.facts);
        expect(there == *names, format!("every {kind} should be {names:?}: {there:?}\n{err}"));
    }
    if case.untouched {
        let call = format!("low {}", case.args.join(" "));
        expect(outcome.same, "config.json was touched".into());
        expect(case.exit != 0 || outcome.facts.contains(&call), format!("the runtime was not called: {call}\n{err}"));
    }
    for (path, parts) in &case.left {
        let place = outcome.world.at(path);
        let link = std::fs::read_link(&place).map(|target| format!("-> {}", target.display()));
        let text = link.or_else(|_| std::fs::read(&place).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
        let text = text.unwrap_or_else(|_| if place.is_dir() { "folder".into() } else { "gone".into() });
        for part in &parts.0 {
            let (is, wanted) = parse(part);
            let holds = text.contains(&outcome.world.fill(wanted)) == is;
            expect(holds, format!("{path} should have {part:?}:\n{text}\n{err}"));
        }
    }
    wrong
}

/// Whether something is or is `not: `, and what.
fn parse(part: &str) -> (bool, &str) {
    part.strip_prefix("not: ").map_or((true, part), |part| (false, part))
}

/// Checks for every case: no panic, no half-done work, no control character on a terminal.
fn always(case: &Case, outcome: &Outcome) -> Vec<String> {
    let mut wrong = Vec::new();
    let err = &outcome.err;
    if outcome.code.is_none_or(|code| code < 0 || code == 101) || err.contains("panicked") {
        wrong.push(format!("it was killed, hung or panicked ({:?}):\n{err}", outcome.code));
    }
    if !outcome.litter.is_empty() {
        wrong.push(format!("it left {:?} in the bundle", outcome.litter));
    }
    if outcome.code != Some(0) && !outcome.same {
        wrong.push(format!("it failed, and config.json was changed:\n{err}"));
    }
    if outcome.code != Some(0) && case.run.starts_with("nvidia-container-runtime") && !outcome.out.is_empty() {
        wrong.push(format!("it failed, and wrote to standard output, which is the runtime's:\n{}", outcome.out));
    }
    let wrapper = ["", ".cdi", ".legacy"].iter().any(|end| case.run == format!("nvidia-container-runtime{end}"));
    if wrapper && outcome.code == Some(1) && err.lines().count() != 1 {
        wrong.push(format!("a refusal is one line, which engines show:\n{err}"));
    }
    if err.chars().any(|letter| letter.is_control() && letter != '\n' && letter != '\t') {
        wrong.push(format!("there are control characters in what it says: {err:?}"));
    }
    wrong
}

/// The case with each of its statements turned round.
pub fn turned(case: &Case) -> Vec<(String, Case)> {
    let mut all = Vec::new();
    let mut turn = |what: String, change: &dyn Fn(&mut Case)| {
        let mut other = case.clone();
        change(&mut other);
        all.push((what, other));
    };
    turn("exit".into(), &|other| other.exit = 42);
    if case.silent {
        turn("silent".into(), &|other| (other.silent, other.says) = (false, vec!["anything".into()]));
    }
    let lists: [fn(&mut Case) -> &mut Vec<String>; 3] =
        [|case| &mut case.says, |case| &mut case.prints, |case| &mut case.has];
    for list in lists {
        for (at, part) in list(&mut case.clone()).iter().enumerate() {
            turn(part.clone(), &|other| list(other)[at] = opposite(part));
        }
    }
    for (path, parts) in &case.left {
        for (at, part) in parts.0.iter().enumerate() {
            turn(format!("left {path} {part}"), &|other| {
                other.left.get_mut(path).into_iter().for_each(|parts| parts.0[at] = opposite(part))
            });
        }
    }
    for kind in case.whole.keys() {
        turn(format!("whole {kind}"), &|other| {
            other.whole.get_mut(kind).into_iter().for_each(|names| names.push("one-more".into()))
        });
    }
    if case.untouched && case.exit == 0 {
        turn("untouched".into(), &|other| other.args.push("one-more".into()));
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
fn near(pattern: &str, facts: &[String]) -> String {
    let kind = pattern.split(' ').next().unwrap_or_default();
    let same: Vec<&str> =
        facts.iter().map(String::as_str).filter(|fact| fact.split(' ').next() == Some(kind)).collect();
    if same.is_empty() { facts.join("\n") } else { same.join("\n") }
}

fn second_words(kind: &str, facts: &[String]) -> Vec<String> {
    let of_kind = facts.iter().filter_map(|fact| fact.strip_prefix(kind)?.strip_prefix(' '));
    of_kind.map(|rest| rest.split(' ').next().unwrap_or_default().to_owned()).collect()
}

/// Whether a fact is what the pattern says, or begins with it.
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
    for (pattern, fact, is) in [
        ("node /dev/nvidia0", "node /dev/nvidia0 c 195:0", true),
        ("node /dev/nvidia", "node /dev/nvidia0 c 195:0", false),
        ("node /dev/nvidia*", "node /dev/nvidia0 c 195:0", true),
        ("mount *libcuda.so*", "mount /usr/lib/libcuda.so.1 from /x", true),
        ("mount * with *ro*", "mount /a from /b with nosuid,ro", true),
        ("mount * with *rw", "mount /a from /b with nosuid,ro", false),
        ("", "node", false),
    ] {
        assert_eq!(matches(pattern, fact), is, "{pattern:?} {fact:?}");
    }
}
