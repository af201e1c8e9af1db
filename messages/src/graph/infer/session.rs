//! Shape inference for the operations of sessions. Also checks the ranges of their settings.

use super::super::element::{BinaryOp, ReductionOp, UnaryOp};
use super::super::error::GraphError;
use super::super::session_op::{Comparison, Logic, SessionOp, VariableUpdate};
use super::{Site, broadcast, reduced, scalar, shown};
use crate::id::VariableId;
use crate::tensor::{DType, Shape, TensorSpec};

impl Site<'_> {
    pub(super) fn session(&self, op: &SessionOp) -> Result<TensorSpec, GraphError> {
        match op {
            SessionOp::Constant { value } => self.given(value.spec()),
            SessionOp::Placeholder { tensor } => self.given(tensor.clone()),
            SessionOp::Cast { to } => self.cast(*to),
            SessionOp::Unary(op) => self.session_unary(*op),
            SessionOp::Binary(op) => self.session_binary(*op),
            SessionOp::Reduce { reduction, axes, keep } => self.session_reduce(*reduction, axes, *keep),
            SessionOp::Compare(comparison) => self.compare(*comparison),
            SessionOp::Logical(logic) => self.logical(*logic),
            SessionOp::Select => self.select(),
            SessionOp::ArgMax { axis } => self.arg_max(*axis),
            SessionOp::TopValues { k } => Ok(TensorSpec::new(self.input(0).dtype, self.top(*k)?)),
            SessionOp::TopIndices { k } => Ok(TensorSpec::i32(self.top(*k)?)),
            SessionOp::AddN => self.add_n(),
            SessionOp::Identity => Ok(self.input(0).clone()),
            SessionOp::Assign { variable, update } => self.assign(*variable, *update),
            SessionOp::Initialize { .. } | SessionOp::Group => Ok(done()),
            SessionOp::Gradient { variable } => self.gradient(*variable),
            SessionOp::Apply { variable, .. } => self.apply(*variable),
        }
    }

    /// Checks a tensor that does not come from other nodes.
    fn given(&self, tensor: TensorSpec) -> Result<TensorSpec, GraphError> {
        if tensor.shape.0.contains(&0) {
            return Err(self.out_of_range("shape", "all extents above 0", tensor.shape));
        }
        Ok(tensor)
    }

    /// Returns the spec of an input of a type that [`SessionOp::Unary`] and similar operations can have.
    fn numbers(&self) -> Option<&TensorSpec> {
        // The operations on f32 have gradients and kernels, so they are never operations of sessions.
        Some(self.input(0)).filter(|input| input.dtype.is_number() && input.dtype != DType::F32)
    }

    fn cast(&self, to: DType) -> Result<TensorSpec, GraphError> {
        let TensorSpec { shape, dtype } = self.input(0);
        if to == DType::Text {
            return Err(self.out_of_range("type", "numbers or bool", to));
        }
        if *dtype == DType::Text {
            return Err(self.misfit("numbers or bool"));
        }
        Ok(TensorSpec::new(to, shape.clone()))
    }

    fn session_unary(&self, op: UnaryOp) -> Result<TensorSpec, GraphError> {
        if let UnaryOp::LeakyRelu { slope } = op
            && !slope.is_finite()
        {
            return Err(self.out_of_range("slope", "a finite number", slope));
        }
        let (of_integers, of_unsigned) = match op {
            UnaryOp::Abs | UnaryOp::Square | UnaryOp::Relu => (true, true),
            UnaryOp::Neg => (true, false),
            _ => (false, false),
        };
        let expected = match (of_integers, of_unsigned) {
            (true, true) => "i32, i64, f64 or u8",
            (true, false) => "i32, i64 or f64",
            (false, _) => "f64",
        };
        let fits = |input: &&TensorSpec| match input.dtype {
            DType::U8 => of_unsigned,
            DType::I32 | DType::I64 => of_integers,
            _ => true,
        };
        self.numbers().filter(fits).cloned().ok_or_else(|| self.misfit(expected))
    }

    fn session_binary(&self, _: BinaryOp) -> Result<TensorSpec, GraphError> {
        let fits = self.numbers().and_then(|_| self.alike_broadcast(0, 1));
        let expected = "two tensors of the same type, i32, i64, f64 or u8, whose extents, compared from the last axis, are equal or 1";
        fits.ok_or_else(|| self.misfit(expected))
    }

    /// Returns the spec of two inputs of the same type, broadcast to one shape.
    fn alike_broadcast(&self, a: usize, b: usize) -> Option<TensorSpec> {
        let (a, b) = (self.input(a), self.input(b));
        let shape = broadcast(&a.shape.0, &b.shape.0).filter(|_| a.dtype == b.dtype)?;
        Some(TensorSpec::new(a.dtype, shape))
    }

    fn session_reduce(
        &self,
        reduction: ReductionOp,
        axes: &[usize],
        keep: bool,
    ) -> Result<TensorSpec, GraphError> {
        let types = if reduction == ReductionOp::Mean { "f64" } else { "i32, i64, f64 or u8" };
        let fits = |input: &&TensorSpec| reduction != ReductionOp::Mean || input.dtype == DType::F64;
        let reduce =
            |input: &TensorSpec| Some(TensorSpec::new(input.dtype, reduced(&input.shape.0, axes, keep)?));
        self.numbers().filter(fits).and_then(reduce).ok_or_else(|| {
            self.misfit(format!("a tensor of {types} with the axes {}, in ascending order", shown(axes)))
        })
    }

    fn compare(&self, comparison: Comparison) -> Result<TensorSpec, GraphError> {
        let ordered = !matches!(comparison, Comparison::Equal | Comparison::NotEqual);
        let both = self.alike_broadcast(0, 1).filter(|both| !ordered || both.dtype.is_number());
        let both = both.ok_or_else(|| {
            let types = if ordered { "of numbers, both of the same type," } else { "of the same type" };
            self.misfit(format!(
                "two tensors {types} whose extents, compared from the last axis, are equal or 1"
            ))
        })?;
        Ok(TensorSpec::new(DType::Bool, both.shape))
    }

    fn logical(&self, logic: Logic) -> Result<TensorSpec, GraphError> {
        let fits = match logic {
            Logic::Not => Some(self.input(0).clone()),
            Logic::And | Logic::Or => self.alike_broadcast(0, 1),
        };
        let fits = fits.filter(|output| output.dtype == DType::Bool);
        fits.ok_or_else(|| self.misfit("bools whose extents, compared from the last axis, are equal or 1"))
    }

    fn select(&self) -> Result<TensorSpec, GraphError> {
        let condition = Some(self.input(0)).filter(|condition| condition.dtype == DType::Bool);
        let fits = condition.zip(self.alike_broadcast(1, 2)).and_then(|(condition, both)| {
            Some(TensorSpec::new(both.dtype, broadcast(&condition.shape.0, &both.shape.0)?))
        });
        fits.ok_or_else(|| {
            self.misfit(
                "a bool and two tensors of the same type, whose extents, compared from the last axis, are equal or 1",
            )
        })
    }

    fn arg_max(&self, axis: usize) -> Result<TensorSpec, GraphError> {
        let input = Some(self.input(0)).filter(|input| input.dtype.is_number());
        let shape = input.and_then(|input| reduced(&input.shape.0, &[axis], false));
        let shape = shape.ok_or_else(|| self.misfit(format!("numbers with the axis {axis}")))?;
        Ok(TensorSpec::new(DType::I64, shape))
    }

    fn top(&self, k: usize) -> Result<Shape, GraphError> {
        if k == 0 {
            return Err(self.out_of_range("k", "at least 1", k));
        }
        let TensorSpec { shape, dtype } = self.input(0);
        match &shape.0[..] {
            [rows @ .., n] if k <= *n && dtype.is_number() => Ok(Shape([rows, &[k]].concat())),
            _ => Err(self.misfit(format!("numbers with at least {k} elements in each row"))),
        }
    }

    fn add_n(&self) -> Result<TensorSpec, GraphError> {
        let first = self.input(0);
        let alike = (1..self.inputs()).all(|position| self.input(position) == first);
        if !first.dtype.is_number() || !alike {
            return Err(self.misfit("numbers of the same type and shape"));
        }
        Ok(first.clone())
    }

    /// Returns the spec of a variable.
    fn variable(&self, variable: VariableId) -> TensorSpec {
        self.graph.variables[variable.index()].tensor()
    }

    fn assign(&self, variable: VariableId, update: VariableUpdate) -> Result<TensorSpec, GraphError> {
        let expected = self.variable(variable);
        if update != VariableUpdate::Set && !expected.dtype.is_number() {
            return Err(self.out_of_range("variable", "a variable of numbers", expected));
        }
        if *self.input(0) != expected {
            return Err(self.misfit(format!("{expected}, as the variable")));
        }
        Ok(expected)
    }

    /// Returns the spec of a variable that must be of floats, because it is differentiated by or updated.
    fn float_variable(&self, variable: VariableId) -> Result<TensorSpec, GraphError> {
        let spec = self.variable(variable);
        match spec.dtype {
            DType::F32 => Ok(spec),
            _ => Err(self.out_of_range("variable", "an f32 variable", spec)),
        }
    }

    fn gradient(&self, variable: VariableId) -> Result<TensorSpec, GraphError> {
        let output = self.float_variable(variable)?;
        if *self.input(0) != scalar() {
            return Err(self.misfit("a loss that is an f32 scalar"));
        }
        Ok(output)
    }

    fn apply(&self, variable: VariableId) -> Result<TensorSpec, GraphError> {
        let expected = self.float_variable(variable)?;
        if *self.input(0) != expected {
            return Err(self.misfit(format!("a gradient {expected}, as the variable")));
        }
        Ok(done())
    }
}

/// Returns the spec of the truth value that operations without another result return.
fn done() -> TensorSpec {
    TensorSpec::new(DType::Bool, Shape::scalar())
}
