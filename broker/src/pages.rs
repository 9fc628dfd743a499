//! Pages of `docs/` that are generated from tables: a test compares each with what the tables say now, and
//! rewrites it when `FELIX_BLESS=1`.

/// Compares `docs/<name>` with `expected`.
#[cfg(test)]
pub fn check(name: &str, expected: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name);
    if std::env::var("FELIX_BLESS").is_ok_and(|bless| bless == "1") {
        std::fs::write(&path, expected).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == expected, "docs/{name} is out of date: run this test with FELIX_BLESS=1");
}
