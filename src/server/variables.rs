//! Gives a server the containers of the ps room as the storage of its variables.

use std::sync::Arc;

use pushpull_messages::graph::VariableUpdate;
use pushpull_messages::message::ContainerDescription;
use pushpull_messages::optimizer::OptimizerSpec;
use pushpull_messages::tensor::Tensor;
use pushpull_ps::{ClientVariable, ContainerError, ContainerLimits, Containers};
use pushpull_session::{Declared, VariableError, Variables};

/// The variables of a server.
pub(super) struct HeldVariables(Containers);

impl HeldVariables {
    pub fn new(limits: ContainerLimits) -> Self {
        Self(Containers::new(limits))
    }
}

const fn of(declared: Declared<'_>) -> ClientVariable<'_> {
    let Declared { container, variable, client, may_create } = declared;
    ClientVariable { container, spec: variable, client, may_create }
}

fn told(error: ContainerError) -> VariableError {
    VariableError(error.to_string())
}

impl Variables for HeldVariables {
    fn read(&self, declared: Declared<'_>) -> Result<Arc<Tensor>, VariableError> {
        self.0.read(of(declared)).map_err(told)
    }

    fn update(
        &self,
        declared: Declared<'_>,
        update: VariableUpdate,
        value: &Arc<Tensor>,
    ) -> Result<Arc<Tensor>, VariableError> {
        self.0.update(of(declared), update, value).map_err(told)
    }

    fn apply(
        &self,
        declared: Declared<'_>,
        optimizer: &OptimizerSpec,
        gradient: &[f32],
    ) -> Result<(), VariableError> {
        self.0.apply(of(declared), optimizer, gradient).map_err(told)
    }

    fn initialize(&self, declared: Declared<'_>) -> Result<(), VariableError> {
        self.0.initialize(of(declared)).map_err(told)
    }

    fn reset(&self, containers: &[String]) -> u64 {
        self.0.reset(containers)
    }

    fn describe(&self) -> Vec<ContainerDescription> {
        self.0.describe()
    }

    fn bytes(&self) -> (u64, u64) {
        self.0.bytes()
    }
}
