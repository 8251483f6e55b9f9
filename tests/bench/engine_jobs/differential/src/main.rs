//! The view as a dataflow of differential dataflow, whose arrangements are in memory.
//!
//! The first worker takes all changes in, and the others their share of the groups.

use std::sync::{Arc, Mutex};

use differential_dataflow::input::{Input, InputSession};
use measured::{Arguments, Changes, Customer, Order, Row, View, measure};
use timely::Config;
use timely::dataflow::operators::probe::Handle;
use timely::worker::Worker;

struct Dataflow<'a> {
    worker: &'a mut Worker,
    customers: InputSession<u64, Customer, isize>,
    orders: InputSession<u64, Order, isize>,
    probe: Handle<u64>,
    changed: Arc<Mutex<Changes<Row>>>,
}

impl<'a> Dataflow<'a> {
    fn new(worker: &'a mut Worker, changed: Arc<Mutex<Changes<Row>>>) -> Self {
        let news = changed.clone();
        let (customers, orders, probe) = worker.dataflow(|scope| {
            let (add_customers, customers) = scope.new_collection::<Customer, isize>();
            let (add_orders, orders) = scope.new_collection::<Order, isize>();
            let customers = customers.map(|(id, name, region)| (id, (region, name)));
            let (probe, _) = orders
                .map(|(_, customer, price)| (customer, price))
                .join_map(customers, |_, price, group| (group.clone(), *price))
                // The sums are in the diffs, which differential dataflow adds up in place.
                .explode(|(group, price)| Some((group, (1, price as isize))))
                .count()
                .inspect_batch(move |_, rows| {
                    let rows = rows.iter().map(|((group, totals), _, diff)| {
                        let ((region, name), (orders, total)) = (group.clone(), *totals);
                        ((region, name, orders as i64, total as i64), *diff as i64)
                    });
                    news.lock().expect("no worker has failed").extend(rows);
                })
                .probe();
            (add_customers, add_orders, probe)
        });
        Self {
            worker,
            customers,
            orders,
            probe,
            changed,
        }
    }
}

impl View for Dataflow<'_> {
    fn advance(&mut self, customers: &[(Customer, i64)], orders: &[(Order, i64)]) -> Changes<Row> {
        for (customer, diff) in customers {
            self.customers.update(customer.clone(), *diff as isize);
        }
        for (order, diff) in orders {
            self.orders.update(*order, *diff as isize);
        }
        let next = self.orders.time() + 1;
        self.customers.advance_to(next);
        self.customers.flush();
        self.orders.advance_to(next);
        self.orders.flush();
        self.worker.step_while(|| self.probe.less_than(&next));
        std::mem::take(&mut self.changed.lock().expect("no worker has failed"))
    }
}

fn main() {
    let arguments = Arguments::read();
    let changed = Arc::new(Mutex::new(Vec::new()));
    let config = match arguments.workers {
        1 => Config::thread(),
        several => Config::process(several),
    };
    timely::execute(config, move |worker| {
        let first = worker.index() == 0;
        let mut dataflow = Dataflow::new(worker, changed.clone());
        if first {
            measure(&arguments, &mut dataflow);
        }
    })
    .expect("the workers start");
}
