//! Which file of a crate names which other: `use`, inline paths, and paths in the arguments of macros and attributes.
//!
//! Reads sources as the compiler's grammar has them, not line by line. Knows nothing of what is allowed. A path is followed to the
//! file that has what it names, through what other files bring in by `use`. What stands below `#[cfg(test)]` draws no arrow: no
//! product is built of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
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
    /// What is defined here.
    items: BTreeSet<String>,
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
            name => match self.named(from, name, depth) {
                Some(at) => at,
                None => return self.definer(from, name, depth).map(|at| (at, false)),
            },
        };
        for segment in rest {
            let next = match segment.as_str() {
                "super" => self.modules[at].parent,
                "self" => Some(at),
                name => self.named(at, name, depth),
            };
            match next {
                Some(next) => at = next,
                None => return Some((self.definer(at, segment, depth).unwrap_or(at), false)),
            }
        }
        Some((at, true))
    }

    /// The module that has what a name means in a module, where that is no module itself and the crate's own.
    fn definer(&self, at: usize, name: &str, depth: usize) -> Option<usize> {
        let found = &self.modules[at].found;
        if found.items.contains(name) {
            return Some(at);
        }
        if depth == DEEPEST {
            return None;
        }
        if let Some(path) = found.names.get(name) {
            return self.follow(at, path, depth + 1).map(|(at, _)| at);
        }
        let globs = found.globs.iter().filter_map(|path| self.follow(at, path, depth + 1));
        let others = globs.filter(|(other, whole)| *whole && *other != at);
        others.into_iter().find_map(|(other, _)| self.definer(other, name, depth + 1))
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

/// Every path of more than one segment in a file's product code, and what `use` brings in.
pub fn paths(text: &str) -> Vec<String> {
    fn of(items: &[syn::Item], out: &mut Vec<String>) {
        let mut found = Found::default();
        items.iter().for_each(|item| found.visit_item(item));
        out.extend(found.paths.iter().map(|(path, _)| path.join("::")));
        for module in found.modules.iter().filter(|module| !is_for_tests(&module.attrs)) {
            of(module.content.as_ref().map_or(&[], |(_, items)| items), out);
        }
    }
    let mut out = Vec::new();
    of(&syn::parse_file(text).expect("a source").items, &mut out);
    out
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
pub fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let cfgs = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    cfgs.filter_map(|attribute| attribute.parse_args::<syn::Meta>().ok()).any(|said| is_never_but_for_tests(&said))
}

/// Whether a condition holds in tests alone.
fn is_never_but_for_tests(said: &syn::Meta) -> bool {
    let parts = |list: &syn::MetaList| {
        let parse = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
        list.parse_args_with(parse).map(|parts| parts.into_iter().collect::<Vec<_>>()).unwrap_or_default()
    };
    match said {
        syn::Meta::Path(path) => path.is_ident("test"),
        syn::Meta::List(list) if list.path.is_ident("all") => parts(list).iter().any(is_never_but_for_tests),
        syn::Meta::List(list) if list.path.is_ident("any") => {
            let parts = parts(list);
            !parts.is_empty() && parts.iter().all(is_never_but_for_tests)
        }
        _ => false,
    }
}

pub fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    use syn::Item::{
        Const, Enum, ExternCrate, Fn, ForeignMod, Impl, Macro, Mod, Static, Struct, Trait, TraitAlias, Type, Union, Use,
    };
    match item {
        Const(item) => &item.attrs,
        Enum(item) => &item.attrs,
        ExternCrate(item) => &item.attrs,
        ForeignMod(item) => &item.attrs,
        TraitAlias(item) => &item.attrs,
        Union(item) => &item.attrs,
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

/// The name that an item gives.
fn defined(item: &syn::Item) -> Option<String> {
    use syn::Item::{Const, Enum, Fn, Macro, Static, Struct, Trait, TraitAlias, Type, Union};
    let name = match item {
        Const(item) => &item.ident,
        Enum(item) => &item.ident,
        Fn(item) => &item.sig.ident,
        Macro(item) => item.ident.as_ref()?,
        Static(item) => &item.ident,
        Struct(item) => &item.ident,
        Trait(item) => &item.ident,
        TraitAlias(item) => &item.ident,
        Type(item) => &item.ident,
        Union(item) => &item.ident,
        _ => return None,
    };
    Some(plain(name))
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
        if path != [name.clone()] {
            self.names.insert(name, path.clone());
        }
        self.paths.push((path, line));
    }

    /// Paths in what only a macro understands. `before` is what stands before a group such as the one of `crate::{a, b}`.
    fn tokens(&mut self, tokens: TokenStream, before: &[String]) {
        let begun = if before.is_empty() { 0 } else { 2 };
        let mut path: Vec<String> = before.to_owned();
        let (mut colons, mut line) = (begun, 0);
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
                TokenTree::Group(group) if colons == 2 && group.delimiter() == Delimiter::Brace => {
                    let before = std::mem::take(&mut path);
                    self.tokens(group.stream(), &before);
                    colons = 0;
                }
                other => {
                    self.ended(&mut path, line);
                    colons = 0;
                    match other {
                        // The next of the same group.
                        TokenTree::Punct(punct) if punct.as_char() == ',' => {
                            path = before.to_owned();
                            colons = begun;
                        }
                        TokenTree::Group(group) => self.tokens(group.stream(), &[]),
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
            self.items.extend(defined(item));
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
        self.tokens(call.tokens.clone(), &[]);
    }

    fn visit_attribute(&mut self, attribute: &'ast syn::Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone(), &[]);
        }
    }

    /// `pub(in crate::room)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}
