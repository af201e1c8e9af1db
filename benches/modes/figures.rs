//! Summarises all trials of a job in one row of a table, mostly by the median, the minimum and the maximum
//! of each figure. This module must not depend on how a job is trained.

use pushpull::SyncSpec;
use serde::{Deserialize, Serialize};

use crate::trial::{Setting, Trial};
use crate::{BACKUP, WORKERS};

/// A job's settings, and the results of its trials, one trial for each round.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub setting: Setting,
    pub trials: Vec<Trial>,
}

/// The median, the minimum and the maximum of some numbers.
#[derive(Clone, Copy, Debug)]
struct Spread {
    median: f64,
    least: f64,
    most: f64,
}

impl Spread {
    /// Returns the spread of the numbers, or `None` if there are none.
    fn of(numbers: impl Iterator<Item = f64>) -> Option<Self> {
        let mut numbers: Vec<f64> = numbers.collect();
        numbers.sort_by(f64::total_cmp);
        let (least, most) = (*numbers.first()?, *numbers.last()?);
        Some(Self { median: numbers[numbers.len() / 2], least, most })
    }

    fn words(self, digits: usize) -> String {
        let Self { median, least, most } = self;
        format!("{median:.digits$} ({least:.digits$}-{most:.digits$})")
    }
}

impl Trial {
    fn updates_per_second(&self) -> f64 {
        self.updates as f64 / self.seconds
    }

    /// Returns the time from the start of training until the accuracy was first at least `target` per cent,
    /// in seconds; `None` if the job never reached this accuracy.
    fn seconds_to(&self, target: f64) -> Option<f64> {
        self.points.iter().find(|point| point.accuracy >= target).map(|point| point.seconds)
    }

    fn accuracy(&self) -> f64 {
        self.points.last().map_or(0.0, |last| last.accuracy)
    }
}

impl Figures {
    /// Returns the trial with the median duration.
    pub(crate) fn middle(&self) -> Option<&Trial> {
        let mut trials: Vec<&Trial> = self.trials.iter().collect();
        trials.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
        trials.get(trials.len() / 2).copied()
    }

    fn spread(&self, figure: impl Fn(&Trial) -> f64) -> Option<Spread> {
        Spread::of(self.trials.iter().map(figure))
    }

    /// Returns this job's updates per second, divided by those of the other job: the spread of this ratio
    /// over all rounds.
    fn rate_over(&self, other: &Self) -> Option<Spread> {
        let pairs = self.trials.iter().zip(&other.trials);
        Spread::of(pairs.map(|(one, other)| one.updates_per_second() / other.updates_per_second()))
    }

    fn row(&self, target: f64) -> [String; 8] {
        let words =
            |digits, spread: Option<Spread>| spread.map_or_else(String::new, |spread| spread.words(digits));
        let greatest = |figure: fn(&Trial) -> u64| self.trials.iter().map(figure).max().unwrap_or(0);
        let times: Vec<f64> = self.trials.iter().filter_map(|trial| trial.seconds_to(target)).collect();
        let reached = match (times.len(), self.trials.len()) {
            (0, _) => "never".to_owned(),
            (some, all) if some < all => format!("{some} of {all} rounds"),
            _ => words(1, Spread::of(times.into_iter())),
        };
        [
            words(0, self.spread(Trial::updates_per_second)),
            words(1, self.spread(|trial| trial.seconds)),
            reached,
            words(2, self.spread(Trial::accuracy)),
            words(1, self.spread(|trial| trial.stale as f64 / trial.received.max(1) as f64 * 100.0)),
            words(1, self.spread(|trial| trial.staleness_mean)),
            greatest(|trial| trial.staleness_max).to_string(),
            greatest(|trial| trial.steps_behind_max).to_string(),
        ]
    }
}

fn find(all: &[Figures], sync: SyncSpec, workers: u32, slowed: bool) -> Option<&Figures> {
    all.iter().find(|figures| {
        let setting = figures.setting;
        setting.sync == sync && setting.workers == workers && setting.slowed == slowed
    })
}

/// Prints a table with a row for each job, and then the ratios of some jobs' speeds. A figure is the median
/// over the rounds, with the minimum and the maximum in parentheses; the last two columns contain only the
/// maximum.
pub(crate) fn print(all: &[Figures], target: f64) {
    let target_title = format!("s to {target} %");
    let titles = [
        "updates/s",
        "seconds",
        &target_title,
        "accuracy %",
        "stale %",
        "staleness",
        "max",
        "steps behind max",
    ];
    let print = |name: &str, workers: &str, cells: &[&str]| {
        let [rate, seconds, reached, accuracy, stale, staleness, max, behind] = cells else { return };
        println!(
            "{name:18} {workers:10} {rate:>14} {seconds:>17} {reached:>17} {accuracy:>20} {stale:>17} \
             {staleness:>16} {max:>4} {behind:>4}"
        );
    };
    print("", "workers", &titles);
    for figures in all {
        let Setting { sync, workers, slowed } = figures.setting;
        let workers = format!("{workers}{}", if slowed { ", one slow" } else { "" });
        let cells = figures.row(target);
        print(&sync.to_string(), &workers, &cells.each_ref().map(String::as_str));
    }
    for slow in all.iter().filter(|figures| figures.setting.slowed) {
        let mode = slow.setting.sync;
        if let Some(ratio) = find(all, mode, WORKERS, false).and_then(|equal| slow.rate_over(equal)) {
            println!("{mode}: updates/s with one slow / with equal workers: {}", ratio.words(2));
        }
    }
    let alone = find(all, SyncSpec::SYNC, WORKERS - 1, false);
    let ratio = find(all, BACKUP, WORKERS, true).zip(alone).and_then(|(slow, alone)| slow.rate_over(alone));
    if let Some(ratio) = ratio {
        let workers = WORKERS - 1;
        println!("updates/s, {BACKUP} of {WORKERS} with one slow / sync of {workers}: {}", ratio.words(2));
    }
    println!();
}
