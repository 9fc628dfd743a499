//! Runs the common cases with the crate rdkafka: `program --bootstrap ADDRESS --prefix PREFIX CASE...`, or loads a cluster (`load`).

mod cases;
mod client;
mod group;
mod killed;
mod load;
mod lost;

use std::io::BufRead;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Has the harness do something to the broker, and returns its answer when it is done.
pub fn ask(what: &str) -> Result<Value> {
    println!("{}", json!({ "ask": what }));
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let answer: Value = serde_json::from_str(&line).context("the harness is gone")?;
    ensure!(answer["ok"] == true, "the harness could not {what} the broker: {}", answer["error"]);
    Ok(answer)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("load", rest)) = words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return load::main(rest);
    }
    let (mut bootstrap, mut prefix, mut names) = (String::new(), String::new(), Vec::new());
    let mut arguments = words.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--bootstrap" => bootstrap = arguments.next().context("an address is missing")?,
            "--prefix" => prefix = arguments.next().context("a prefix is missing")?,
            _ => names.push(argument),
        }
    }
    let client = client::Client::new(&bootstrap)?;
    let (_, librdkafka) = rdkafka::util::get_rdkafka_version();
    println!("{}", json!({ "version": format!("0.39.0, librdkafka {librdkafka}") }));
    for name in names {
        println!("{}", json!({ "begin": name }));
        let begun = Instant::now();
        let (status, detail) = match cases::run(&name, &client, &format!("{prefix}{name}")) {
            Ok(()) => ("pass", String::new()),
            Err(error) => ("fail", format!("{error:#}")),
        };
        let ms = begun.elapsed().as_secs_f64() * 1000.0;
        println!("{}", json!({ "case": name, "status": status, "detail": detail, "ms": ms }));
    }
    Ok(())
}
