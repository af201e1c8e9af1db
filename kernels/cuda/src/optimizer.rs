//! Applies optimizers to values in a device's memory. The formulas and their sources are those of
//! `pushpull_kernels::cpu`.

use pushpull_kernels::cpu::{
    AdagradStep, AdamStep, AdamWStep, FtrlStep, GradientTerms, LambStep, LionStep, MomentumStep,
    OptimizerStep, RmsPropStep,
};

use crate::driver::{Argument, Driver, DriverError, Grid, Launch, Place};
use crate::operation::Span;

/// The number of bytes of an element.
const WORD: u64 = 4;

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

/// Returns how many bytes of other memory a step needs while it is applied to `count` elements.
pub fn optimizer_scratch_bytes(step: OptimizerStep, count: u64) -> u64 {
    match step {
        OptimizerStep::Lamb(_) => squares_bytes(Grid::for_each(count)),
        _ => 0,
    }
}

/// Returns the size of LAMB's sums of squares: the kernel writes two numbers for each block.
const fn squares_bytes(grid: Grid) -> u64 {
    2 * 8 * grid.blocks[0] as u64
}

impl Elements<'_> {
    /// Applies a step of an optimizer. `scratch` is memory of [`optimizer_scratch_bytes`] bytes.
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
        step: OptimizerStep,
        terms: GradientTerms,
        scratch: Option<Place>,
    ) -> Result<(), DriverError> {
        use Argument::{F32, U32};
        if self.count == 0 {
            return Ok(());
        }
        let (kernel, slots, settings): (_, _, &[Argument]) = match step {
            OptimizerStep::Sgd(rate) => ("sgd", 0, &[F32(rate)]),
            OptimizerStep::Momentum(MomentumStep { learning_rate, momentum, nesterov }) => {
                ("momentum", 1, &[F32(learning_rate), F32(momentum), U32(nesterov.into())])
            }
            OptimizerStep::Adam(adam) => ("adam", 2, &adam_settings(adam, 0.0)),
            OptimizerStep::AdamW(AdamWStep { adam, weight_decay }) => {
                ("adam", 2, &adam_settings(adam, weight_decay))
            }
            OptimizerStep::Adagrad(AdagradStep { learning_rate, epsilon }) => {
                ("adagrad", 1, &[F32(learning_rate), F32(epsilon)])
            }
            OptimizerStep::RmsProp(RmsPropStep { learning_rate, decay, epsilon, .. })
                if self.slots.len() == 1 =>
            {
                ("rmsprop", 1, &[F32(learning_rate), F32(decay), F32(epsilon)])
            }
            OptimizerStep::RmsProp(RmsPropStep { learning_rate, decay, momentum, epsilon }) => {
                let kernel = "rmsprop_with_momentum";
                (kernel, 2, &[F32(learning_rate), F32(decay), F32(momentum), F32(epsilon)])
            }
            OptimizerStep::Ftrl(FtrlStep { learning_rate, rate, l1, l2 }) => {
                ("ftrl", 2, &[F32(1.0 / learning_rate), F32(rate), F32(l1), F32(l2)])
            }
            OptimizerStep::Lamb(step) => {
                return self.lamb(driver, terms, step, scratch.expect("LAMB's scratch"));
            }
            OptimizerStep::Lion(LionStep { learning_rate, beta1, beta2, weight_decay }) => {
                let kept = 1.0 - learning_rate * weight_decay;
                ("lion", 1, &[F32(learning_rate), F32(beta1), F32(beta2), F32(kept)])
            }
        };
        assert_eq!(self.slots.len(), slots, "the slots of {kernel}");
        let Self { next, value, slots, gradient, count } = self;
        let places = [next, value].into_iter().chain(slots.iter().copied()).chain([gradient]);
        let mut arguments: Vec<Argument> = places.map(Argument::Place).collect();
        arguments.extend([Argument::U64(count), F32(terms.scale), F32(terms.weight_decay)]);
        arguments.extend_from_slice(settings);
        driver.touches(&self.spans([value, gradient], slots), &self.spans([next], slots));
        driver.launch(Launch { kernel, grid: Grid::for_each(count), arguments: &arguments })
    }

    /// Returns the memory of all elements at these places.
    fn spans<const N: usize>(&self, places: [Place; N], slots: &[Place]) -> Vec<Span> {
        places.iter().chain(slots).map(|&place| (place, WORD * self.count)).collect()
    }

    fn lamb(
        self,
        driver: &mut dyn Driver,
        terms: GradientTerms,
        LambStep { adam, weight_decay }: LambStep,
        squares: Place,
    ) -> Result<(), DriverError> {
        use Argument::{F32, U32, U64};
        let Self { next, value, slots, gradient, count } = self;
        let &[first, second] = slots else { panic!("LAMB has two slots") };
        assert_ne!(next, value, "LAMB keeps its direction in `next`");
        let grid = Grid::for_each(count);
        let sums = [(squares, squares_bytes(grid))];
        let factors = [adam.beta1, adam.beta2].map(|beta| F32((1.0 / adam.correction(beta)) as f32));
        let places = [next, squares, value, first, second, gradient].map(Argument::Place);
        let numbers = [U64(count), F32(terms.scale), F32(terms.weight_decay)];
        let settings = [F32(adam.beta1), F32(adam.beta2), F32(adam.epsilon), factors[0], factors[1]];
        let arguments = [&places[..], &numbers, &settings, &[F32(weight_decay)]].concat();
        let writes = [&self.spans([next], slots)[..], &sums].concat();
        driver.touches(&self.spans([value, gradient], slots), &writes);
        driver.launch(Launch { kernel: "lamb_direction", grid, arguments: &arguments })?;
        // `next` holds the direction until its norm is known.
        let places = [next, next, squares, value].map(Argument::Place);
        let numbers = [U64(count), U32(grid.blocks[0]), F32(adam.learning_rate)];
        let reads = [&self.spans([next, value], &[])[..], &sums].concat();
        driver.touches(&reads, &self.spans([next], &[]));
        driver.launch(Launch { kernel: "lamb_step", grid, arguments: &[&places[..], &numbers].concat() })
    }
}

fn adam_settings(adam: AdamStep, weight_decay: f32) -> [Argument; 5] {
    let AdamStep { learning_rate, beta1, beta2, epsilon, .. } = adam;
    let kept = 1.0 - learning_rate * weight_decay;
    [adam.corrected_rate(), beta1, beta2, epsilon, kept].map(Argument::F32)
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
    let bytes = WORD * count;
    driver.touches(&[(averages, bytes), (value, bytes)], &[(next, bytes)]);
    driver.launch(Launch { kernel: "average", grid: Grid::for_each(count), arguments: &arguments })
}
