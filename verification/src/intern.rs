//! Maps large values to small numbers, so that an explored state takes a hundred bytes instead of three
//! thousand.

use std::{collections::HashMap, hash::Hash, rc::Rc};

/// Gives equal values the same number, and returns the value of a number. Numbers start at 1; 0 means "none".
#[derive(Debug)]
pub struct Interner<T> {
    values: Vec<Rc<T>>,
    numbers: HashMap<Rc<T>, u32>,
}

impl<T: Eq + Hash> Interner<T> {
    /// The number of `value`.
    pub fn number(&mut self, value: T) -> u32 {
        if let Some(&number) = self.numbers.get(&value) {
            return number;
        }
        let value = Rc::new(value);
        self.values.push(Rc::clone(&value));
        let number = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.numbers.insert(value, number);
        number
    }

    /// The value of `number`, if there is one.
    pub fn get(&self, number: u32) -> Option<&Rc<T>> {
        self.values.get((number as usize).wrapping_sub(1))
    }

    /// How many distinct values there are.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no values yet.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { values: Vec::new(), numbers: HashMap::new() }
    }
}
