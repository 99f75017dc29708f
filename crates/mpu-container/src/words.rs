//! Words for the values of an enumeration: its variants' names in kebab case.

use clap::ValueEnum;

pub trait Words: ValueEnum + Copy + 'static {
    fn all() -> &'static [Self] {
        Self::value_variants()
    }

    fn word(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The value of a word that is written exactly so.
    fn of_word(word: &str) -> Option<Self> {
        Self::from_str(word, false).ok()
    }

    /// All words, in the order of [`Words::all`].
    fn words() -> Vec<String> {
        Self::all().iter().map(|value| value.word()).collect()
    }
}

impl<T: ValueEnum + Copy + 'static> Words for T {}
