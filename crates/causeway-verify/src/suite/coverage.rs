//! Which choices of the planners calls have reached.

use std::collections::BTreeMap;

use causeway::backend::gpu::plan::Plan;
use serde::{Deserialize, Serialize};

use super::random_calls::Row;

/// Choices that launches were planned with, and how many launches had each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Coverage(pub BTreeMap<String, u64>);

impl Coverage {
    /// True where nothing was launched.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds another run's counts.
    pub fn add(&mut self, other: &Coverage) {
        for (choice, launches) in &other.0 {
            *self.0.entry(choice.clone()).or_default() += launches;
        }
    }

    /// Counts the choices of a launch.
    pub fn note(&mut self, plan: &Plan) {
        for choice in Self::choices(plan) {
            *self.0.entry(choice).or_default() += 1;
        }
    }

    /// What a planner chose for a launch: the kernel, each template argument, and what its grid and its scratch memory say
    /// about the branch that was taken.
    ///
    /// Numbers that are as many as there are sizes count by their power of two.
    pub fn choices(plan: &Plan) -> Vec<String> {
        let kernel = plan.entry();
        let mut choices = vec![kernel.to_string()];
        choices.extend(plan.choice.source().lines().filter_map(|line| {
            let line = line.trim().trim_end_matches(';');
            let (name, value) = match line.strip_prefix("static constexpr ") {
                Some(constant) => constant.split_once(' ')?.1.split_once(" = ")?,
                None => line.strip_prefix("using ")?.split_once(" = ")?,
            };
            Some(format!("{kernel} {name} = {}", class(value)))
        }));
        let launch = [
            ("clusters", plan.cluster > 1),
            ("a workspace", plan.workspace_bytes > 0),
            ("a programmatic launch", plan.programmatic_launch),
            ("several layers", plan.grid[2] > 1),
            ("a column of blocks", plan.grid[1] > 1),
            ("tensor maps", !plan.tensor_maps.is_empty()),
            ("one block", plan.grid == [1, 1, 1]),
        ];
        choices.extend(
            launch.into_iter().filter(|(_, has)| *has).map(|(what, _)| format!("{kernel} with {what}")),
        );
        choices
    }
}

/// What calls can reach, with a call for each choice.
pub type Reachable = BTreeMap<String, Row>;

impl Coverage {
    /// Of what calls can reach, what these launches have not.
    pub fn missing<'a>(&self, reachable: &'a Reachable) -> Vec<(&'a str, &'a Row)> {
        let missing = reachable.iter().filter(|(choice, _)| !self.0.contains_key(*choice));
        missing.map(|(choice, row)| (choice.as_str(), row)).collect()
    }
}

/// The value, or the powers of two between which a large number lies.
fn class(value: &str) -> String {
    match value.parse::<u64>() {
        Ok(number) if number > 16 && !number.is_power_of_two() => {
            let below = 1u64 << number.ilog2();
            format!("{} to {}", below + 1, 2 * below - 1)
        }
        _ => value.trim_start_matches("causeway::").to_string(),
    }
}
