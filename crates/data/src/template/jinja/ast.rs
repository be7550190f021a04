//! A parsed template: statements and expressions, with the places of their variables.

use std::sync::Arc;

/// Where a variable lies: so many scopes up, at this place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) up: u32,
    pub(super) index: u32,
}

/// What a variable of a scope is when the scope is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Set by whoever enters: parameters and loop targets.
    Parameter,
    /// Looked up by its name among the variables of the template.
    Context,
    /// What the variable of an outer scope is at that time; the slot is counted from this scope.
    Outer(Slot),
    /// Not there until it is set.
    Missing,
}

/// The variables of a scope.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    pub(super) names: Vec<(Arc<str>, Load)>,
}

#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) name: Arc<str>,
    pub(super) slot: Slot,
}

#[derive(Clone, Debug)]
pub(super) enum Constant {
    None,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(Arc<str>),
}

#[derive(Clone, Debug)]
pub(super) struct Expr {
    pub(super) line: u32,
    /// Levels of expressions, this one included.
    pub(super) depth: usize,
    pub(super) kind: ExprKind,
}

#[derive(Clone, Debug)]
pub(super) enum ExprKind {
    Constant(Constant),
    Name(Name),
    Attribute { of: Box<Expr>, name: Arc<str>, path: Arc<str> },
    Item { of: Box<Expr>, index: Box<Expr>, path: Arc<str> },
    Slice { of: Box<Expr>, bounds: [Option<Box<Expr>>; 3] },
    Call { callee: Box<Expr>, arguments: Arguments },
    Filter { name: Arc<str>, of: Option<Box<Expr>>, arguments: Arguments },
    Test { name: Arc<str>, of: Box<Expr>, arguments: Arguments },
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Conditional { test: Box<Expr>, then: Box<Expr>, otherwise: Option<Box<Expr>> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

impl Operator {
    pub(super) const fn symbol(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Sub => "-",
            Self::Mul => "*",
            Self::Div => "/",
            Self::FloorDiv => "//",
            Self::Mod => "%",
            Self::Pow => "**",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Arc<str>, Expr)>,
    /// `*list`.
    pub(super) list: Option<Box<Expr>>,
    /// `**dict`.
    pub(super) dict: Option<Box<Expr>>,
}

#[derive(Clone, Debug)]
pub(super) enum Target {
    Name {
        name: Name,
        /// Whether macros and loops find it among the variables of the template.
        exported: bool,
    },
    /// `ns.attribute`.
    Attribute {
        of: Name,
        attribute: Arc<str>,
    },
    Tuple(Vec<Target>),
}

#[derive(Clone, Debug)]
pub(super) struct Stmt {
    pub(super) line: u32,
    pub(super) kind: StmtKind,
}

#[derive(Clone, Debug)]
pub(super) enum StmtKind {
    Text(Arc<str>),
    Print(Expr),
    If {
        branches: Vec<(Expr, Vec<Stmt>)>,
        otherwise: Vec<Stmt>,
    },
    For(Arc<For>),
    Set {
        target: Target,
        value: Expr,
    },
    SetBlock {
        target: Target,
        filter: Option<Expr>,
        body: Vec<Stmt>,
        frame: Frame,
    },
    With {
        targets: Vec<(Target, Expr)>,
        body: Vec<Stmt>,
        frame: Frame,
    },
    Macro {
        target: Target,
        macro_: Arc<Macro>,
    },
    CallBlock {
        call: Expr,
        macro_: Arc<Macro>,
    },
    FilterBlock {
        filter: Expr,
        body: Vec<Stmt>,
        frame: Frame,
    },
    /// `{% generation %}`: what the assistant said.
    Generation {
        body: Vec<Stmt>,
        frame: Frame,
    },
    Block {
        body: Vec<Stmt>,
        frame: Frame,
    },
    Scope {
        body: Vec<Stmt>,
        frame: Frame,
    },
    Break,
    Continue,
    /// A tag that needs other templates, of which there are none.
    Unsupported(&'static str),
}

#[derive(Clone, Debug)]
pub(crate) struct For {
    pub(super) target: Target,
    pub(super) items: Expr,
    pub(super) test: Option<Expr>,
    pub(super) test_frame: Frame,
    pub(super) recursive: bool,
    pub(super) body: Vec<Stmt>,
    pub(super) frame: Frame,
    pub(super) otherwise: Vec<Stmt>,
    pub(super) otherwise_frame: Frame,
}

#[derive(Clone, Debug)]
pub(super) struct Macro {
    /// None of a call block.
    pub(super) name: Option<Arc<str>>,
    pub(super) parameters: Vec<Name>,
    /// Of the last parameters.
    pub(super) defaults: Vec<Expr>,
    pub(super) caller: bool,
    pub(super) kwargs: bool,
    pub(super) varargs: bool,
    pub(super) body: Vec<Stmt>,
    pub(super) frame: Frame,
}

/// A template.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(super) body: Vec<Stmt>,
    pub(super) frame: Frame,
    /// Whether there are `{% generation %}` blocks.
    pub(crate) marked: bool,
    /// Whether one of them stands in a macro, a set block or the like, where its text may be changed.
    pub(crate) marked_inside: bool,
}

impl Arguments {
    fn depth(&self) -> usize {
        let inside = self.positional.iter().chain(self.named.iter().map(|(_, a)| a));
        let inside = inside.chain(self.list.as_deref()).chain(self.dict.as_deref());
        inside.map(|a| a.depth).max().unwrap_or(0)
    }
}

impl Expr {
    pub(super) fn new(line: u32, kind: ExprKind) -> Self {
        let deepest = |items: &[Self]| items.iter().map(|e| e.depth).max().unwrap_or(0);
        let inside = match &kind {
            ExprKind::Constant(_) | ExprKind::Name(_) => 0,
            ExprKind::Attribute { of, .. }
            | ExprKind::Not(of)
            | ExprKind::Negative(of)
            | ExprKind::Positive(of) => of.depth,
            ExprKind::Item { of, index, .. } => of.depth.max(index.depth),
            ExprKind::Slice { of, bounds } => {
                bounds.iter().flatten().map(|b| b.depth).max().unwrap_or(0).max(of.depth)
            }
            ExprKind::Call { callee, arguments } => callee.depth.max(arguments.depth()),
            ExprKind::Filter { of, arguments, .. } => {
                of.as_ref().map_or(0, |of| of.depth).max(arguments.depth())
            }
            ExprKind::Test { of, arguments, .. } => of.depth.max(arguments.depth()),
            ExprKind::List(items) | ExprKind::Tuple(items) | ExprKind::Concat(items) => deepest(items),
            ExprKind::Dict(items) => items.iter().map(|(k, v)| k.depth.max(v.depth)).max().unwrap_or(0),
            ExprKind::Binary(_, left, right) | ExprKind::And(left, right) | ExprKind::Or(left, right) => {
                left.depth.max(right.depth)
            }
            ExprKind::Compare(first, rest) => {
                rest.iter().map(|(_, value)| value.depth).max().unwrap_or(0).max(first.depth)
            }
            ExprKind::Conditional { test, then, otherwise } => {
                test.depth.max(then.depth).max(otherwise.as_ref().map_or(0, |o| o.depth))
            }
        };
        Self { line, depth: inside + 1, kind }
    }

    /// How a message names what this expression reads.
    pub(super) fn path(&self) -> Option<String> {
        match &self.kind {
            ExprKind::Name(name) => Some(name.name.to_string()),
            ExprKind::Attribute { path, .. } | ExprKind::Item { path, .. } => Some(path.to_string()),
            ExprKind::Constant(Constant::Text(text)) => Some(format!("'{text}'")),
            ExprKind::Constant(Constant::Integer(n)) => Some(n.to_string()),
            ExprKind::Negative(of) => of.path().map(|path| format!("-{path}")),
            _ => None,
        }
    }
}
