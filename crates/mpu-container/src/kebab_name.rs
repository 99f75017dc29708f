//! Kebab-case names of an enumeration's variants, as clap writes them.

use clap::ValueEnum;

pub trait KebabName: ValueEnum + Copy + 'static {
    fn all() -> &'static [Self] {
        Self::value_variants()
    }

    fn kebab_name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Case matters.
    fn from_kebab_name(name: &str) -> Option<Self> {
        Self::from_str(name, false).ok()
    }

    /// All names, in the order of [`KebabName::all`].
    fn kebab_names() -> Vec<String> {
        Self::all().iter().map(|value| value.kebab_name()).collect()
    }
}

impl<T: ValueEnum + Copy + 'static> KebabName for T {}
