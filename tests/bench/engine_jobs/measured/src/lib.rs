//! Measures a view of an engine: its first contents, its rounds, and the memory of the process.
//!
//!     program FOLDER WARM CONTENTS WORKERS
//!
//! Reads the customers, the orders and their changes from `FOLDER`, and then starts the clock. The
//! first `WARM` rounds are not reported. Writes the contents of the view in the end to `CONTENTS`,
//! a row a line, and prints one line of JSON: milliseconds, and MiB that are resident.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Id, name, region.
pub type Customer = (i64, String, i64);

/// Id, customer, price.
pub type Order = (i64, i64, i64);

/// A row of the view: region, name, number of orders, sum of their prices.
pub type Row = (i64, String, i64, i64);

/// Rows that come (1) and go (-1).
pub type Changes<T> = Vec<(T, i64)>;

/// What an engine must do.
pub trait View {
    /// Take changes in, bring the view up to them, and say which of its rows have changed.
    fn advance(&mut self, customers: &[(Customer, i64)], orders: &[(Order, i64)]) -> Changes<Row>;
}

/// The arguments of a program.
#[derive(Clone)]
pub struct Arguments {
    folder: PathBuf,
    warm: usize,
    contents: PathBuf,
    pub workers: usize,
}

impl Arguments {
    /// Those of this process.
    pub fn read() -> Self {
        let given: Vec<String> = std::env::args().skip(1).collect();
        let [folder, warm, contents, workers] = given.as_slice() else {
            panic!("arguments: FOLDER WARM CONTENTS WORKERS");
        };
        Self {
            folder: folder.into(),
            warm: warm.parse().expect("WARM is a number"),
            contents: contents.into(),
            workers: workers.parse().expect("WORKERS is a number"),
        }
    }
}

/// Run all rounds, and report.
pub fn measure(arguments: &Arguments, view: &mut impl View) {
    let folder = &arguments.folder;
    let customers = lines(&folder.join("customers.csv"), |cells| {
        (
            (number(cells[0]), cells[1].to_string(), number(cells[2])),
            1,
        )
    });
    let orders = lines(&folder.join("orders.csv"), |cells| (order(cells), 1));
    let rounds = rounds(&folder.join("changes.csv"));

    let began = Instant::now();
    let changed = view.advance(&customers, &orders);
    let first = milliseconds(began);
    drop((customers, orders));
    let mut contents = BTreeMap::new();
    apply(&mut contents, changed);

    let mut taken = Vec::new();
    for changes in &rounds {
        let began = Instant::now();
        let changed = view.advance(&[], changes);
        taken.push(milliseconds(began));
        apply(&mut contents, changed);
    }
    let memory = resident_mib();
    write(&arguments.contents, &contents);
    let measured = &taken[arguments.warm..];
    println!("{{\"first_ms\": {first}, \"rounds_ms\": {measured:?}, \"memory_mib\": {memory}}}");
}

fn rounds(path: &Path) -> Vec<Changes<Order>> {
    let mut found: Vec<Changes<Order>> = Vec::new();
    for (round, change) in lines(path, |cells| {
        let round = number(cells[0]) as usize;
        (round, (order(&cells[1..]), number(cells[4])))
    }) {
        found.resize_with(found.len().max(round + 1), Vec::new);
        found[round].push(change);
    }
    found
}

/// Each line but the first, which names the columns. No value has a comma or a quote.
fn lines<T>(path: &Path, parse: impl Fn(&[&str]) -> T) -> Vec<T> {
    let text = fs::read_to_string(path).expect("the file can be read");
    let rows = text.lines().skip(1);
    rows.map(|line| parse(&line.split(',').collect::<Vec<_>>()))
        .collect()
}

fn order(cells: &[&str]) -> Order {
    (number(cells[0]), number(cells[1]), number(cells[2]))
}

fn number(cell: &str) -> i64 {
    cell.parse().expect("a number")
}

fn milliseconds(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1000.0
}

fn apply(contents: &mut BTreeMap<Row, i64>, changes: Changes<Row>) {
    for (row, diff) in changes {
        *contents.entry(row).or_default() += diff;
    }
    contents.retain(|_, count| *count != 0);
}

fn write(path: &Path, contents: &BTreeMap<Row, i64>) {
    let mut text = String::new();
    for ((region, name, orders, total), count) in contents {
        assert_eq!(*count, 1, "a group has one row: {region}, {name}");
        text += &format!("{region},{name},{orders},{total}\n");
    }
    fs::write(path, text).expect("the contents can be written");
}

fn resident_mib() -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("this is Linux");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("a process has it");
    let cells: Vec<&str> = line.split_whitespace().collect();
    number(cells[1]) as f64 / 1024.0
}
