//! The defaults of an example's flags. They change what `--help` shows and how flags are read. This module
//! must not depend on models.

use clap::Command;
use clap::builder::ArgPredicate;

use super::optimizers::Optimizer;

/// The defaults of an example's flags: the length of the training, the batch size, the optimizer and its
/// weight decay. `--help` shows them.
///
/// ```
/// use pushpull::Defaults;
///
/// let defaults = Defaults::steps(2000).batch_size(32).adam(0.002);
/// ```
///
/// To make a default depend on another flag of the example, set it with clap on the struct of the flags, for
/// example `#[command(mut_arg("optimizer", |arg| arg.default_value_if("model", "cnn", "adam")))]`.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Defaults {
    length: Length,
    batch_size: u32,
    optimizer: Optimizer,
    learning_rate: f32,
    weight_decay: Option<f32>,
}

#[derive(Clone, Copy, Debug)]
enum Length {
    Steps(u64),
    Epochs(u64),
}

impl Defaults {
    /// Makes defaults for this number of epochs, in batches of 64, with plain gradient descent.
    pub const fn epochs(epochs: u64) -> Self {
        let optimizer = Optimizer::Sgd;
        let learning_rate = optimizer.learning_rate();
        let length = Length::Epochs(epochs);
        Self { length, batch_size: 64, optimizer, learning_rate, weight_decay: None }
    }

    /// Makes defaults for this number of updates, in batches of 64, with plain gradient descent.
    pub const fn steps(steps: u64) -> Self {
        Self { length: Length::Steps(steps), ..Self::epochs(1) }
    }

    /// Sets the number of examples in one worker's batch.
    pub const fn batch_size(self, batch_size: u32) -> Self {
        Self { batch_size, ..self }
    }

    /// Uses plain gradient descent with this learning rate.
    pub const fn sgd(self, learning_rate: f32) -> Self {
        Self { optimizer: Optimizer::Sgd, learning_rate, ..self }
    }

    /// Uses gradient descent with momentum 0.9 and this learning rate.
    pub const fn momentum(self, learning_rate: f32) -> Self {
        Self { optimizer: Optimizer::Momentum, learning_rate, ..self }
    }

    /// Uses Adam with this learning rate.
    pub const fn adam(self, learning_rate: f32) -> Self {
        Self { optimizer: Optimizer::Adam, learning_rate, ..self }
    }

    /// Sets the weight decay.
    pub const fn weight_decay(self, weight_decay: f32) -> Self {
        Self { weight_decay: Some(weight_decay), ..self }
    }

    /// Returns the command with these defaults. If the user selects a different optimizer, the default
    /// learning rate and weight decay are the usual values of that optimizer. The default length is dropped
    /// if the user gives the length in the other unit: epochs instead of steps, or steps instead of epochs.
    pub(super) fn apply(self, command: Command) -> Command {
        let command = match self.length {
            Length::Epochs(epochs) => command.mut_arg("epochs", |arg| arg.default_value(epochs.to_string())),
            Length::Steps(steps) => {
                command.mut_arg("epochs", |arg| arg.default_value(None)).mut_arg("steps", |arg| {
                    let unless = arg.default_value_if("epochs", ArgPredicate::IsPresent, None);
                    unless.default_value(steps.to_string())
                })
            }
        };
        let rates = Optimizer::ALL.map(|optimizer| {
            let rate =
                if optimizer == self.optimizer { self.learning_rate } else { optimizer.learning_rate() };
            (optimizer.name(), rate.to_string())
        });
        let shown = rates.clone().map(|(name, rate)| format!("{rate} for {name}")).join(", ");
        let command = command
            .mut_arg("batch_size", |arg| arg.default_value(self.batch_size.to_string()))
            .mut_arg("optimizer", |arg| arg.default_value(self.optimizer.name()))
            .mut_arg("learning_rate", |arg| {
                arg.help(format!("Learning rate [default: {shown}]")).default_value_ifs(
                    rates.map(|(name, rate)| ("optimizer", ArgPredicate::Equals(name.into()), rate)),
                )
            });
        self.apply_weight_decay(command)
    }

    /// Returns the command with the default weight decay. The default of the optimizer must be set before
    /// this call, because clap determines defaults in the order in which arguments were changed.
    fn apply_weight_decay(self, command: Command) -> Command {
        let Some(decay) = self.weight_decay else { return command };
        let (decay, optimizer) = (decay.to_string(), self.optimizer.name());
        let help = format!(
            "Weight decay: each value, multiplied by X, is added to its gradient; with adamw, lamb and lion, the \
             optimizer's own decay [default: {decay} for {optimizer}, 0.01 for adamw, lamb and lion, 0 for the others]"
        );
        command.mut_arg("weight_decay", |arg| {
            arg.help(help).default_value_if("optimizer", ArgPredicate::Equals(optimizer.into()), decay)
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::{FromArgMatches, Parser};

    use super::super::train::TrainArgs;
    use super::*;

    #[derive(Parser)]
    #[command(mut_arg("optimizer", |arg| arg.default_value_if("model", "large", "adam")))]
    struct Example {
        #[arg(long, default_value = "small")]
        model: String,
        #[command(flatten)]
        train: TrainArgs,
    }

    /// Parses the flags, and returns a text with the length, batch size, optimizer and learning rate of the
    /// job that they describe.
    fn read(defaults: Defaults, flags: &[&str]) -> String {
        let command = defaults.apply(<Example as clap::CommandFactory>::command());
        let args = std::iter::once("example").chain(flags.iter().copied());
        let matches = command.try_get_matches_from(args).unwrap_or_else(|error| panic!("{error}"));
        let Example { model: _, train } = Example::from_arg_matches(&matches).unwrap();
        train.plan()
    }

    #[test]
    fn a_default_holds_where_no_flag_is_given() {
        let lm = Defaults::steps(2000).batch_size(32).adam(0.002);
        assert_eq!(read(lm, &[]), "2000 steps of 32, adam 0.002");
        assert_eq!(read(lm, &["--steps=5"]), "5 steps of 32, adam 0.002");
        assert_eq!(read(lm, &["--epochs=5"]), "5 epochs of 32, adam 0.002");
        assert_eq!(read(lm, &["--batch-size=5"]), "2000 steps of 5, adam 0.002");
        assert_eq!(read(lm, &["--learning-rate=0.5"]), "2000 steps of 32, adam 0.5");
        let images = Defaults::epochs(15).momentum(0.1);
        assert_eq!(read(images, &[]), "15 epochs of 64, momentum 0.1");
        assert_eq!(read(images, &["--steps=5"]), "5 steps of 64, momentum 0.1");
        assert_eq!(read(images, &["--epochs=5"]), "5 epochs of 64, momentum 0.1");
    }

    #[test]
    fn a_model_may_have_another_optimizer() {
        let two = Defaults::epochs(3);
        assert_eq!(read(two, &[]), "3 epochs of 64, sgd 0.3");
        assert_eq!(read(two, &["--model=large"]), "3 epochs of 64, adam 0.001");
        assert_eq!(read(two, &["--model=large", "--learning-rate=0.5"]), "3 epochs of 64, adam 0.5");
        assert_eq!(read(two, &["--model=large", "--optimizer=sgd"]), "3 epochs of 64, sgd 0.3");
    }

    #[test]
    fn another_optimizer_has_its_usual_rate() {
        let lm = Defaults::steps(2000).adam(0.002);
        assert_eq!(read(lm, &["--optimizer=sgd"]), "2000 steps of 64, sgd 0.3");
        assert_eq!(read(lm, &["--optimizer=momentum"]), "2000 steps of 64, momentum 0.03");
        assert_eq!(read(lm, &["--optimizer=adam"]), "2000 steps of 64, adam 0.002");
        assert_eq!(read(lm, &["--optimizer=sgd", "--learning-rate=0.5"]), "2000 steps of 64, sgd 0.5");
        assert_eq!(read(Defaults::epochs(3).sgd(0.1), &["--optimizer=adam"]), "3 epochs of 64, adam 0.001");
    }

    #[test]
    fn the_weight_decay_is_that_of_the_default_optimizer() {
        let images = Defaults::epochs(3).momentum(0.1).weight_decay(5e-4);
        assert_eq!(read(images, &[]), "3 epochs of 64, momentum 0.1, weight decay 0.0005");
        assert_eq!(read(images, &["--optimizer=momentum"]), read(images, &[]));
        assert_eq!(read(images, &["--weight-decay=0"]), "3 epochs of 64, momentum 0.1, weight decay 0");
        assert_eq!(read(images, &["--optimizer=adamw"]), "3 epochs of 64, adamw 0.001");
        assert_eq!(read(images, &["--optimizer=sgd"]), "3 epochs of 64, sgd 0.3");
    }

    #[test]
    fn without_defaults_the_flags_are_those_of_every_example() {
        let args = Example::try_parse_from(["example"]).unwrap();
        assert_eq!(args.train.plan(), read(Defaults::epochs(3), &[]));
    }

    #[test]
    fn help_shows_the_defaults() {
        let lm = Defaults::steps(2000).batch_size(32).adam(0.002);
        let help = lm.apply(<Example as clap::CommandFactory>::command()).render_help().to_string();
        for told in ["[default: 2000]", "[default: 32]", "[default: adam]", "0.3 for sgd", "0.002 for adam"] {
            assert!(help.contains(told), "no '{told}' in: {help}");
        }
        assert!(!help.contains("0.01 for adamw, lamb and lion, 0 for"), "{help}");
        let mut decayed = lm.weight_decay(5e-4).apply(<Example as clap::CommandFactory>::command());
        let decayed = decayed.render_help().to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            decayed.contains("[default: 0.0005 for adam, 0.01 for adamw, lamb and lion, 0 for the others]")
        );
        let epochs = help.lines().skip_while(|line| !line.contains("--epochs")).take(1).collect::<String>();
        assert!(!epochs.contains("default"), "{epochs}");
    }
}
