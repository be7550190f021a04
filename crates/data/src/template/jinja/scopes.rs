//! The variables that names mean, by jinja2's rules: found before a template runs, scope by scope.
//!
//! A scope is a loop turn, a macro, a `with`, a block whose text is captured, or the template itself; `if` is none.
//! A name that a scope assigns anywhere is that scope's from its beginning: as the outer scope has it, or missing.
//! A name that nobody assigns is looked up among the template's variables when the scope that reads it begins.

use std::collections::HashMap;
use std::sync::Arc;

use super::ast::{
    Arguments, Expr, ExprKind, For, Frame, Load, Macro, Name, Program, Slot, Stmt, StmtKind, Target,
};
use super::fault::{Fault, Outcome};

#[derive(Default)]
struct Scope {
    names: Vec<(Arc<str>, Load)>,
    index: HashMap<Arc<str>, u32>,
    /// Open `if` blocks while names are collected.
    branches: usize,
}

impl Scope {
    fn define(&mut self, name: &Arc<str>, load: Load) {
        let index = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        match self.index.get(name) {
            Some(&at) => self.names[at as usize].1 = load,
            None => {
                self.names.push((name.clone(), load));
                self.index.insert(name.clone(), index);
            }
        }
    }
}

struct Resolver {
    scopes: Vec<Scope>,
    /// The outermost scope that names reach: a `block` starts anew.
    floor: usize,
}

/// Finds the variables of a whole template.
pub(super) fn resolve(program: &mut Program) -> Outcome<()> {
    let mut resolver = Resolver { scopes: Vec::new(), floor: 0 };
    let body = &mut program.body;
    program.frame = resolver.scope(|r| {
        r.collect(body);
        r.place(body)
    })?;
    Ok(())
}

impl Resolver {
    fn scope(&mut self, inside: impl FnOnce(&mut Self) -> Outcome<()>) -> Outcome<Frame> {
        self.scopes.push(Scope::default());
        let out = inside(self);
        let scope = self.scopes.pop().unwrap_or_default();
        out?;
        Ok(Frame { names: scope.names })
    }

    fn find(&self, name: &str, from: usize) -> Option<Slot> {
        let scopes = self.scopes.get(self.floor..from)?;
        scopes.iter().rev().enumerate().find_map(|(up, scope)| {
            let index = *scope.index.get(name)?;
            Some(Slot { up: u32::try_from(up).unwrap_or(u32::MAX), index })
        })
    }

    fn top(&mut self) -> &mut Scope {
        self.scopes.last_mut().expect("invariant: names are collected inside a scope")
    }

    fn parameter(&mut self, name: &Arc<str>) {
        self.top().define(name, Load::Parameter);
    }

    fn load(&mut self, name: &Arc<str>) {
        if self.find(name, self.scopes.len()).is_none() {
            self.top().define(name, Load::Context);
        }
    }

    fn store(&mut self, name: &Arc<str>) {
        let depth = self.scopes.len();
        if self.top().index.contains_key(name) {
            return;
        }
        let load = match self.find(name, depth - 1) {
            // Counted from the scope that has it now, which is one further in.
            Some(slot) => Load::Outer(Slot { up: slot.up + 1, index: slot.index }),
            None if self.top().branches > 0 => Load::Context,
            None => Load::Missing,
        };
        self.top().define(name, load);
    }

    fn parameters(&mut self, target: &Target) {
        match target {
            Target::Name { name, .. } => self.parameter(&name.name),
            Target::Attribute { of, .. } => self.load(&of.name),
            Target::Tuple(targets) => targets.iter().for_each(|t| self.parameters(t)),
        }
    }

    fn stores(&mut self, target: &Target) {
        match target {
            Target::Name { name, .. } => self.store(&name.name),
            Target::Attribute { of, .. } => self.load(&of.name),
            Target::Tuple(targets) => targets.iter().for_each(|t| self.stores(t)),
        }
    }

    fn loads(&mut self, expr: &mut Expr) {
        names(expr, &mut |name| {
            self.load(&name.name);
            Ok(())
        })
        .unwrap_or(());
    }

    /// Gives the names of statements to the current scope, without those of scopes inside.
    fn collect(&mut self, body: &mut [Stmt]) {
        for statement in body {
            match &mut statement.kind {
                StmtKind::Text(_) | StmtKind::Break | StmtKind::Continue | StmtKind::Unsupported(_) => {}
                StmtKind::Print(value) => self.loads(value),
                StmtKind::If { branches, otherwise } => {
                    for (at, (test, body)) in branches.iter_mut().enumerate() {
                        self.top().branches += usize::from(at > 0);
                        self.loads(test);
                        self.top().branches -= usize::from(at > 0);
                        self.top().branches += 1;
                        self.collect(body);
                        self.top().branches -= 1;
                    }
                    self.top().branches += 1;
                    self.collect(otherwise);
                    self.top().branches -= 1;
                }
                StmtKind::For(for_) => {
                    if let Some(for_) = Arc::get_mut(for_) {
                        self.loads(&mut for_.items);
                    }
                }
                StmtKind::Set { target, value } => {
                    self.loads(value);
                    self.stores(target);
                }
                StmtKind::SetBlock { target, .. } | StmtKind::Macro { target, .. } => self.stores(target),
                StmtKind::With { targets, .. } => {
                    for (_, value) in targets {
                        self.loads(value);
                    }
                }
                StmtKind::CallBlock { call, .. } => self.loads(call),
                StmtKind::FilterBlock { filter, .. } => self.loads(filter),
                StmtKind::Generation { .. } | StmtKind::Block { .. } | StmtKind::Scope { .. } => {}
            }
        }
    }

    fn slot(&self, name: &mut Name) -> Outcome<()> {
        name.slot = self
            .find(&name.name, self.scopes.len())
            .ok_or_else(|| Fault::syntax(format!("'{}' has no scope", name.name), 0))?;
        Ok(())
    }

    fn place_target(&self, target: &mut Target) -> Outcome<()> {
        match target {
            Target::Name { name, exported } => {
                *exported = self.scopes.len() == 1;
                self.slot(name)
            }
            Target::Attribute { of, .. } => self.slot(of),
            Target::Tuple(targets) => targets.iter_mut().try_for_each(|t| self.place_target(t)),
        }
    }

    fn place_names(&self, expr: &mut Expr) -> Outcome<()> {
        names(expr, &mut |name| self.slot(name))
    }

    /// A scope that only has a body.
    fn plain(&mut self, body: &mut [Stmt], frame: &mut Frame) -> Outcome<()> {
        *frame = self.scope(|r| {
            r.collect(body);
            r.place(body)
        })?;
        Ok(())
    }

    /// Says of each name in statements where it lies, and goes into the scopes inside.
    fn place(&mut self, body: &mut [Stmt]) -> Outcome<()> {
        for statement in body {
            match &mut statement.kind {
                StmtKind::Text(_) | StmtKind::Break | StmtKind::Continue | StmtKind::Unsupported(_) => {}
                StmtKind::Print(value) => self.place_names(value)?,
                StmtKind::If { branches, otherwise } => {
                    for (test, body) in branches {
                        self.place_names(test)?;
                        self.place(body)?;
                    }
                    self.place(otherwise)?;
                }
                StmtKind::For(for_) => {
                    let for_ = Arc::get_mut(for_).expect("invariant: a parsed loop has one owner");
                    self.place_loop(for_)?;
                }
                StmtKind::Set { target, value } => {
                    self.place_names(value)?;
                    self.place_target(target)?;
                }
                StmtKind::SetBlock { target, filter, body, frame } => {
                    self.place_target(target)?;
                    *frame = self.scope(|r| {
                        r.collect(body);
                        if let Some(filter) = filter {
                            r.loads(filter);
                            r.place_names(filter)?;
                        }
                        r.place(body)
                    })?;
                }
                StmtKind::With { targets, body, frame } => {
                    for (_, value) in targets.iter_mut() {
                        self.place_names(value)?;
                    }
                    *frame = self.scope(|r| {
                        targets.iter().for_each(|(target, _)| r.parameters(target));
                        r.collect(body);
                        targets.iter_mut().try_for_each(|(target, _)| r.place_target(target))?;
                        r.place(body)
                    })?;
                }
                StmtKind::Macro { target, macro_ } => {
                    self.place_target(target)?;
                    self.place_macro(macro_)?;
                }
                StmtKind::CallBlock { call, macro_ } => {
                    self.place_names(call)?;
                    self.place_macro(macro_)?;
                }
                StmtKind::FilterBlock { filter, body, frame } => {
                    *frame = self.scope(|r| {
                        r.collect(body);
                        r.loads(filter);
                        r.place_names(filter)?;
                        r.place(body)
                    })?;
                }
                StmtKind::Generation { body, frame } | StmtKind::Scope { body, frame } => {
                    self.plain(body, frame)?;
                }
                StmtKind::Block { body, frame } => {
                    let floor = std::mem::replace(&mut self.floor, self.scopes.len());
                    let out = self.plain(body, frame);
                    self.floor = floor;
                    out?;
                }
            }
        }
        Ok(())
    }

    fn place_loop(&mut self, for_: &mut For) -> Outcome<()> {
        self.place_names(&mut for_.items)?;
        let loop_ = Arc::from("loop");
        let For { target, test, test_frame, body, frame, otherwise, otherwise_frame, .. } = for_;
        // Targets come first, so that their places are the same in both scopes.
        if let Some(test) = test {
            *test_frame = self.scope(|r| {
                r.parameters(target);
                r.loads(test);
                r.place_names(test)
            })?;
        }
        *frame = self.scope(|r| {
            r.parameters(target);
            r.parameter(&loop_);
            r.collect(body);
            r.place_target(target)?;
            r.place(body)
        })?;
        self.plain(otherwise, otherwise_frame)
    }

    fn place_macro(&mut self, macro_: &mut Arc<Macro>) -> Outcome<()> {
        let macro_ = Arc::get_mut(macro_).expect("invariant: a parsed macro has one owner");
        let Macro { parameters, defaults, caller, kwargs, varargs, body, frame, .. } = macro_;
        *frame = self.scope(|r| {
            parameters.iter().for_each(|p| r.parameter(&p.name));
            for (used, name) in [(*caller, "caller"), (*kwargs, "kwargs"), (*varargs, "varargs")] {
                if used {
                    r.parameter(&Arc::from(name));
                }
            }
            for default in defaults.iter_mut() {
                r.loads(default);
            }
            r.collect(body);
            parameters.iter_mut().try_for_each(|p| r.slot(p))?;
            defaults.iter_mut().try_for_each(|d| r.place_names(d))?;
            r.place(body)
        })?;
        Ok(())
    }
}

/// Visits each name that an expression reads.
fn names(expr: &mut Expr, visit: &mut impl FnMut(&mut Name) -> Outcome<()>) -> Outcome<()> {
    match &mut expr.kind {
        ExprKind::Constant(_) => Ok(()),
        ExprKind::Name(name) => visit(name),
        ExprKind::Attribute { of, .. }
        | ExprKind::Not(of)
        | ExprKind::Negative(of)
        | ExprKind::Positive(of) => names(of, visit),
        ExprKind::Item { of, index, .. } => {
            names(of, visit)?;
            names(index, visit)
        }
        ExprKind::Slice { of, bounds } => {
            names(of, visit)?;
            bounds.iter_mut().flatten().try_for_each(|b| names(b, visit))
        }
        ExprKind::Call { callee, arguments } => {
            names(callee, visit)?;
            argument_names(arguments, visit)
        }
        ExprKind::Filter { of, arguments, .. } => {
            if let Some(of) = of {
                names(of, visit)?;
            }
            argument_names(arguments, visit)
        }
        ExprKind::Test { of, arguments, .. } => {
            names(of, visit)?;
            argument_names(arguments, visit)
        }
        ExprKind::List(items) | ExprKind::Tuple(items) | ExprKind::Concat(items) => {
            items.iter_mut().try_for_each(|item| names(item, visit))
        }
        ExprKind::Dict(items) => items.iter_mut().try_for_each(|(key, value)| {
            names(key, visit)?;
            names(value, visit)
        }),
        ExprKind::Binary(_, left, right) | ExprKind::And(left, right) | ExprKind::Or(left, right) => {
            names(left, visit)?;
            names(right, visit)
        }
        ExprKind::Compare(first, rest) => {
            names(first, visit)?;
            rest.iter_mut().try_for_each(|(_, value)| names(value, visit))
        }
        ExprKind::Conditional { test, then, otherwise } => {
            names(test, visit)?;
            names(then, visit)?;
            otherwise.as_mut().map_or(Ok(()), |o| names(o, visit))
        }
    }
}

fn argument_names(
    arguments: &mut Arguments,
    visit: &mut impl FnMut(&mut Name) -> Outcome<()>,
) -> Outcome<()> {
    arguments.positional.iter_mut().try_for_each(|a| names(a, visit))?;
    arguments.named.iter_mut().try_for_each(|(_, a)| names(a, visit))?;
    arguments.list.iter_mut().chain(&mut arguments.dict).try_for_each(|a| names(a, visit))
}
