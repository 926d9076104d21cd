//! Columns of fixed width, whose cells are wrapped.

/// A column of a table in text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// Its width in characters. A longer cell is wrapped.
    pub(crate) width: usize,
    /// Whether its cells are aligned right.
    pub(crate) is_right: bool,
}

/// Adds a row to the text, indented by `indent` blanks. The last cell isn't wrapped.
pub(crate) fn write_row(text: &mut String, indent: usize, columns: &[Column], cells: &[String]) {
    let last = cells.len().saturating_sub(1);
    let wrapped: Vec<Vec<String>> = cells
        .iter()
        .enumerate()
        .map(|(at, cell)| if at == last { vec![cell.clone()] } else { wrap(cell, columns[at].width) })
        .collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or_default();
    for line in 0..height {
        let mut row = " ".repeat(indent);
        for (at, cell) in wrapped.iter().enumerate() {
            let part = cell.get(line).map_or("", String::as_str);
            match columns.get(at).filter(|_| at != last) {
                Some(Column { width, is_right: true }) => row.push_str(&format!("{part:>width$}  ")),
                Some(Column { width, is_right: false }) => row.push_str(&format!("{part:<width$}  ")),
                None => row.push_str(part),
            }
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
}

/// Breaks a text at blanks. A word that is longer than the column is broken at the column's edge.
pub(crate) fn wrap(cell: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in cell.split(' ') {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let line = lines.last_mut().map(|line| (line.chars().count(), line));
            let Some((used, line)) = line else { break };
            let blank = usize::from(used > 0);
            if used + blank + word.len() <= width {
                line.extend(std::iter::repeat_n(' ', blank).chain(word.drain(..)));
                break;
            }
            if used == 0 {
                line.extend(word.drain(..width));
            }
            lines.push(String::new());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_words_break_at_column_width() {
        assert_eq!(wrap("ab abcdefgh c", 4), ["ab", "abcd", "efgh", "c"]);
    }
}
