//! Evaluates `NVIDIA_REQUIRE_*`: conditions of an image on CUDA, driver, architecture and brand.
//!
//! ```text
//! cuda>=12.4 brand=tesla,driver>=470,driver<471
//! ```
//!
//! Spaces separate alternatives; commas separate conditions that must all hold. An unknown fact satisfies every condition. As in
//! libnvidia-container, a mistake in an alternative is an error only if that alternative is evaluated.
//!
//! Source: libnvidia-container, `src/cli/dsl.c` and `configure.c`; for users, NVIDIA's "Specialized
//! Configurations", constraints.

mod version;

use std::cmp::Ordering;
use std::fmt;
pub use version::Version;

/// Facts of the host for conditions. None is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    pub cuda: Option<Version>,
    pub driver: Option<Version>,
    pub arch: Option<Version>,
    /// The GPU's brand, as in `Tesla`.
    pub brand: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequireError {
    #[error("unsatisfied condition: {condition}{}", advice(condition))]
    Unsatisfied {
        /// The first alternative.
        condition: String,
        found: String,
    },
    #[error("invalid expression: {why}, at column {column} of '{text}'")]
    Malformed {
        text: String,
        /// In characters, from 1.
        column: usize,
        why: &'static str,
    },
}

impl RequireError {
    pub fn fix(&self) -> String {
        match self {
            RequireError::Unsatisfied { found, .. } => format!(
                "this host has {found}; NVIDIA_DISABLE_REQUIRE=1 in the container starts it all the same, and CUDA may fail in it"
            ),
            RequireError::Malformed { .. } => "correct the image's NVIDIA_REQUIRE_* variable".to_string(),
        }
    }
}

fn advice(condition: &str) -> &'static str {
    if condition.starts_with("cuda>=") {
        ", please update your driver to a newer version, or use an earlier cuda container"
    } else {
        ""
    }
}

pub fn check(text: &str, facts: &Facts) -> Result<(), RequireError> {
    let mut holds = true;
    for alternative in parts(text, 0, ' ') {
        holds = true;
        for (at, condition) in parts(alternative.1, alternative.0, ',') {
            let malformed = |(within, why)| RequireError::Malformed {
                text: text.to_string(),
                column: text.get(..at + within).unwrap_or(text).chars().count() + 1,
                why,
            };
            let condition = Condition::parse(condition).map_err(malformed)?;
            holds = condition.holds(facts).map_err(malformed)?;
            if !holds {
                break;
            }
        }
        if holds {
            break;
        }
    }
    if holds {
        return Ok(());
    }
    let condition = parts(text, 0, ' ').next().map_or(text, |(_, alternative)| alternative).to_string();
    Err(RequireError::Unsatisfied { condition, found: facts.to_string() })
}

pub fn check_all(requirements: &[String], driver: &Facts, gpus: &[Facts]) -> Result<(), RequireError> {
    let facts = if gpus.is_empty() { std::slice::from_ref(driver) } else { gpus };
    facts.iter().try_for_each(|facts| requirements.iter().try_for_each(|text| check(text, facts)))
}

/// The parts between separators that are not empty, each with its byte offset.
fn parts(text: &str, start: usize, separator: char) -> impl Iterator<Item = (usize, &str)> {
    let mut at = start;
    text.split(separator)
        .map(move |part| {
            let place = at;
            at += part.len() + separator.len_utf8();
            (place, part)
        })
        .filter(|(_, part)| !part.is_empty())
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let versions = [("cuda", &self.cuda), ("driver", &self.driver), ("arch", &self.arch)];
        let versions = versions.into_iter().filter_map(|(name, version)| Some(format!("{name}={}", version.as_ref()?)));
        let brand = self.brand.iter().map(|brand| format!("brand={brand}"));
        let all: Vec<String> = versions.chain(brand).collect();
        f.write_str(if all.is_empty() { "facts that are not known" } else { "" })?;
        f.write_str(&all.join(", "))
    }
}

/// An operator, and the orders of fact and value for which it holds.
type Operator = (&'static str, fn(Ordering) -> bool);

/// libnvidia-container accepts `!` alone, too.
const OPERATORS: [Operator; 7] = [
    ("=", Ordering::is_eq),
    ("!=", Ordering::is_ne),
    ("!", Ordering::is_ne),
    ("<", Ordering::is_lt),
    ("<=", Ordering::is_le),
    (">", Ordering::is_gt),
    (">=", Ordering::is_ge),
];

/// One comparison: `fact operator value`.
struct Condition<'a> {
    fact: &'a str,
    operator: &'static str,
    holds_for: fn(Ordering) -> bool,
    operator_at: usize,
    value_at: usize,
    value: &'a str,
}

/// The byte offset of a mistake in a condition, and its description.
type Fault = (usize, &'static str);

impl<'a> Condition<'a> {
    fn parse(text: &'a str) -> Result<Condition<'a>, Fault> {
        let of_operator = |c: char| matches!(c, '<' | '>' | '=' | '!');
        let operator_at = text.find(of_operator).ok_or((text.len(), "an operator is missing (= != < <= > >=)"))?;
        let (fact, rest) = text.split_at(operator_at);
        if fact.is_empty() {
            return Err((0, "a fact is missing before the operator (cuda, driver, arch, brand)"));
        }
        let length = rest.find(|c| !of_operator(c)).unwrap_or(rest.len());
        let (operator, value) = rest.split_at(length);
        let known = OPERATORS.into_iter().find(|(word, _)| *word == operator);
        let (operator, holds_for) = known.ok_or((operator_at, "there is no such operator (= != < <= > >=)"))?;
        if value.is_empty() {
            return Err((text.len(), "a value is missing behind the operator"));
        }
        Ok(Condition { fact, operator, holds_for, operator_at, value_at: operator_at + length, value })
    }

    fn holds(&self, facts: &Facts) -> Result<bool, Fault> {
        let compare = |fact: &Option<Version>| match fact {
            None => Ok(true),
            Some(fact) => {
                let value =
                    Version::parse(self.value).ok_or((self.value_at, "a version is numbers with dots between them"))?;
                Ok((self.holds_for)(fact.cmp(&value)))
            }
        };
        match self.fact {
            fact if fact.eq_ignore_ascii_case("cuda") => compare(&facts.cuda),
            fact if fact.eq_ignore_ascii_case("driver") => compare(&facts.driver),
            fact if fact.eq_ignore_ascii_case("arch") => compare(&facts.arch),
            fact if fact.eq_ignore_ascii_case("brand") => match (&facts.brand, self.operator) {
                (None, _) => Ok(true),
                (Some(brand), "=") => Ok(brand.eq_ignore_ascii_case(self.value)),
                (Some(brand), "!=" | "!") => Ok(!brand.eq_ignore_ascii_case(self.value)),
                _ => Err((self.operator_at, "a brand is compared by = or !=")),
            },
            _ => Err((0, "there is no such fact (cuda, driver, arch, brand)")),
        }
    }
}

#[cfg(test)]
mod tests;
