//! Reads the sources of the library and checks that a program with the library as its only dependency can name every
//! type of another crate of the workspace in the library's public API.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use quote::ToTokens;
use syn::{
    Fields, File, ImplItem, Item, ReturnType, Signature, TraitItem, UseTree, Visibility,
    visit::{self, Visit},
};

use crate::{
    docs::repository,
    sources::{product_file, sources, tokens},
};

/// The folder of the library.
const LIBRARY: &str = "worker/engine";

/// The crates whose types it may mention, and their folders.
const CRATES: [(&str, &str); 4] = [
    ("garenne_amqp", "common/amqp"),
    ("garenne_common", "common"),
    ("garenne_pool", "common/pool"),
    ("garenne_protocol", "common/protocol"),
];

/// A type, by the crate that defines it.
type Type = (String, String);

/// What the sources of a crate define and mention.
#[derive(Default)]
struct Api {
    /// The types that the public fields, variants, methods and functions of each item mention. A type stands for what its
    /// inherent methods mention too.
    mentions: BTreeMap<String, BTreeSet<Type>>,
    /// The same without methods.
    fields: BTreeMap<String, BTreeSet<Type>>,
    /// The public items of each module.
    items: BTreeMap<Vec<String>, BTreeSet<String>>,
    /// The public modules of each module.
    modules: BTreeMap<Vec<String>, BTreeSet<String>>,
    /// The paths that each module re-exports.
    reexports: BTreeMap<Vec<String>, BTreeSet<Vec<String>>>,
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_hidden(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|it| it.to_token_stream().to_string().replace(' ', "") == "#[doc(hidden)]")
}

/// The paths of an import, each with the name that it has here.
fn imported(tree: &UseTree, prefix: &[String], found: &mut Vec<(String, Vec<String>)>) {
    let with = |name: String| [prefix, &[name]].concat();
    match tree {
        UseTree::Path(path) => imported(&path.tree, &with(path.ident.to_string()), found),
        UseTree::Name(name) if name.ident == "self" => {
            found.push((prefix.last().unwrap().clone(), prefix.to_vec()));
        }
        UseTree::Name(name) => found.push((name.ident.to_string(), with(name.ident.to_string()))),
        UseTree::Rename(rename) => found.push((rename.rename.to_string(), with(rename.ident.to_string()))),
        UseTree::Group(group) => group.items.iter().for_each(|tree| imported(tree, prefix, found)),
        UseTree::Glob(_) => found.push(("*".to_owned(), with("*".to_owned()))),
    }
}

/// Collects the types that signatures and fields mention.
struct Mentions<'a> {
    package: &'a str,
    imports: &'a BTreeMap<String, Vec<String>>,
    found: BTreeSet<Type>,
}

impl Visit<'_> for Mentions<'_> {
    fn visit_path(&mut self, path: &syn::Path) {
        let mut segments: Vec<_> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if let Some(whole) = self.imports.get(&segments[0]) {
            segments.splice(..1, whole.clone());
        }
        let name = segments.last().unwrap().clone();
        let is_type = name.starts_with(char::is_uppercase);
        if CRATES.iter().any(|(package, _)| segments[0] == *package) && is_type {
            self.found.insert((segments[0].clone(), name));
        } else if is_type {
            // Of this crate, or of one outside of the workspace, which has no mentions.
            self.found.insert((self.package.to_owned(), name));
        }
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, _: &syn::Attribute) {}
    fn visit_block(&mut self, _: &syn::Block) {}
    fn visit_expr(&mut self, _: &syn::Expr) {}
}

impl Api {
    fn of(package: &str, folder: &str) -> Self {
        let mut api = Self::default();
        for source in sources(folder) {
            let file = product_file(&fs::read_to_string(repository().join(&source.path)).unwrap());
            let is_root = source.module == ["lib"];
            let module = if is_root { Vec::new() } else { source.module.clone() };
            api.read(package, &module, &file);
        }
        api
    }

    fn read(&mut self, package: &str, module: &[String], file: &File) {
        let mut imports = Vec::new();
        for item in &file.items {
            if let Item::Use(item) = item {
                imported(&item.tree, &[], &mut imports);
            }
        }
        let imports: BTreeMap<_, _> = imports.into_iter().collect();
        for item in &file.items {
            self.read_item(package, module, &imports, item);
        }
    }

    fn read_item(
        &mut self,
        package: &str,
        module: &[String],
        imports: &BTreeMap<String, Vec<String>>,
        item: &Item,
    ) {
        let mentions = |visit: &mut dyn FnMut(&mut Mentions<'_>)| {
            let mut mentions = Mentions { package, imports, found: BTreeSet::new() };
            visit(&mut mentions);
            mentions.found
        };
        let signature = |signature: &Signature| {
            mentions(&mut |it| {
                it.visit_generics(&signature.generics);
                signature.inputs.iter().for_each(|input| it.visit_fn_arg(input));
                if let ReturnType::Type(_, output) = &signature.output {
                    it.visit_type(output);
                }
            })
        };
        let fields = |fields: &Fields, all: bool| {
            let public = fields.iter().filter(|field| all || is_public(&field.vis));
            mentions(&mut |it| public.clone().for_each(|field| it.visit_type(&field.ty)))
        };
        let (name, data, rest) = match item {
            Item::Struct(it) if is_public(&it.vis) => (
                it.ident.to_string(),
                fields(&it.fields, false),
                mentions(&mut |m| m.visit_generics(&it.generics)),
            ),
            Item::Enum(it) if is_public(&it.vis) => {
                let data = it.variants.iter().flat_map(|variant| fields(&variant.fields, true)).collect();
                (it.ident.to_string(), data, BTreeSet::new())
            }
            Item::Type(it) if is_public(&it.vis) => {
                (it.ident.to_string(), mentions(&mut |m| m.visit_type(&it.ty)), BTreeSet::new())
            }
            Item::Fn(it) if is_public(&it.vis) => {
                (it.sig.ident.to_string(), BTreeSet::new(), signature(&it.sig))
            }
            Item::Const(it) if is_public(&it.vis) => {
                (it.ident.to_string(), mentions(&mut |m| m.visit_type(&it.ty)), BTreeSet::new())
            }
            Item::Trait(it) if is_public(&it.vis) => {
                let methods = it.items.iter().flat_map(|item| match item {
                    TraitItem::Fn(method) => signature(&method.sig),
                    TraitItem::Const(constant) => mentions(&mut |m| m.visit_type(&constant.ty)),
                    _ => BTreeSet::new(),
                });
                let bounds =
                    mentions(&mut |m| it.supertraits.iter().for_each(|it| m.visit_type_param_bound(it)));
                (it.ident.to_string(), BTreeSet::new(), methods.chain(bounds).collect())
            }
            Item::Impl(it) if !is_hidden(&it.attrs) => {
                let syn::Type::Path(path) = &*it.self_ty else { return };
                let name = path.path.segments.last().unwrap().ident.to_string();
                let items = it.items.iter().flat_map(|item| match item {
                    ImplItem::Fn(method) if is_public(&method.vis) => signature(&method.sig),
                    ImplItem::Type(associated) => mentions(&mut |m| m.visit_type(&associated.ty)),
                    _ => BTreeSet::new(),
                });
                let generics = mentions(&mut |m| {
                    it.trait_.iter().for_each(|(_, path, _)| m.visit_path(path));
                });
                let rest: BTreeSet<_> = items.chain(generics).collect();
                self.mentions.entry(name).or_default().extend(rest);
                return;
            }
            Item::Mod(it) if is_public(&it.vis) && !is_hidden(&it.attrs) => {
                self.modules.entry(module.to_vec()).or_default().insert(it.ident.to_string());
                return;
            }
            Item::Use(it) if is_public(&it.vis) => {
                let mut found = Vec::new();
                imported(&it.tree, &[], &mut found);
                let paths = found.into_iter().map(|(_, path)| path);
                self.reexports.entry(module.to_vec()).or_default().extend(paths);
                return;
            }
            _ => return,
        };
        self.items.entry(module.to_vec()).or_default().insert(name.clone());
        self.fields.entry(name.clone()).or_default().extend(data.clone());
        self.mentions.entry(name).or_default().extend(data.into_iter().chain(rest));
    }

    /// The names that a user can reach: in public modules, and re-exported there. With the crate that defines each.
    fn reachable(&self, package: &str) -> BTreeSet<Type> {
        let (mut found, mut open) = (BTreeSet::new(), vec![Vec::new()]);
        while let Some(module) = open.pop() {
            let items = self.items.get(&module).into_iter().flatten();
            found.extend(items.map(|name| (package.to_owned(), name.clone())));
            for path in self.reexports.get(&module).into_iter().flatten() {
                let is_foreign = CRATES.iter().any(|(other, _)| path[0] == *other);
                let package = if is_foreign { &path[0] } else { package };
                found.insert((package.to_owned(), path.last().unwrap().clone()));
            }
            for name in self.modules.get(&module).into_iter().flatten() {
                open.push([&*module, std::slice::from_ref(name)].concat());
            }
        }
        found
    }
}

#[test]
fn the_library_re_exports_every_type_that_its_public_api_mentions() {
    let library = Api::of("garenne", LIBRARY);
    let others: BTreeMap<_, _> = CRATES.iter().map(|(name, folder)| (*name, Api::of(name, folder))).collect();
    let reachable = library.reachable("garenne");
    let is_known = |(package, name): &Type| others[&**package].mentions.contains_key(name);
    let mut missing = BTreeMap::new();
    for (package, name) in &reachable {
        let mentioned = match others.get(&**package) {
            None => library.mentions.get(name),
            Some(other) => other.fields.get(name),
        };
        for mention in mentioned.into_iter().flatten() {
            if mention.0 != "garenne" && is_known(mention) && !reachable.contains(mention) {
                missing.entry(mention.clone()).or_insert_with(Vec::new).push(name.clone());
            }
        }
    }
    assert_eq!(missing, BTreeMap::new(), "public items mention types that garenne does not re-export");
}

/// The crate that uses the library as its only dependency.
const ONE_DEPENDENCY: &str = "tests/one-dependency/lib.rs";

#[test]
fn a_program_with_one_dependency_uses_every_public_item() {
    let used: BTreeSet<_> = tokens(&fs::read_to_string(repository().join(ONE_DEPENDENCY)).unwrap())
        .into_iter()
        .map(|it| it.text)
        .collect();
    let reachable = Api::of("garenne", LIBRARY).reachable("garenne");
    // Its name here is an alias.
    let is_renamed = |(package, name): &&Type| package == "garenne_pool" && name == "ConfigError";
    let unused: Vec<_> = reachable.iter().filter(|it| !is_renamed(it) && !used.contains(&it.1)).collect();
    assert_eq!(unused, Vec::<&Type>::new(), "{ONE_DEPENDENCY} does not use them");
}
