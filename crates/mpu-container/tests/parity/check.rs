//! Whether what a case states is so.

use crate::case::Case;
use crate::play::Outcome;

/// What is not so; nothing if all is. What holds for every call is looked at as well.
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
    for part in &case.says {
        expect(err.contains(part.as_str()), format!("it should say {part:?}:\n{err}"));
    }
    for part in &case.prints {
        expect(out.contains(part.as_str()), format!("it should print {part:?}:\n{out}{err}"));
    }
    for part in &case.hides {
        expect(!out.contains(part.as_str()), format!("it should not print {part:?}:\n{out}"));
    }
    let is = |pattern: &String| outcome.facts.iter().any(|fact| matches(pattern, fact));
    for pattern in &case.has {
        expect(is(pattern), format!("there should be {pattern:?} in\n{}\n{err}", near(pattern, &outcome.facts)));
    }
    for pattern in &case.lacks {
        expect(!is(pattern), format!("there should be no {pattern:?} in\n{}", near(pattern, &outcome.facts)));
    }
    expect(
        case.lacks.is_empty() || !outcome.facts.is_empty(),
        format!("there is no fact at all that could be lacking\n{err}"),
    );
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
        for part in parts {
            match part.strip_prefix("not: ") {
                Some(part) => expect(
                    !text.contains(&outcome.world.fill(part)),
                    format!("{path} should not have {part:?}:\n{text}"),
                ),
                None => expect(
                    text.contains(&outcome.world.fill(part)),
                    format!("{path} should have {part:?}:\n{text}\n{err}"),
                ),
            }
        }
    }
    wrong
}

/// What holds whatever a case states: nothing panics, nothing is left half done, no foreign byte reaches a terminal.
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
    for at in 0..case.says.len() {
        turn(format!("says {:?}", case.says[at]), &|other| other.says[at].push_str(" and more"));
    }
    for at in 0..case.prints.len() {
        turn(format!("prints {:?}", case.prints[at]), &|other| {
            let part = other.prints.remove(at);
            other.hides.push(part);
        });
    }
    for at in 0..case.hides.len() {
        turn(format!("hides {:?}", case.hides[at]), &|other| {
            let part = other.hides.remove(at);
            other.prints.push(part);
        });
    }
    for at in 0..case.has.len() {
        turn(format!("has {:?}", case.has[at]), &|other| {
            let pattern = other.has.remove(at);
            other.lacks.push(pattern);
        });
    }
    for at in 0..case.lacks.len() {
        turn(format!("lacks {:?}", case.lacks[at]), &|other| {
            let pattern = other.lacks.remove(at);
            other.has.push(pattern);
        });
    }
    for kind in case.whole.keys() {
        turn(format!("whole {kind}"), &|other| {
            other.whole.get_mut(kind).into_iter().for_each(|names| names.push("one-more".into()))
        });
    }
    if case.untouched && case.exit == 0 {
        turn("untouched".into(), &|other| other.args.push("one-more".into()));
    }
    for path in case.left.keys() {
        turn(format!("left {path}"), &|other| {
            other.left.get_mut(path).into_iter().for_each(|parts| parts.push("no such words".into()))
        });
    }
    all
}

/// The facts of the pattern's kind, or all.
fn near(pattern: &str, facts: &[String]) -> String {
    let kind = pattern.split(' ').next().unwrap_or_default();
    let same: Vec<&str> =
        facts.iter().map(String::as_str).filter(|fact| fact.split(' ').next() == Some(kind)).collect();
    if same.is_empty() {
        facts.join("\n")
    } else {
        same.join("\n")
    }
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
