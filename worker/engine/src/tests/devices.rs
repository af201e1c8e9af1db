//! Tests that several devices can share a batch: however the batch is divided, the gradients and the
//! weighted losses of the parts add up to those of the whole batch.
//!
//! Tolerance for gradients: 10⁻⁴ of the largest gradient (but at least 10⁻⁵), since the parts are summed in
//! another order.

use proptest::prelude::*;
use pushpull_messages::graph::GraphBuilder;
use pushpull_messages::input::Column;
use pushpull_messages::variable::InitializerSpec;

use super::gradients::any_choices;
use super::random_graph::RandomGraph;
use super::trial::{Bounds, Trained, Trial};

/// Cuts a batch at `cuts` into consecutive ranges of examples.
fn parts(examples: usize, cuts: &[prop::sample::Index]) -> Vec<std::ops::Range<usize>> {
    let mut bounds: Vec<usize> = cuts.iter().map(|cut| cut.index(examples + 1)).collect();
    bounds.extend([0, examples]);
    bounds.sort_unstable();
    bounds.dedup();
    bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

fn check(trial: &Trial, parts: &[std::ops::Range<usize>]) -> Result<(), TestCaseError> {
    let whole = trial.train();
    let examples = trial.batch.examples as f64;
    let mut loss = 0.0;
    let mut sums: Vec<Vec<f64>> = whole.gradients.iter().map(|gradient| vec![0.0; gradient.len()]).collect();
    for part in parts {
        let Trained { loss: own, gradients, .. } = trial.train_part(part.clone());
        loss += f64::from(own) * part.len() as f64 / examples;
        for (sum, gradient) in sums.iter_mut().zip(gradients) {
            sum.iter_mut().zip(gradient).for_each(|(sum, own)| *sum += f64::from(own));
        }
    }
    let wanted = f64::from(whole.loss);
    prop_assert!((loss - wanted).abs() <= 1e-4 * (1.0 + wanted.abs()), "loss {loss}, of the whole {wanted}");
    let largest = whole.gradients.iter().flatten().fold(0.1f32, |most, x| most.max(x.abs()));
    for (id, (sum, whole)) in sums.iter().zip(&whole.gradients).enumerate() {
        for (sum, &whole) in sum.iter().zip(whole) {
            let error = (sum - f64::from(whole)).abs();
            prop_assert!(error <= 1e-4 * f64::from(largest), "variable {id}: {sum}, of the whole {whole}");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 400, ..ProptestConfig::with_cases(1000) })]

    #[test]
    fn parts_of_a_batch_add_up_to_the_whole(
        choices in any_choices(1..12),
        end: [u8; 6],
        examples in 2usize..7,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 1..4),
        seed: u64,
    ) {
        let (graph, bounds) = RandomGraph::new(examples, true).draw(&choices, end);
        let trial = Trial::smooth(&graph, &bounds, examples, seed);
        prop_assume!(trial.is_some());
        check(&trial.unwrap(), &parts(examples, &cuts))?;
    }
}

/// Checks that an example gets the same dropout mask on a device, which has only a part of the batch, as in
/// the whole batch. The gradients of the parts must then add up to the gradient of the whole batch.
#[test]
fn a_device_drops_what_the_whole_batch_would() {
    const EXAMPLES: usize = 9;
    let mut g = GraphBuilder::new("dropout");
    let x = g.input("x", [5]);
    let scale = g.variable("scale", [1], InitializerSpec::Zeros);
    let scaled = g.mul(x, scale);
    let dropped = g.dropout(scaled, 0.5);
    let loss = g.reduce(pushpull_messages::graph::ReductionOp::Mean, dropped, &[0, 1], false);
    let graph = g.finish(loss, &[]).unwrap();
    let mut trial = Trial::new(&graph, &Bounds::new(), EXAMPLES, 1.0, 11);
    // Each element contributes a different power of two, so the sum shows which elements were kept.
    trial.variables[0] = vec![1.0];
    let bits: Vec<f32> =
        (0..EXAMPLES * 5).map(|i| if i % 3 == 0 { 2f32.powi(i as i32 / 3) } else { 0.0 }).collect();
    trial.batch.columns[0] = Column::F32(bits);
    let whole = trial.train();
    let sum: f32 = [0..2, 2..3, 3..9].into_iter().map(|part| trial.train_part(part).gradients[0][0]).sum();
    assert!((sum - whole.gradients[0][0]).abs() <= 1e-5 * whole.gradients[0][0].abs());
    trial.random += 1;
    assert_ne!(trial.train().gradients, whole.gradients, "every step draws others");
}

/// Checks that the devices' updates of the moving mean and the moving variance add up to the update that the
/// whole batch makes.
#[test]
fn moving_statistics_take_one_step_for_all_devices_together() {
    let mut g = GraphBuilder::new("norm");
    let x = g.input("x", [2]);
    let gamma = g.variable("gamma", [2], InitializerSpec::Zeros);
    let beta = g.variable("beta", [2], InitializerSpec::Zeros);
    let mean = g.untrained("mean", [2], InitializerSpec::Zeros);
    let variance = g.untrained("variance", [2], InitializerSpec::Zeros);
    let y = g.batch_norm(x, [gamma, beta], [mean, variance], 1e-3, 0.9);
    let loss = g.l2_loss(y);
    let graph = g.finish(loss, &[]).unwrap();
    let mut trial = Trial::new(&graph, &Bounds::new(), 6, 1.0, 5);
    // All examples are equal: the mean of each part is the mean of the whole batch, and the variance is 0.
    trial.batch.columns[0] = Column::F32([0.5, -0.25].repeat(6));
    let parts: Vec<Trained> = [0..1, 1..3, 3..6].map(|part| trial.train_part(part)).into();
    for channel in 0..2 {
        let example = [0.5, -0.25][channel];
        for (variable, batch) in [(2, example), (3, 0.0)] {
            let sum: f64 = parts.iter().map(|part| f64::from(part.gradients[variable][channel])).sum();
            let wanted = 0.1 * (trial.variables[variable][channel] - batch);
            assert!((sum - wanted).abs() < 1e-6, "{sum} {wanted}");
        }
    }
}
