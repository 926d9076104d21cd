//! The schedules: the faults of each delivery, and when and where the next delivery comes.

use crate::{fault::Fault, point::Point, random::Random, world::Orders};

/// One schedule: the planned deliveries. More deliveries follow until the operation is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(super) steps: Vec<Step>,
}

/// One planned delivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) orders: Vec<Orders>,
    /// Whether the delivery comes after the leases of the earlier deliveries have expired.
    pub(super) is_after_lease: bool,
    /// Whether the delivery goes to the previous delivery's process, if that process is alive.
    pub(super) is_in_same_process: bool,
}

impl Step {
    fn with(orders: Orders) -> Self {
        Self { orders: vec![orders], ..Self::default() }
    }
}

/// Returns the schedule without a fault: a delivery, then a duplicate to the same process.
pub(super) fn calm() -> Plan {
    Plan { steps: vec![Step::default(), Step { is_in_same_process: true, ..Step::default() }] }
}

/// Returns the schedule without a fault. Then, for each point of an undisturbed delivery and each fault that fits the
/// point, returns one schedule for each way in which the next delivery may come.
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

/// Returns the ways in which the next delivery may come after this fault.
fn after(fault: Fault) -> Vec<Step> {
    let (now, later) = (Step::default(), Step { is_after_lease: true, ..Step::default() });
    let same = Step { is_in_same_process: true, ..Step::default() };
    match fault {
        Fault::Die => vec![later, now],
        Fault::Freeze => vec![now],
        _ => vec![now, same],
    }
}

/// Draws a schedule: one of `singles`, with a fault added to its last delivery, and then with one more delivery, which
/// may have a fault too.
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
