//! `docs/replication-rules.md` names a test for each rule: all of them are there, and so is each file.

#![expect(clippy::unwrap_used, reason = "all of this file is a test")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/replication-rules.md";
/// Where code and tests are.
const PLACES: [&str; 5] = ["broker", "control", "storage", "protocol", "compat-tests"];
/// So few rules would mean that the page is not read rightly.
const LEAST_RULES: usize = 100;

/// What is there to be named.
#[derive(Default)]
struct There {
    tests: BTreeSet<String>,
    stories: Vec<String>,
    cases: BTreeSet<String>,
}

impl There {
    fn of(root: &Path) -> There {
        let mut there = There::default();
        let mut folders: Vec<PathBuf> = PLACES.iter().map(|place| root.join(place)).collect();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                if path.is_dir() {
                    let skipped =
                        ["target", "node_modules"].contains(&name.as_str()) || name.starts_with('.');
                    if !skipped {
                        folders.push(path);
                    }
                } else if name.ends_with(".rs") {
                    there.read_code(&path);
                } else if name.ends_with(".txt")
                    && folder.components().any(|part| part.as_os_str() == "testdata")
                {
                    let text = std::fs::read_to_string(&path).unwrap();
                    there
                        .stories
                        .extend(text.lines().filter(|line| line.starts_with("# ")).map(str::to_owned));
                }
            }
        }
        there
    }

    fn read_code(&mut self, path: &Path) {
        let text = std::fs::read_to_string(path).unwrap();
        let is_of_cases = path.components().any(|part| part.as_os_str() == "cases");
        // Lines since the last attribute of a test.
        let mut since = usize::MAX;
        for line in text.lines().map(str::trim) {
            since = since.saturating_add(1);
            if line == "#[test]" || line.starts_with("#[tokio::test") || line.starts_with("#[test_case") {
                since = 0;
            }
            let declared = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
            if let Some(name) = declared.filter(|_| since <= 4).and_then(|line| line.split(['(', '<']).next())
            {
                self.tests.insert(name.to_owned());
                since = usize::MAX;
            }
            // The list of machines that lack a rule: one line is one test.
            if let Some((name, _)) = line.split_once(": Lacks").filter(|_| line.contains(" lacks ")) {
                self.tests.insert(name.to_owned());
            }
            // The suite that every store passes is a list of functions.
            if path.ends_with("control/tests/store/suite.rs")
                && let Some(name) =
                    line.strip_prefix("async fn ").and_then(|line| line.split(['(', '<']).next())
            {
                self.tests.insert(name.to_owned());
            }
            if is_of_cases && let Some(name) = line.strip_prefix("name: \"") {
                self.cases.insert(name.trim_end_matches("\",").to_owned());
            }
        }
    }

    fn has(&self, named: &str) -> bool {
        match named.strip_prefix("# ") {
            Some(_) => self.stories.iter().any(|story| story.starts_with(named)),
            None if named.contains('-') => self.cases.contains(named),
            None => self.tests.contains(named),
        }
    }
}

/// What stands between marks in a cell.
fn marked(cell: &str, mark: char) -> Vec<&str> {
    cell.split(mark).skip(1).step_by(2).collect()
}

#[test]
fn every_rule_has_a_place_and_a_test_that_are_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = std::fs::read_to_string(root.join(PAGE)).unwrap();
    let there = There::of(root);
    let mut missing = Vec::new();
    let mut rules = 0;
    for line in page.lines().filter(|line| line.starts_with("| ") && !line.ends_with("| shown by |")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [rule, places, shown] = cells[..] else { panic!("three cells are a rule: {line}") };
        rules += 1;
        let files = marked(places, '`');
        missing.extend(
            files.iter().filter(|file| !root.join(file).is_file()).map(|file| format!("{rule}: {file}")),
        );
        let in_italics: Vec<&str> = marked(shown, '*');
        let named: Vec<&str> =
            marked(shown, '`').into_iter().filter(|named| !named.starts_with("felix ")).collect();
        assert!(!files.is_empty() && named.len() + in_italics.len() > 0, "nothing is named: {line}");
        missing
            .extend(named.iter().filter(|named| !there.has(named)).map(|named| format!("{rule}: {named}")));
        let cases = in_italics.iter().filter(|case| !there.cases.contains(**case));
        missing.extend(cases.map(|case| format!("{rule}: {case}")));
    }
    assert!(rules >= LEAST_RULES, "only {rules} rules");
    assert!(missing.is_empty(), "what the page names is not there:\n{}", missing.join("\n"));
}

#[test]
fn a_name_that_is_not_there_is_told() {
    let there = There::of(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
    assert!(there.has("every_rule_has_a_place_and_a_test_that_are_there"));
    assert!(!there.has("there_is_no_test_of_this_name") && !there.has("no-case") && !there.has("# No story"));
    // A function that is no test shows nothing.
    assert!(!there.has("marked"));
}
