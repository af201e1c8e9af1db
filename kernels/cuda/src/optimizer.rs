//! Applies optimizers to values in a device's memory. The formulas and their sources are those of
//! `pushpull_kernels::cpu`.

use pushpull_kernels::cpu::{
    AdagradStep, AdamStep, AdamWStep, FtrlStep, GradientTerms, LambStep, LionStep, MomentumStep, RmsPropStep,
};

use crate::driver::{Argument, Driver, DriverError, Grid, Launch, Place};

/// One step of an optimizer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Optimizer {
    /// Gradient descent with this learning rate.
    Sgd(f32),
    /// Gradient descent with momentum; it has one slot.
    Momentum(MomentumStep),
    /// Adam; it has two slots.
    Adam(AdamStep),
    /// AdamW; it has two slots.
    AdamW(AdamWStep),
    /// Adagrad; it has one slot.
    Adagrad(AdagradStep),
    /// RMSProp; it has one slot, or two with momentum.
    RmsProp(RmsPropStep),
    /// FTRL-proximal; it has two slots.
    Ftrl(FtrlStep),
    /// LAMB; it has two slots, and needs all elements of the variable.
    Lamb(LambStep),
    /// Lion; it has one slot.
    Lion(LionStep),
}

/// The elements that an update changes.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    /// Where the new values go. It may be the same place as `value`, except for LAMB.
    pub next: Place,
    /// The old values.
    pub value: Place,
    /// The optimizer's slots.
    pub slots: &'a [Place],
    /// The gradients.
    pub gradient: Place,
    /// The number of elements.
    pub count: u64,
}

impl Optimizer {
    /// Returns how many bytes of other memory the step needs while it is applied to `count` elements.
    pub fn scratch_bytes(self, count: u64) -> u64 {
        match self {
            // The kernel writes two numbers for each block.
            Self::Lamb(_) => 2 * 8 * u64::from(Grid::for_each(count).blocks[0]),
            _ => 0,
        }
    }

    /// Applies the step. `scratch` is memory of [`scratch_bytes`](Self::scratch_bytes) bytes.
    ///
    /// # Errors
    /// Returns the errors of [`Driver::launch`]. [`Source::optimizer`](crate::Source::optimizer) must have
    /// been loaded.
    ///
    /// # Panics
    /// If the number of slots differs from that of the optimizer, if Adam, AdamW or LAMB has the step 0, or
    /// if LAMB has no scratch memory or the same place for `next` and `value`.
    pub fn apply(
        self,
        driver: &mut dyn Driver,
        elements: Elements<'_>,
        terms: GradientTerms,
        scratch: Option<Place>,
    ) -> Result<(), DriverError> {
        use Argument::{F32, U32};
        if elements.count == 0 {
            return Ok(());
        }
        let (kernel, slots, settings): (_, _, &[Argument]) = match self {
            Self::Sgd(rate) => ("sgd", 0, &[F32(rate)]),
            Self::Momentum(MomentumStep { learning_rate, momentum, nesterov }) => {
                ("momentum", 1, &[F32(learning_rate), F32(momentum), U32(nesterov.into())])
            }
            Self::Adam(adam) => ("adam", 2, &adam_settings(adam, 0.0)),
            Self::AdamW(AdamWStep { adam, weight_decay }) => ("adam", 2, &adam_settings(adam, weight_decay)),
            Self::Adagrad(AdagradStep { learning_rate, epsilon }) => {
                ("adagrad", 1, &[F32(learning_rate), F32(epsilon)])
            }
            Self::RmsProp(RmsPropStep { learning_rate, decay, epsilon, .. }) if elements.slots.len() == 1 => {
                ("rmsprop", 1, &[F32(learning_rate), F32(decay), F32(epsilon)])
            }
            Self::RmsProp(RmsPropStep { learning_rate, decay, momentum, epsilon }) => {
                let kernel = "rmsprop_with_momentum";
                (kernel, 2, &[F32(learning_rate), F32(decay), F32(momentum), F32(epsilon)])
            }
            Self::Ftrl(FtrlStep { learning_rate, rate, l1, l2 }) => {
                ("ftrl", 2, &[F32(1.0 / learning_rate), F32(rate), F32(l1), F32(l2)])
            }
            Self::Lamb(step) => return lamb(driver, elements, terms, step, scratch.expect("LAMB's scratch")),
            Self::Lion(LionStep { learning_rate, beta1, beta2, weight_decay }) => {
                let kept = 1.0 - learning_rate * weight_decay;
                ("lion", 1, &[F32(learning_rate), F32(beta1), F32(beta2), F32(kept)])
            }
        };
        assert_eq!(elements.slots.len(), slots, "the slots of {kernel}");
        let mut arguments = elements.arguments(terms);
        arguments.extend_from_slice(settings);
        driver.launch(Launch { kernel, grid: Grid::for_each(elements.count), arguments: &arguments })
    }
}

impl Elements<'_> {
    /// Returns the first arguments of each kernel.
    fn arguments(&self, terms: GradientTerms) -> Vec<Argument> {
        let &Self { next, value, slots, gradient, count } = self;
        let places = [next, value].into_iter().chain(slots.iter().copied()).chain([gradient]);
        let numbers = [Argument::U64(count), Argument::F32(terms.scale), Argument::F32(terms.weight_decay)];
        places.map(Argument::Place).chain(numbers).collect()
    }
}

fn adam_settings(adam: AdamStep, weight_decay: f32) -> [Argument; 5] {
    let AdamStep { learning_rate, beta1, beta2, epsilon, .. } = adam;
    let kept = 1.0 - learning_rate * weight_decay;
    [adam.corrected_rate(), beta1, beta2, epsilon, kept].map(Argument::F32)
}

fn lamb(
    driver: &mut dyn Driver,
    elements: Elements<'_>,
    terms: GradientTerms,
    LambStep { adam, weight_decay }: LambStep,
    squares: Place,
) -> Result<(), DriverError> {
    use Argument::{F32, U32, U64};
    let &[first, second] = elements.slots else { panic!("LAMB has two slots") };
    assert_ne!(elements.next, elements.value, "LAMB keeps its direction in `next`");
    let grid = Grid::for_each(elements.count);
    let Elements { next, value, gradient, count, .. } = elements;
    let factors = [adam.beta1, adam.beta2].map(|beta| F32((1.0 / adam.correction(beta)) as f32));
    let places = [next, squares, value, first, second, gradient].map(Argument::Place);
    let numbers = [U64(count), F32(terms.scale), F32(terms.weight_decay)];
    let settings = [F32(adam.beta1), F32(adam.beta2), F32(adam.epsilon), factors[0], factors[1]];
    let arguments = [&places[..], &numbers, &settings, &[F32(weight_decay)]].concat();
    driver.launch(Launch { kernel: "lamb_direction", grid, arguments: &arguments })?;
    // `next` holds the direction until its norm is known.
    let places = [next, next, squares, value].map(Argument::Place);
    let numbers = [U64(count), U32(grid.blocks[0]), F32(adam.learning_rate)];
    driver.launch(Launch { kernel: "lamb_step", grid, arguments: &[&places[..], &numbers].concat() })
}

/// Updates `count` exponential moving averages with new values, as
/// [`average`](pushpull_kernels::cpu::average) does. `next` and `averages` may be the same place.
///
/// # Errors
/// Returns the errors of [`Driver::launch`]. [`Source::optimizer`](crate::Source::optimizer) must have been
/// loaded.
pub fn average(
    driver: &mut dyn Driver,
    next: Place,
    averages: Place,
    value: Place,
    count: u64,
    decay: f32,
) -> Result<(), DriverError> {
    if count == 0 {
        return Ok(());
    }
    let places = [next, averages, value].map(Argument::Place);
    let arguments = [&places[..], &[Argument::U64(count), Argument::F32(1.0 - decay)]].concat();
    driver.launch(Launch { kernel: "average", grid: Grid::for_each(count), arguments: &arguments })
}
