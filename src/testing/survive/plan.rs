//! The schedules: what goes wrong in which delivery, and how the next one comes.

use crate::testing::{fault::Fault, point::Point, random::Random, world::Orders};

/// One schedule: the deliveries that it plans. More follow, until the operation is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::testing) struct Plan {
    pub(super) steps: Vec<Step>,
}

/// One delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) orders: Vec<Orders>,
    /// Whether it comes after the leases of those before it.
    pub(super) is_after_lease: bool,
    /// Whether it comes to the process that got the last one, if that lives.
    pub(super) is_in_same_process: bool,
}

impl Step {
    fn with(orders: Orders) -> Self {
        Self { orders: vec![orders], ..Self::default() }
    }
}

/// Nothing goes wrong, and a duplicate follows.
pub(super) fn calm() -> Plan {
    Plan { steps: vec![Step::default(), Step { is_in_same_process: true, ..Step::default() }] }
}

/// Every fault at every point of an undisturbed delivery, with every order of what follows.
pub(super) fn singles(points: &[Point]) -> Vec<Plan> {
    let mut plans = vec![calm()];
    for (nth, point) in points.iter().enumerate() {
        for fault in Fault::ALL.into_iter().filter(|fault| fault.fits(*point)) {
            for next in after(fault) {
                plans.push(Plan { steps: vec![Step::with(Orders::Nth(nth, fault)), next] });
            }
        }
    }
    plans
}

/// The ways in which the next delivery may come.
fn after(fault: Fault) -> Vec<Step> {
    let (now, later) = (Step::default(), Step { is_after_lease: true, ..Step::default() });
    let same = Step { is_in_same_process: true, ..Step::default() };
    match fault {
        Fault::Die => vec![later, now],
        Fault::Freeze => vec![now],
        _ => vec![now, same],
    }
}

/// A schedule with a second fault in the next delivery, and perhaps a third.
pub(super) fn drawn(seed: u64, singles: &[Plan], points: usize) -> Plan {
    let mut random = Random::new(seed);
    let mut plan = random.pick(singles).cloned().unwrap_or_else(calm);
    let mut any = || Orders::Any(random.index(points + 2), random.index(64));
    if let Some(last) = plan.steps.last_mut() {
        last.orders.push(any());
    }
    let orders = if random.percent(25) {
        vec![Orders::Any(random.index(points + 2), random.index(64))]
    } else {
        vec![]
    };
    plan.steps.push(Step {
        orders,
        is_after_lease: random.percent(60),
        is_in_same_process: random.percent(30),
    });
    plan
}
