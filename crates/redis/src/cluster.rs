//! Finds the node that has a record: the only node, or in a cluster, the node that has the key's slot.
//!
//! The store sends each request to a node directly and follows redirections itself, so it knows whether each request
//! may have been applied. A cluster-wide client would hide that behind its own retries.

use std::{
    collections::HashMap,
    fmt,
    ops::RangeInclusive,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{Value, cmd};

use super::{
    address::Address,
    connection::{Connector, Node, locked},
    fault::{Class, Fault},
};
use lambda_idempotency_core::store::toolkit::within;

/// How many slots a cluster has ("Redis cluster specification").
const SLOTS: u16 = 16_384;

/// Returns the slot of `key`. It hashes the text between the key's first braces, or the whole key if there's no such
/// text.
pub(super) fn slot(key: &str) -> u16 {
    let key = key.as_bytes();
    let tag = key.iter().position(|byte| *byte == b'{').map(|open| &key[open + 1..]);
    let tag = tag.and_then(|rest| Some(&rest[..rest.iter().position(|byte| *byte == b'}')?]));
    crc16(tag.filter(|tag| !tag.is_empty()).unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        let crc = crc ^ u16::from(*byte) << 8;
        (0..8).fold(crc, |crc, _| if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 })
    })
}

/// The slot ranges and their nodes.
type Shards = Vec<(RangeInclusive<u16>, Address)>;

/// The nodes, and their known slots.
pub(super) struct Nodes {
    seeds: Vec<Address>,
    is_cluster: bool,
    known: Mutex<HashMap<Address, Arc<Node>>>,
    shards: Mutex<Option<Arc<Shards>>>,
    /// Held during a request for the slots, so that one request serves all waiters.
    gate: tokio::sync::Mutex<()>,
}

impl Nodes {
    /// Without a cluster, the first of `seeds` is the only node. In a cluster, `seeds` are some of the nodes.
    pub(super) fn new(seeds: Vec<Address>, is_cluster: bool) -> Self {
        Self {
            seeds,
            is_cluster,
            known: Mutex::default(),
            shards: Mutex::default(),
            gate: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    /// Returns the node at `address`.
    pub(super) fn at(&self, address: &Address) -> Arc<Node> {
        let mut known = locked(&self.known);
        let made = || Arc::new(Node::new(address.clone()));
        Arc::clone(known.entry(address.clone()).or_insert_with(made))
    }

    /// Returns the node that has `slot`. In a cluster, requests the slots if they aren't known.
    pub(super) async fn of(&self, slot: u16, connector: &Connector) -> Result<Arc<Node>, Fault> {
        if !self.is_cluster {
            return Ok(self.at(self.seed()));
        }
        let shards = self.shards(connector).await?;
        let shard = shards.iter().find(|(slots, _)| slots.contains(&slot));
        match shard {
            Some((_, address)) => Ok(self.at(address)),
            None => {
                self.forget();
                Err(Fault::new(Class::ClusterDown, self.seed()))
            }
        }
    }

    /// Returns all nodes that have slots, in an order that's stable while the cluster doesn't change.
    #[cfg(feature = "admin")]
    pub(super) async fn all(&self, connector: &Connector) -> Result<Vec<Arc<Node>>, Fault> {
        if !self.is_cluster {
            return Ok(vec![self.at(self.seed())]);
        }
        let shards = self.shards(connector).await?;
        let mut addresses: Vec<_> = shards.iter().map(|(_, address)| address.clone()).collect();
        addresses.sort_by_key(ToString::to_string);
        addresses.dedup();
        Ok(addresses.iter().map(|address| self.at(address)).collect())
    }

    /// Stops using every connection on which no server has answered for `time`. After a freeze, the connections to all
    /// nodes are dead, and each would cost the timeout of an attempt.
    pub(super) fn discard_silent_for(&self, time: Duration) {
        locked(&self.known).values().for_each(|node| node.discard_if_silent_for(time));
    }

    /// Discards the known slots, so that the next request asks for them again.
    pub(super) fn forget(&self) {
        *locked(&self.shards) = None;
    }

    /// Returns the first configured address, for errors.
    pub(super) fn seed(&self) -> &Address {
        &self.seeds[0]
    }

    async fn shards(&self, connector: &Connector) -> Result<Arc<Shards>, Fault> {
        let known = || locked(&self.shards).clone();
        if let Some(shards) = known() {
            return Ok(shards);
        }
        let _gate = self.gate.lock().await;
        if let Some(shards) = known() {
            return Ok(shards);
        }
        let shards = Arc::new(self.ask(connector).await?);
        let has = |address: &Address| shards.iter().any(|(_, of)| of == address);
        locked(&self.known).retain(|address, _| has(address) || self.seeds.contains(address));
        *locked(&self.shards) = Some(Arc::clone(&shards));
        Ok(shards)
    }

    /// Requests the slots from one node after the other, starting with the configured ones, until a node returns them.
    /// If none does, returns the first error.
    async fn ask(&self, connector: &Connector) -> Result<Shards, Fault> {
        let mut addresses = self.seeds.clone();
        addresses.extend(locked(&self.known).keys().filter(|address| !self.seeds.contains(address)).cloned());
        let mut first = None;
        for address in &addresses {
            match self.ask_one(&self.at(address), connector).await {
                Ok(shards) => return Ok(shards),
                Err(fault) => first = first.or(Some(fault)),
            }
        }
        Err(first.unwrap_or_else(|| Fault::new(Class::ClusterDown, self.seed())))
    }

    async fn ask_one(&self, node: &Node, connector: &Connector) -> Result<Shards, Fault> {
        let at = &node.address;
        let live = node.connection(connector).await?;
        // `CLUSTER SLOTS` changes nothing, so treat a missing answer like a missing connection.
        let answer = match within(connector.timeout, live.send(cmd("CLUSTER").arg("SLOTS"), at)).await {
            Some(Ok(answer)) => answer,
            Some(Err(fault)) if fault.class != Class::Lost => return Err(fault),
            _ => {
                node.discard(&live);
                return Err(Fault::new(Class::NotReached, at));
            }
        };
        let shards = shards(&answer, at).ok_or_else(|| Fault::new(Class::ClusterDown, at))?;
        if shards.is_empty() { Err(Fault::new(Class::ClusterDown, at)) } else { Ok(shards) }
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.seeds.iter().map(ToString::to_string)).finish()
    }
}

/// Parses the answer to `CLUSTER SLOTS`: an array for each range, with its first slot, its last slot and its nodes, the
/// primary first.
fn shards(answer: &Value, asked: &Address) -> Option<Shards> {
    let Value::Array(ranges) = answer else { return None };
    ranges.iter().map(|range| shard(range, asked)).collect()
}

fn shard(range: &Value, asked: &Address) -> Option<(RangeInclusive<u16>, Address)> {
    let Value::Array(range) = range else { return None };
    let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = range.as_slice() else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::Nil => "",
        _ => return None,
    };
    let address = Address::parse(&format!("{host}:{port}"), Some(asked))?;
    Some((u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from the specification, and from `CLUSTER KEYSLOT`.
    #[test]
    fn slots_come_from_keys_or_hash_tags() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        assert_eq!(slot("foo"), 12_182);
        assert_eq!(slot("{foo}bar"), 12_182);
        assert_eq!(slot("x{foo}{bar}"), 12_182);
        assert_eq!(slot("{}foo"), crc16(b"{}foo") % SLOTS);
        assert_eq!(slot("{foo"), crc16(b"{foo") % SLOTS);
    }

    #[test]
    fn only_well_formed_slot_answers_are_read() {
        let text = |text: &str| Value::BulkString(text.into());
        let node = |host, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |first, last, node| Value::Array(vec![Value::Int(first), Value::Int(last), node]);
        let asked = Address { host: "asked".into(), port: 1 };
        let answer = Value::Array(vec![
            range(0, 5460, node(text("::1"), 7000)),
            range(5461, 16_383, node(Value::Nil, 7001)),
        ]);
        let found = shards(&answer, &asked).unwrap();
        assert_eq!(found[0].1.to_string(), "[::1]:7000");
        assert_eq!(found[1], (5461..=16_383, Address { host: "asked".into(), port: 7001 }));
        for wrong in
            [Value::Nil, Value::Array(vec![Value::Nil]), Value::Array(vec![range(0, 70_000, Value::Nil)])]
        {
            assert_eq!(shards(&wrong, &asked), None);
        }
    }
}
