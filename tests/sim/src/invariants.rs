//! What must hold at the end of a simulated job. The letters are those of ARCHITECTURE.md.

use pushpull_chief::JobReport;

use crate::scenario::Scenario;

/// Checks the report of a trained job.
///
/// # Errors
/// Returns the first property that does not hold.
pub fn check(scenario: &Scenario, report: &JobReport) -> Result<(), String> {
    let steps = scenario.steps;
    if report.steps.0 != steps {
        return Err(format!("V3: {} updates, expected {steps}", report.steps));
    }
    let expected = (scenario.ps * scenario.shards) as usize;
    if report.shards.len() != expected {
        return Err(format!("{} shards reported, expected {expected}", report.shards.len()));
    }
    for (shard, seen) in &report.shards {
        if !seen.pushes.add_up() {
            return Err(format!("V2 on {shard}: {:?}", seen.pushes));
        }
        if seen.version.0 != steps {
            return Err(format!("V3 on {shard}: version {}, expected {steps}", seen.version));
        }
        if seen.held_bytes != 0 || seen.waiting != 0 {
            return Err(format!("{shard} holds {} bytes and {} pulls", seen.held_bytes, seen.waiting));
        }
    }
    Ok(())
}
