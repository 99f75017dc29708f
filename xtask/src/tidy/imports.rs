//! Finds which file of a crate names which other, by `use` and by paths in its tokens. `use` is followed to the defining file. Code below
//! `#[cfg(test)]` does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens;
use syn::spanned::Spanned;

/// The longest chain of renamed imports that is followed: a `use` can name itself.
const MAX_DEPTH: usize = 8;

/// One target of a crate: what a root file and its modules import from each other.
#[derive(Default)]
pub struct Target {
    /// Every file of the target, with the module that it is: no segment for the root.
    pub files: BTreeMap<PathBuf, Vec<String>>,
    /// Importing file and imported file, with the first such place.
    pub edges: BTreeMap<(PathBuf, PathBuf), String>,
    /// What each file names: modules of the crate, from `crate` on, and paths of other crates.
    pub named: BTreeMap<PathBuf, BTreeSet<Vec<String>>>,
    modules: Vec<Module>,
}

struct Module {
    file: PathBuf,
    /// Where files of its children lie.
    folder: PathBuf,
    path: Vec<String>,
    parent: Option<usize>,
    tests: bool,
    children: BTreeMap<String, usize>,
    found: Found,
}

/// The names and paths in one module.
#[derive(Default)]
struct Found {
    /// Every path of more than one segment, and its line.
    paths: Vec<(Vec<String>, usize)>,
    /// Names that `use` imports, each with its path.
    names: BTreeMap<String, Vec<String>>,
    /// Paths of glob imports.
    globs: Vec<Vec<String>>,
    modules: Vec<syn::ItemMod>,
    items: BTreeSet<String>,
    /// Macros with `#[macro_export]`.
    macros: Vec<String>,
}

impl Target {
    /// Reads a root file and all its modules.
    pub fn read(root: &Path) -> Target {
        let mut target = Target::default();
        let (file, folder) = (root.to_owned(), root.with_file_name(""));
        let (path, children, found) = Default::default();
        target.module(Module { file, folder, path, parent: None, tests: false, children, found }, None);
        target.find_edges();
        target
    }

    /// Adds a module and its children. Without `items` the module has a file of its own.
    fn module(&mut self, mut module: Module, items: Option<&[syn::Item]>) -> usize {
        let own = items.is_none().then(|| {
            self.files.insert(module.file.clone(), module.path.clone());
            let text = fs::read_to_string(&module.file).unwrap();
            syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", module.file.display())).items
        });
        items.or(own.as_deref()).into_iter().flatten().for_each(|item| module.found.item(item));
        let below = std::mem::take(&mut module.found.modules);
        let (at, file, folder) = (self.modules.len(), module.file.clone(), module.folder.clone());
        let (above, in_tests) = (module.path.clone(), module.tests);
        self.modules.push(module);
        for item in below {
            let name = plain_name(&item.ident);
            let items = item.content.as_ref().map(|(_, items)| items.as_slice());
            let (file, folder) = match items {
                Some(_) => (file.clone(), folder.join(&name)),
                None => place(&item, &file, &folder, &name),
            };
            let path = above.iter().cloned().chain([name.clone()]).collect();
            let tests = in_tests || is_for_tests(&item.attrs);
            let (children, found) = Default::default();
            let child = self.module(Module { file, folder, path, parent: Some(at), tests, children, found }, items);
            self.modules[at].children.insert(name, child);
        }
        at
    }

    fn find_edges(&mut self) {
        let (mut edges, mut named) = (BTreeMap::new(), BTreeMap::<_, BTreeSet<_>>::new());
        for (at, module) in self.modules.iter().enumerate().filter(|(_, module)| !module.tests) {
            for (path, line) in &module.found.paths {
                let to = self.follow(at, path, 0).map(|(to, _)| &self.modules[to]);
                let whole = |to: &Module| [&["crate".to_owned()], to.path.as_slice()].concat();
                named.entry(module.file.clone()).or_default().insert(to.map_or_else(|| path.clone(), whole));
                let Some(to) = to else { continue };
                if to.file != module.file && !to.tests {
                    let place = format!("{}:{line}: {}", module.file.display(), path.join("::"));
                    edges.entry((module.file.clone(), to.file.clone())).or_insert(place);
                }
            }
        }
        (self.edges, self.named) = (edges, named);
    }

    /// The last module that a path names, and whether that is the whole path.
    fn follow(&self, from: usize, path: &[String], depth: usize) -> Option<(usize, bool)> {
        let (first, rest) = path.split_first()?;
        if let ("crate", [name]) = (first.as_str(), rest)
            && let Some(at) = self.modules.iter().position(|module| module.found.macros.contains(name))
        {
            return Some((at, false));
        }
        let (mut at, mut whole) = match first.as_str() {
            "crate" => (0, true),
            "self" => (from, true),
            "super" => (self.modules[from].parent?, true),
            name => self.resolve(from, name, depth)?,
        };
        for segment in rest {
            (at, whole) = match segment.as_str() {
                _ if !whole => break,
                "super" => (self.modules[at].parent?, true),
                "self" => (at, true),
                name => self.resolve(at, name, depth).unwrap_or((at, false)),
            };
        }
        Some((at, whole))
    }

    /// Resolves a name in a module: to the module of that name (true), or to the one that defines the item (false).
    fn resolve(&self, at: usize, name: &str, depth: usize) -> Option<(usize, bool)> {
        let Module { children, found, .. } = &self.modules[at];
        if let Some(child) = children.get(name) {
            return Some((*child, true));
        }
        if found.items.contains(name) {
            return Some((at, false));
        }
        if depth == MAX_DEPTH {
            return None;
        }
        if let Some(path) = found.names.get(name) {
            return self.follow(at, path, depth + 1);
        }
        let globs = found.globs.iter().filter_map(|path| self.follow(at, path, depth + 1));
        let others = globs.filter(|(other, whole)| *whole && *other != at);
        others.into_iter().find_map(|(other, _)| self.resolve(other, name, depth + 1))
    }
}

/// A module's file, and the folder in which its own children lie.
fn place(item: &syn::ItemMod, file: &Path, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    for attribute in item.attrs.iter().filter(|attribute| attribute.path().is_ident("path")) {
        if let syn::Meta::NameValue(syn::MetaNameValue { value: syn::Expr::Lit(value), .. }) = &attribute.meta {
            let path = value.to_token_stream().to_string();
            let file =
                file.with_file_name("").join(path.trim_matches('"')).canonicalize().expect("the file of a module");
            let folder = file.with_file_name("");
            return (file, folder);
        }
    }
    let folder = folder.join(name);
    let own = folder.join("mod.rs");
    (if own.is_file() { own } else { folder.with_extension("rs") }, folder)
}

fn plain_name(ident: &impl ToString) -> String {
    ident.to_string().trim_start_matches("r#").to_owned()
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    let cfgs = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    cfgs.filter_map(|attribute| attribute.parse_args::<syn::Meta>().ok()).any(|meta| holds_only_in_tests(&meta))
}

/// Whether a condition holds in tests alone.
fn holds_only_in_tests(meta: &syn::Meta) -> bool {
    let syn::Meta::List(list) = meta else { return meta.path().is_ident("test") };
    let parse = syn::punctuated::Punctuated::<syn::Meta, syn::Token![,]>::parse_terminated;
    let parts = list.parse_args_with(parse).unwrap_or_default();
    match list.path.get_ident().map(ToString::to_string).as_deref() {
        Some("all") => parts.iter().any(holds_only_in_tests),
        Some("any") => !parts.is_empty() && parts.iter().all(holds_only_in_tests),
        _ => false,
    }
}

/// An item's attributes and its name, if it has one.
fn head(item: &syn::Item) -> (Vec<syn::Attribute>, Option<String>) {
    const BEFORE: &str = "async const enum extern fn macro_rules mut pub static struct trait type union unsafe";
    let split = |input: syn::parse::ParseStream| Ok((input.call(syn::Attribute::parse_outer)?, input.parse()?));
    let (attributes, rest): (_, TokenStream) =
        syn::parse::Parser::parse2(split, item.to_token_stream()).expect("an item");
    let words = rest.into_iter().filter_map(|token| match token {
        TokenTree::Ident(ident) => Some(plain_name(&ident)),
        _ => None,
    });
    let mut words = words.skip_while(|word| BEFORE.split(' ').any(|before| before == word));
    let nameless = matches!(item, syn::Item::Impl(_) | syn::Item::Use(_) | syn::Item::ForeignMod(_));
    (attributes, words.next().filter(|_| !nameless))
}

impl Found {
    fn item(&mut self, item: &syn::Item) {
        if let syn::Item::Mod(module) = item {
            return self.modules.push(module.clone());
        }
        let (attributes, name) = head(item);
        if is_for_tests(&attributes) {
            return;
        }
        if attributes.iter().any(|attribute| attribute.path().is_ident("macro_export")) {
            self.macros.extend(name.clone());
        }
        self.items.extend(name);
        match item {
            syn::Item::Use(item) => self.tree(&item.tree, &[], item.span().start().line),
            syn::Item::Impl(block) => {
                let mut block = block.clone();
                block.items.retain(|item| !matches!(item, syn::ImplItem::Fn(one) if is_for_tests(&one.attrs)));
                self.tokens(block.to_token_stream(), &[]);
            }
            item => self.tokens(item.to_token_stream(), &[]),
        }
    }

    /// Adds the path of each branch of a `use`.
    fn tree(&mut self, tree: &syn::UseTree, before: &[String], line: usize) {
        let with = |name: &syn::Ident| before.iter().cloned().chain([plain_name(name)]).collect::<Vec<_>>();
        match tree {
            syn::UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident), line),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, before, line)),
            syn::UseTree::Glob(_) => {
                self.globs.push(before.to_owned());
                self.paths.push((before.to_owned(), line));
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                let called = before.last().cloned().unwrap_or_default();
                self.add_import(called, before.to_owned(), line);
            }
            syn::UseTree::Name(name) => self.add_import(plain_name(&name.ident), with(&name.ident), line),
            syn::UseTree::Rename(rename) => self.add_import(plain_name(&rename.rename), with(&rename.ident), line),
        }
    }

    fn add_import(&mut self, name: String, path: Vec<String>, line: usize) {
        // `use name;` would stand for itself.
        if path != [name.clone()] {
            self.names.insert(name, path.clone());
        }
        self.paths.push((path, line));
    }

    /// Adds the paths in a token stream. `before` is the prefix of a group, as in `crate::{a, b}`.
    fn tokens(&mut self, tokens: TokenStream, before: &[String]) {
        let begun = if before.is_empty() { 0 } else { 2 };
        let mut path: Vec<String> = before.to_owned();
        let (mut colons, mut line) = (begun, 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.add_path(&mut path, line);
                    }
                    line = ident.span().start().line;
                    path.push(plain_name(&ident));
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) if colons == 2 && group.delimiter() == Delimiter::Brace => {
                    let before = std::mem::take(&mut path);
                    self.tokens(group.stream(), &before);
                    colons = 0;
                }
                other => {
                    self.add_path(&mut path, line);
                    // The next of the same group.
                    let is_next = matches!(&other, TokenTree::Punct(punct) if punct.as_char() == ',');
                    (path, colons) = if is_next { (before.to_owned(), begun) } else { (Vec::new(), 0) };
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream(), &[]);
                    }
                }
            }
        }
        self.add_path(&mut path, line);
    }

    fn add_path(&mut self, path: &mut Vec<String>, line: usize) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.paths.push((path, line));
        }
    }
}
