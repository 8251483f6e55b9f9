//! The view as a circuit of dbsp, whose state is in memory.

use dbsp::typed_batch::{IndexedZSetReader, SpineSnapshot};
use dbsp::utils::{Tup2, Tup3};
use dbsp::{DBSPHandle, OrdIndexedZSet, OutputHandle, Runtime, ZSetHandle};
use measured::{Arguments, Changes, Customer, Order, Row, View, measure};

type Group = Tup2<i64, String>;
type Totals = Tup2<i64, i64>;

struct Circuit {
    dbsp: DBSPHandle,
    customers: ZSetHandle<Tup3<i64, String, i64>>,
    orders: ZSetHandle<Tup3<i64, i64, i64>>,
    totals: OutputHandle<SpineSnapshot<OrdIndexedZSet<Group, Totals>>>,
}

impl Circuit {
    fn new(workers: usize) -> Self {
        let (dbsp, (customers, orders, totals)) = Runtime::init_circuit(workers, |circuit| {
            let (customers, add_customers) = circuit.add_input_zset::<Tup3<i64, String, i64>>();
            let (orders, add_orders) = circuit.add_input_zset::<Tup3<i64, i64, i64>>();
            let customers =
                customers.map_index(|Tup3(id, name, region)| (*id, Tup2(*region, name.clone())));
            let totals = orders
                .map_index(|Tup3(_, customer, price)| (*customer, *price))
                .join_index(&customers, |_, price, group: &Group| {
                    Some((group.clone(), *price))
                })
                .aggregate_linear(|price| Tup2(1, *price));
            Ok((add_customers, add_orders, totals.accumulate_output()))
        })
        .expect("the circuit can be made");
        Self {
            dbsp,
            customers,
            orders,
            totals,
        }
    }
}

impl View for Circuit {
    fn advance(&mut self, customers: &[(Customer, i64)], orders: &[(Order, i64)]) -> Changes<Row> {
        for ((id, name, region), diff) in customers {
            self.customers.push(Tup3(*id, name.clone(), *region), *diff);
        }
        for ((id, customer, price), diff) in orders {
            self.orders.push(Tup3(*id, *customer, *price), *diff);
        }
        self.dbsp.transaction().expect("the step can be taken");
        // A transaction may take several steps: what all of them have changed.
        let changes = self.totals.concat().consolidate();
        let rows = changes.iter();
        rows.map(|(Tup2(region, name), Tup2(orders, total), diff)| {
            ((region, name, orders, total), diff)
        })
        .collect()
    }
}

fn main() {
    let arguments = Arguments::read();
    let mut circuit = Circuit::new(arguments.workers);
    measure(&arguments, &mut circuit);
    circuit.dbsp.kill().expect("the workers end");
}
