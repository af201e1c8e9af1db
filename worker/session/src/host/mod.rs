//! The operations that run on the host: those on tensors of any type. Each is a function of its inputs. This
//! module must not depend on variables, parts or connections.

mod arithmetic;
mod cast;
mod choose;
mod compare;
mod indices;
mod number;
mod reduce;
#[cfg(test)]
mod tests;

use pushpull_messages::graph::SessionOp;
use pushpull_messages::tensor::Tensor;

pub(crate) use number::HostFault;

/// Returns the largest number of bytes that an operation's texts can take; 0 if it makes no texts.
pub(crate) fn text_bytes(op: &SessionOp, inputs: &[&Tensor]) -> u64 {
    match op {
        SessionOp::Select => choose::text_bytes(inputs[0], inputs[1], inputs[2]),
        SessionOp::Constant { value } => value.texts().map_or(0, |_| value.bytes_len() as u64),
        _ => 0,
    }
}

/// Computes an operation. The inputs have the number, types and shapes that inference demands.
///
/// # Errors
/// If integers are divided by 0.
///
/// # Panics
/// If the operation changes variables, or is fed.
pub(crate) fn compute(op: &SessionOp, inputs: &[&Tensor]) -> Result<Tensor, HostFault> {
    Ok(match op {
        SessionOp::Constant { value } => value.clone(),
        SessionOp::Cast { to } => cast::cast(inputs[0], *to),
        SessionOp::Unary(op) => arithmetic::unary(*op, inputs[0]),
        SessionOp::Binary(op) => arithmetic::binary(*op, inputs[0], inputs[1])?,
        SessionOp::Reduce { reduction, axes, keep } => reduce::reduce(*reduction, inputs[0], axes, *keep),
        SessionOp::Compare(comparison) => compare::compare(*comparison, inputs[0], inputs[1]),
        SessionOp::Logical(logic) => compare::logical(*logic, inputs),
        SessionOp::Select => choose::select(inputs[0], inputs[1], inputs[2]),
        SessionOp::ArgMax { axis } => choose::arg_max(inputs[0], *axis),
        SessionOp::TopValues { k } => choose::top_values(inputs[0], *k),
        SessionOp::TopIndices { k } => choose::top_indices(inputs[0], *k),
        SessionOp::AddN => arithmetic::add_n(inputs),
        other => unreachable!("{} is no function of its inputs", other.name()),
    })
}
