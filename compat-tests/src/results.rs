//! What cases came to, on the screen and in files.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::machine;

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Everything that was asserted held.
    Pass,
    /// Something did not.
    Fail,
    /// Not run; never counted as passed.
    Skip,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

/// One case of one part.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaseResult {
    /// Its name.
    pub case: String,
    /// How it ended.
    pub status: Status,
    /// Why, where that is not plain.
    #[serde(default)]
    pub detail: String,
    /// How long it took.
    #[serde(default)]
    pub ms: u64,
}

impl CaseResult {
    /// A case that passed.
    pub fn pass(case: &str) -> Self {
        Self { case: case.to_owned(), status: Status::Pass, detail: String::new(), ms: 0 }
    }

    /// A case that failed.
    pub fn fail(case: &str, detail: impl Into<String>, ms: u64) -> Self {
        Self { case: case.to_owned(), status: Status::Fail, detail: detail.into(), ms }
    }

    /// A case that was not run.
    pub fn skip(case: &str, detail: impl Into<String>) -> Self {
        Self { case: case.to_owned(), status: Status::Skip, detail: detail.into(), ms: 0 }
    }
}

/// What one part (a client, or the raw cases) came to against one target.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PartResult {
    /// The part's name.
    pub name: String,
    /// For people.
    pub title: String,
    /// The client's version.
    pub version: String,
    /// The target and its version.
    pub target: String,
    /// When the part ended, in seconds since 1970.
    pub at: u64,
    /// Its cases in order.
    pub cases: Vec<CaseResult>,
}

impl PartResult {
    /// A part without cases yet.
    pub fn new(name: &str, title: &str, version: &str, target: &str) -> Self {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        let (name, title) = (name.to_owned(), title.to_owned());
        Self { name, title, version: version.to_owned(), target: target.to_owned(), at, cases: Vec::new() }
    }

    /// Prints a case's line and keeps it.
    pub fn push(&mut self, mut result: CaseResult) {
        if result.status == Status::Fail
            && let Some(pause) = machine::stood_still(Duration::from_millis(result.ms))
        {
            let pause = pause.as_secs_f64();
            result.detail = format!("(the machine stood still for {pause:.2} s meanwhile) {}", result.detail);
        }
        self.show(&result, 600);
        self.cases.push(result);
    }

    /// Prints what failed once more, at more length.
    pub fn show_failures(&self) {
        self.cases.iter().filter(|case| case.status == Status::Fail).for_each(|case| self.show(case, 3_000));
    }

    /// Prints a case's line with at most so many characters of its detail.
    #[expect(clippy::print_stdout, reason = "the harness reports on stdout")]
    fn show(&self, case: &CaseResult, most: usize) {
        let detail = case.detail.split_whitespace().collect::<Vec<_>>().join(" ");
        let cut = if detail.chars().count() > most { "..." } else { "" };
        let detail: String = detail.chars().take(most).collect();
        let separator = if detail.is_empty() { "" } else { ": " };
        println!(
            "{} {}/{} ({} ms){separator}{detail}{cut}",
            case.status.word(),
            self.name,
            case.case,
            case.ms
        );
    }

    /// Number of cases with this status.
    pub fn count(&self, status: Status) -> usize {
        self.cases.iter().filter(|case| case.status == status).count()
    }

    /// Keeps the part in `folder`. A run of `some` cases replaces only those, so that the file tells the last run of each.
    pub fn save(&self, folder: &Path, some: bool) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        let file = folder.join(format!("{}.json", self.name));
        let mut whole = self.clone();
        if some && let Ok(old) = Self::load(&file) {
            let gone_by: Vec<CaseResult> = old
                .cases
                .into_iter()
                .map(|case| self.cases.iter().find(|new| new.case == case.case).cloned().unwrap_or(case))
                .collect();
            let fresh: Vec<CaseResult> = self
                .cases
                .iter()
                .filter(|new| !gone_by.iter().any(|old| old.case == new.case))
                .cloned()
                .collect();
            whole.cases = gone_by.into_iter().chain(fresh).collect();
        }
        std::fs::write(&file, serde_json::to_vec_pretty(&whole)?).with_context(|| file.display().to_string())
    }

    /// Reads a part back.
    pub fn load(file: &Path) -> Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(file)?)?)
    }
}
