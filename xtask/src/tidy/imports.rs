//! Which file of a crate names which other: `use`, inline paths, and paths in the arguments of macros and attributes.
//!
//! Reads sources as the compiler's grammar has them, not line by line. Knows nothing of what is allowed. A path is followed as far
//! as it names modules; what it names in the last of them (a function, a type, something re-exported) is not looked at. What stands
//! below `#[cfg(test)]` draws no arrow: no product is built of it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// How many names in a row may stand for another name before following them ends: `use` can name itself.
const DEEPEST: usize = 8;

/// One target of a crate: what a root file and its modules import from each other.
#[derive(Default)]
pub struct Target {
    /// Every file of the target, with the module that it is: no segment for the root.
    pub files: BTreeMap<PathBuf, Vec<String>>,
    /// From which file to which other, with the first place that says so.
    pub arrows: BTreeMap<(PathBuf, PathBuf), String>,
    modules: Vec<Module>,
}

/// A module, inline ones included.
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    tests: bool,
    found: Found,
}

/// What a module's text says.
#[derive(Default)]
struct Found {
    /// Every path of more than one segment, and its line.
    paths: Vec<(Vec<String>, usize)>,
    /// Names that `use` brings in, and what each stands for.
    names: BTreeMap<String, Vec<String>>,
    /// What is brought in with all its names.
    globs: Vec<Vec<String>>,
    modules: Vec<syn::ItemMod>,
    /// Macros that the crate's root exports, wherever they stand.
    macros: Vec<String>,
}

impl Target {
    /// Reads a root file and every module that hangs on it.
    pub fn read(root: &Path) -> Target {
        let mut target = Target::default();
        let folder = root.parent().unwrap_or(Path::new("")).to_owned();
        target.file(root, &folder, None, Vec::new(), false);
        target.draw();
        target
    }

    fn file(&mut self, file: &Path, folder: &Path, parent: Option<usize>, path: Vec<String>, tests: bool) -> usize {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.files.insert(file.to_owned(), path.clone());
        self.module(file, folder, parent, path, tests, &parsed.items)
    }

    fn module(
        &mut self,
        file: &Path,
        folder: &Path,
        parent: Option<usize>,
        path: Vec<String>,
        tests: bool,
        items: &[syn::Item],
    ) -> usize {
        let mut found = Found::default();
        items.iter().for_each(|item| found.visit_item(item));
        let below = std::mem::take(&mut found.modules);
        let at = self.modules.len();
        self.modules.push(Module { file: file.to_owned(), parent, children: BTreeMap::new(), tests, found });
        for item in below {
            let name = plain(&item.ident);
            let tests = tests || is_for_tests(&item.attrs);
            let path: Vec<String> = path.iter().cloned().chain([name.clone()]).collect();
            let child = match &item.content {
                Some((_, items)) => self.module(file, &folder.join(&name), Some(at), path, tests, items),
                None => {
                    let (file, folder) = place(&item, file, folder, &name);
                    self.file(&file, &folder, Some(at), path, tests)
                }
            };
            self.modules[at].children.insert(name, child);
        }
        at
    }

    fn draw(&mut self) {
        let mut arrows = BTreeMap::new();
        for (at, module) in self.modules.iter().enumerate().filter(|(_, module)| !module.tests) {
            for (path, line) in &module.found.paths {
                let Some((to, _)) = self.follow(at, path, 0) else { continue };
                let to = &self.modules[to];
                if to.file != module.file && !to.tests {
                    let place = format!("{}:{line}: {}", module.file.display(), path.join("::"));
                    arrows.entry((module.file.clone(), to.file.clone())).or_insert(place);
                }
            }
        }
        self.arrows = arrows;
    }

    /// The last module that a path names, and whether nothing of the path is left.
    fn follow(&self, from: usize, path: &[String], depth: usize) -> Option<(usize, bool)> {
        let (first, rest) = path.split_first()?;
        if let ("crate", [name]) = (first.as_str(), rest) {
            let exports = |module: &Module| module.found.macros.contains(name);
            if let Some(at) = self.modules.iter().position(exports) {
                return Some((at, false));
            }
        }
        let mut at = match first.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => self.modules[from].parent?,
            name => self.named(from, name, depth)?,
        };
        for (index, segment) in rest.iter().enumerate() {
            let next = match segment.as_str() {
                "super" => self.modules[at].parent,
                "self" => Some(at),
                name => self.named(at, name, depth),
            };
            match next {
                Some(next) => at = next,
                None => return Some((at, index == rest.len())),
            }
        }
        Some((at, true))
    }

    /// The module that a name means in a module, if it means one.
    fn named(&self, at: usize, name: &str, depth: usize) -> Option<usize> {
        let module = &self.modules[at];
        if let Some(child) = module.children.get(name) {
            return Some(*child);
        }
        if depth == DEEPEST {
            return None;
        }
        let whole = |found: Option<(usize, bool)>| found.filter(|(_, whole)| *whole).map(|(at, _)| at);
        if let Some(path) = module.found.names.get(name) {
            return whole(self.follow(at, path, depth + 1));
        }
        let globs = module.found.globs.iter().filter_map(|path| whole(self.follow(at, path, depth + 1)));
        globs.filter(|other| *other != at).find_map(|other| self.named(other, name, depth + 1))
    }
}

/// A module's file, and the folder in which its own children lie.
fn place(item: &syn::ItemMod, file: &Path, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let said =
        item.attrs.iter().filter(|attribute| attribute.path().is_ident("path")).find_map(|attribute| match &attribute
            .meta
            .require_name_value()
            .ok()?
            .value
        {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        });
    if let Some(said) = said {
        let file = without_dots(&file.parent().unwrap_or(Path::new("")).join(said));
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        return (file, folder);
    }
    let folder = folder.join(name);
    let own = folder.join("mod.rs");
    (if own.is_file() { own } else { folder.with_extension("rs") }, folder)
}

fn without_dots(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(out.pop()),
            part => out.push(part),
        }
    }
    out
}

fn plain(ident: &impl ToString) -> String {
    ident.to_string().trim_start_matches("r#").to_owned()
}

/// Whether an item is built for tests only.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let is = |attribute: &syn::Attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let said = list.tokens.to_string();
            said == "test" || (said.starts_with("all") && said.contains("test") && !said.contains("not"))
        }
        _ => false,
    };
    attributes.iter().any(is)
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item::{Const, Enum, Fn, Impl, Macro, Mod, Static, Struct, Trait, Type, Use};
    match item {
        Const(item) => &item.attrs,
        Enum(item) => &item.attrs,
        Fn(item) => &item.attrs,
        Impl(item) => &item.attrs,
        Macro(item) => &item.attrs,
        Mod(item) => &item.attrs,
        Static(item) => &item.attrs,
        Struct(item) => &item.attrs,
        Trait(item) => &item.attrs,
        Type(item) => &item.attrs,
        Use(item) => &item.attrs,
        _ => &[],
    }
}

impl Found {
    /// Takes a `use` apart. What each branch names is a path of its own.
    fn tree(&mut self, tree: &syn::UseTree, before: &[String], line: usize) {
        let with = |name: &syn::Ident| before.iter().cloned().chain([plain(name)]).collect::<Vec<_>>();
        match tree {
            syn::UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident), line),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, before, line)),
            syn::UseTree::Glob(_) => {
                self.globs.push(before.to_owned());
                self.paths.push((before.to_owned(), line));
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                let called = before.last().cloned().unwrap_or_default();
                self.brings(called, before.to_owned(), line);
            }
            syn::UseTree::Name(name) => self.brings(plain(&name.ident), with(&name.ident), line),
            syn::UseTree::Rename(rename) => self.brings(plain(&rename.rename), with(&rename.ident), line),
        }
    }

    fn brings(&mut self, name: String, path: Vec<String>, line: usize) {
        // `use name;` would stand for itself.
        if path.len() > 1 {
            self.names.insert(name, path.clone());
        }
        self.paths.push((path, line));
    }

    /// Paths in what only a macro understands.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let (mut colons, mut line) = (0, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.ended(&mut path, line);
                    }
                    line = ident.span().start().line;
                    path.push(plain(&ident));
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.ended(&mut path, line);
                    colons = 0;
                    match other {
                        TokenTree::Group(group) => self.tokens(group.stream()),
                        // serde takes paths as text.
                        TokenTree::Literal(literal) => {
                            let line = literal.span().start().line;
                            let text = literal.to_string();
                            let text = text.trim_matches('"');
                            let said: Vec<String> = text.split("::").map(str::to_owned).collect();
                            let is_name = |part: &String| part.chars().all(|c| c.is_alphanumeric() || c == '_');
                            if ["crate", "super", "self"].contains(&said[0].as_str()) && said.iter().all(is_name) {
                                self.paths.push((said, line));
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        self.ended(&mut path, line);
    }

    fn ended(&mut self, path: &mut Vec<String>, line: usize) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.paths.push((path, line));
        }
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if let syn::Item::Mod(module) = item {
            self.modules.push(module.clone());
        } else if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        if let Some(name) = item.ident.as_ref().filter(|_| item.attrs.iter().any(|a| a.path().is_ident("macro_export")))
        {
            self.macros.push(plain(name));
        }
        visit::visit_item_macro(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.tree(&item.tree, &[], item.span().start().line);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let segments = path.segments.iter().map(|segment| plain(&segment.ident)).collect();
            self.paths.push((segments, path.span().start().line));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }

    /// `pub(in crate::room)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}
