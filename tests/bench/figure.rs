//! One figure: what was measured in each run, what it is compared with, and what is asked of it.
//! Judges for the reader; fails nothing.

use serde_json::{Value, json};

/// What is asked of a figure: of its ratio where it is compared with something, else of itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// It should not be less.
    AtLeast { must: f64, aim: f64 },
    /// It should not be more.
    AtMost { must: f64, aim: f64 },
}

/// What became of a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    Aim,
    Must,
    Neither,
}

impl Reached {
    /// As it is told.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Aim => "aim",
            Self::Must => "must",
            Self::Neither => "no",
        }
    }
}

impl Goal {
    fn reached(self, seen: f64) -> Reached {
        let (must, aim) = match self {
            Self::AtLeast { must, aim } => (seen >= must, seen >= aim),
            Self::AtMost { must, aim } => (seen <= must, seen <= aim),
        };
        match (must, aim) {
            (_, true) => Reached::Aim,
            (true, false) => Reached::Must,
            (false, false) => Reached::Neither,
        }
    }

    fn limits(self) -> (f64, f64) {
        match self {
            Self::AtLeast { must, aim } | Self::AtMost { must, aim } => (must, aim),
        }
    }
}

/// Runs of one kind, perhaps beside runs of another that took turns with them.
#[derive(Clone, Debug)]
pub struct Figure {
    measure: &'static str,
    what: String,
    unit: &'static str,
    runs: Vec<f64>,
    beside: Vec<f64>,
    goal: Option<Goal>,
}

impl Figure {
    /// Of these runs.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(
        measure: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        runs: Vec<f64>,
    ) -> Self {
        assert!(!runs.is_empty(), "{measure}: nothing was measured");
        Self {
            measure,
            what: what.into(),
            unit,
            runs,
            beside: Vec::new(),
            goal: None,
        }
    }

    /// Compared with these, round by round.
    ///
    /// # Panics
    /// If there are not as many.
    #[must_use]
    pub fn beside(mut self, runs: &[f64]) -> Self {
        assert_eq!(runs.len(), self.runs.len(), "{}: rounds", self.measure);
        runs.clone_into(&mut self.beside);
        self
    }

    /// With something asked of it.
    #[must_use]
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }

    /// The median of the rounds' ratios: what else the machine does changes from round to round,
    /// and less within one.
    fn ratio(&self) -> Option<f64> {
        let rounds = self.runs.iter().zip(&self.beside);
        let ratios: Vec<f64> = rounds.map(|(run, beside)| run / beside).collect();
        (!ratios.is_empty()).then(|| median(&ratios))
    }

    fn reached(&self) -> Option<Reached> {
        let seen = self.ratio().unwrap_or_else(|| median(&self.runs));
        self.goal.map(|goal| goal.reached(seen))
    }

    /// The columns of [`HEADER`].
    pub fn line(&self) -> [String; 8] {
        let told = |value: Option<f64>| value.map(told).unwrap_or_default();
        let limits = self.goal.map(Goal::limits);
        let beside = (!self.beside.is_empty()).then(|| median(&self.beside));
        [
            self.measure.to_owned(),
            self.what.clone(),
            format!("{} {}", told(Some(median(&self.runs))), self.unit),
            told(beside),
            told(self.ratio()),
            told(limits.map(|(must, _)| must)),
            told(limits.map(|(_, aim)| aim)),
            self.reached().map_or("", Reached::as_str).to_owned(),
        ]
    }

    /// For scripts, with every run.
    pub fn json(&self) -> Value {
        let limits = self.goal.map(Goal::limits);
        json!({
            "measure": self.measure,
            "what": self.what,
            "unit": self.unit,
            "median": median(&self.runs),
            "runs": self.runs,
            "beside_median": (!self.beside.is_empty()).then(|| median(&self.beside)),
            "beside_runs": self.beside,
            "ratio": self.ratio(),
            "must": limits.map(|(must, _)| must),
            "aim": limits.map(|(_, aim)| aim),
            "reached": self.reached().map(Reached::as_str),
        })
    }
}

/// What the columns of [`Figure::line`] hold.
pub const HEADER: [&str; 8] = [
    "measure", "of", "median", "beside", "ratio", "must", "aim", "reached",
];

/// The middle one; the upper of the two middle ones.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Three digits that count, for people.
fn told(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 0.1 => 2,
        _ => 4,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ratio_is_judged_in_the_right_direction() {
        let figure = |run: f64, goal| {
            // The middle round is the middle ratio.
            let runs = vec![run, 90.0, 0.1];
            let figure = Figure::new("m", "w", "s", runs).beside(&[20.0, 30.0, 10.0]);
            figure.goal(goal).reached()
        };
        let most = Goal::AtMost {
            must: 1.5,
            aim: 1.1,
        };
        let least = Goal::AtLeast {
            must: 0.5,
            aim: 0.9,
        };
        for (run, goal, reached) in [
            (21.0, most, Reached::Aim),
            (25.0, most, Reached::Must),
            (31.0, most, Reached::Neither),
            (19.0, least, Reached::Aim),
            (11.0, least, Reached::Must),
            (9.0, least, Reached::Neither),
        ] {
            assert_eq!(figure(run, goal), Some(reached), "{run}");
        }
    }

    #[test]
    fn without_anything_beside_it_a_figure_is_judged_by_itself() {
        let figure = Figure::new("m", "w", "MB", vec![30.0]);
        let figure = figure.goal(Goal::AtMost {
            must: 40.0,
            aim: 25.0,
        });
        let line = figure.line();
        assert_eq!(
            line,
            ["m", "w", "30.0 MB", "", "", "40.0", "25.0", "must"].map(str::to_owned)
        );
        assert_eq!(figure.json()["ratio"], Value::Null);
    }
}
