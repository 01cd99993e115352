//! Compiles a template with a check after every instruction that makes a value.
//!
//! Templates come with model files, from strangers. `minijinja` counts fuel: instructions, and the bytes that they
//! make. That bounds neither the depth of values (comparing, printing, hashing and dropping them recurse), nor what a
//! small value stands for (a list of a list twice, of that twice, ..., printed; `[x] * 100000000`), nor cycles (a
//! namespace that holds itself). With the checks all values that a template ever holds are small as trees, and so is
//! the work of any instruction on them. This takes the unstable interface of `minijinja`, so its version is pinned.

use minijinja::machinery::ast::{BinOpKind, Call, CallArg, Expr, Stmt};
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, parse};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

use super::limits::{ASSIGNED, MADE};

/// The instructions of a template. It recurses as deep as the source nests.
pub(super) fn compile<'a>(name: &'a str, source: &'a str) -> Result<Instructions<'a>, Error> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    let root = parse(source, name, syntax)?;
    check_statements(std::slice::from_ref(&root))?;
    let mut generator = CodeGenerator::new(name, source);
    generator.compile_stmt(&root);
    Ok(checked(&generator.finish().0))
}

/// No slot in the cache of filters.
const UNCACHED: u8 = u8::MAX;

fn checked<'a>(old: &Instructions<'a>) -> Instructions<'a> {
    let all = || (0..).map_while(|i| old.get(i));
    // Where each instruction goes; what jumps to an assignment jumps to its check.
    let mut places: Vec<u32> = Vec::new();
    let mut len = 0;
    for instruction in all() {
        places.push(len);
        len += (before(instruction).len() + 1 + usize::from(after(instruction).is_some())) as u32;
    }
    places.push(len);
    let place = |target: u32| places.get(target as usize).copied().unwrap_or(len);
    let mut new = Instructions::new(old.name(), old.source());
    for (i, instruction) in (0..).zip(all()) {
        let mut moved = instruction.clone();
        match &mut moved {
            Instruction::Iterate(target)
            | Instruction::Jump(target)
            | Instruction::JumpIfFalse(target)
            | Instruction::JumpIfFalseOrPop(target)
            | Instruction::JumpIfTrueOrPop(target)
            | Instruction::BuildMacro(_, target, _) => *target = place(*target),
            _ => (),
        }
        let line = old.get_line(i).unwrap_or(0) as u16;
        for instruction in before(instruction).into_iter().chain([moved]).chain(after(instruction)) {
            new.add_with_line(instruction, line);
        }
    }
    new
}

/// The check of what is assigned to an attribute of a namespace.
fn before(instruction: &Instruction<'_>) -> Vec<Instruction<'static>> {
    use Instruction as I;
    match instruction {
        // On the stack is the value, above it the namespace. They are checked as a pair and put back.
        I::SetAttr(_) => {
            vec![
                I::Swap,
                I::BuildTuple(Some(2)),
                I::ApplyFilter(ASSIGNED, Some(1), UNCACHED),
                I::UnpackList(2),
            ]
        }
        _ => Vec::new(),
    }
}

/// The check of what an instruction leaves on the stack.
fn after(instruction: &Instruction<'_>) -> Option<Instruction<'static>> {
    use Instruction as I;
    let check = match instruction {
        // These make values.
        I::Slice
        | I::BuildMap(_)
        | I::BuildList(_)
        | I::BuildTuple(_)
        | I::Add
        | I::Mul
        | I::StringConcat => true,
        I::ApplyFilter(..) | I::CallFunction(..) | I::CallMethod(..) | I::CallObject(_) | I::EndCapture => {
            true
        }
        // These may take some time: the check looks at the clock.
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::CompareAndPreserve(_) => true,
        I::PerformTest(..) | I::GetItem => true,
        // Named arguments only go into calls, constants are as large as they stand in the source.
        I::BuildKwargs(_) | I::MergeKwargs(_) | I::LoadConst(_) => false,
        I::EmitRaw(_) | I::StoreLocal(_) | I::Lookup(_) | I::GetAttr(_) | I::SetAttr(_) | I::Emit => false,
        I::UnpackList(_) | I::UnpackLists(_) | I::DupTop | I::DiscardTop | I::Swap => false,
        I::Sub | I::Div | I::IntDiv | I::Rem | I::Pow | I::Neg | I::Not | I::IsUndefined => false,
        I::PushLoop(_)
        | I::PushWith
        | I::Iterate(_)
        | I::PushDidNotIterate
        | I::PopFrame
        | I::PopLoopFrame => false,
        I::Jump(_) | I::JumpIfFalse(_) | I::JumpIfFalseOrPop(_) | I::JumpIfTrueOrPop(_) => false,
        I::PushAutoEscape | I::PopAutoEscape | I::BeginCapture(_) | I::FastRecurse => false,
        I::BuildMacro(..) | I::Return | I::Enclose(_) | I::GetClosure => false,
    };
    check.then_some(I::ApplyFilter(MADE, Some(1), UNCACHED))
}

/// How deep expressions nest, a chain of operators as deep as it is long. The compiler looks for constants below every
/// node of it.
const MAX_DEPTH: usize = 200;

/// The compiler computes with constants, of which `"" ~ [1] * 100000000` is one: lists may only be multiplied so often.
const MAX_FACTOR: i64 = 16;

/// Refuses expressions that would make the compiler work long.
fn check_statements(statements: &[Stmt<'_>]) -> Result<(), Error> {
    for statement in statements {
        match statement {
            Stmt::Template(s) => check_statements(&s.children)?,
            Stmt::EmitExpr(s) => check(0, &s.expr)?,
            Stmt::ForLoop(s) => {
                check_all(0, [&s.iter].into_iter().chain(&s.filter_expr))?;
                check_statements(&s.body)?;
                check_statements(&s.else_body)?;
            }
            Stmt::IfCond(s) => {
                check(0, &s.expr)?;
                check_statements(&s.true_body)?;
                check_statements(&s.false_body)?;
            }
            Stmt::WithBlock(s) => {
                check_all(0, s.assignments.iter().map(|(_, value)| value))?;
                check_statements(&s.body)?;
            }
            Stmt::Set(s) => check(0, &s.expr)?,
            Stmt::SetBlock(s) => {
                check_all(0, &s.filter)?;
                check_statements(&s.body)?;
            }
            Stmt::AutoEscape(s) => {
                check(0, &s.enabled)?;
                check_statements(&s.body)?;
            }
            Stmt::FilterBlock(s) => {
                check(0, &s.filter)?;
                check_statements(&s.body)?;
            }
            Stmt::Macro(s) => {
                check_all(0, &s.defaults)?;
                check_statements(&s.body)?;
            }
            Stmt::CallBlock(s) => {
                check_call(0, &s.call)?;
                check_all(0, &s.macro_decl.defaults)?;
                check_statements(&s.macro_decl.body)?;
            }
            Stmt::Do(s) => check_call(0, &s.call)?,
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => (),
        }
    }
    Ok(())
}

fn check_all<'a, 's: 'a>(
    depth: usize,
    expressions: impl IntoIterator<Item = &'a Expr<'s>>,
) -> Result<(), Error> {
    expressions.into_iter().try_for_each(|expression| check(depth, expression))
}

fn check_arguments(depth: usize, arguments: &[CallArg<'_>]) -> Result<(), Error> {
    check_all(
        depth,
        arguments.iter().map(|argument| match argument {
            CallArg::Pos(e) | CallArg::Kwarg(_, e) | CallArg::PosSplat(e) | CallArg::KwargSplat(e) => e,
        }),
    )
}

fn check_call(depth: usize, call: &Call<'_>) -> Result<(), Error> {
    // `minijinja` divides by the number of values of `loop.cycle`.
    let is_cycle = matches!(&call.expr, Expr::GetAttr(method) if method.name == "cycle");
    if is_cycle && !matches!(call.args.first(), Some(CallArg::Pos(_))) {
        return Err(Error::new(ErrorKind::SyntaxError, "cycle takes values"));
    }
    check(depth, &call.expr)?;
    check_arguments(depth, &call.args)
}

fn check(depth: usize, expression: &Expr<'_>) -> Result<(), Error> {
    let refused = |what| {
        let message = format!("line {}: {what}", expression.span().start_line);
        Err(Error::new(ErrorKind::SyntaxError, message))
    };
    if depth > MAX_DEPTH {
        return refused("an expression nests too deep");
    }
    let depth = depth + 1;
    match expression {
        Expr::Var(_) | Expr::Const(_) => Ok(()),
        Expr::Slice(e) => {
            check_all(depth, [&e.expr].into_iter().chain(&e.start).chain(&e.stop).chain(&e.step))
        }
        Expr::UnaryOp(e) => check(depth, &e.expr),
        Expr::BinOp(e) => {
            if matches!(e.op, BinOpKind::Mul) && !is_small_product(&e.left, &e.right) {
                return refused("a list is multiplied too often");
            }
            check_all(depth, [&e.left, &e.right])
        }
        Expr::Compare(e) => check_all(depth, [&e.expr].into_iter().chain(e.ops.iter().map(|op| &op.expr))),
        Expr::IfExpr(e) => check_all(depth, [&e.test_expr, &e.true_expr].into_iter().chain(&e.false_expr)),
        Expr::Filter(e) => {
            check_all(depth, &e.expr)?;
            check_arguments(depth, &e.args)
        }
        Expr::Test(e) => {
            check(depth, &e.expr)?;
            check_arguments(depth, &e.args)
        }
        Expr::GetAttr(e) => check(depth, &e.expr),
        Expr::GetItem(e) => check_all(depth, [&e.expr, &e.subscript_expr]),
        Expr::Call(e) => check_call(depth, e),
        Expr::List(e) => check_all(depth, &e.items),
        Expr::Tuple(e) => check_all(depth, &e.items),
        Expr::Map(e) => check_all(depth, e.keys.iter().chain(&e.values)),
    }
}

/// Whether no factor is a list that the compiler knows, or one is and the other a small number.
fn is_small_product(left: &Expr<'_>, right: &Expr<'_>) -> bool {
    match (is_list(left), is_list(right), left, right) {
        (false, false, ..) => true,
        (true, false, Expr::List(_), Expr::Const(n)) | (false, true, Expr::Const(n), Expr::List(_)) => {
            i64::try_from(n.value.clone()).is_ok_and(|n| n <= MAX_FACTOR)
        }
        _ => false,
    }
}

/// Whether the compiler may make a list of it.
fn is_list(expression: &Expr<'_>) -> bool {
    use BinOpKind::{Add, Mul, ScAnd, ScOr};
    match expression {
        Expr::List(_) => true,
        Expr::BinOp(e) => matches!(e.op, Add | Mul | ScAnd | ScOr) && (is_list(&e.left) || is_list(&e.right)),
        _ => false,
    }
}
