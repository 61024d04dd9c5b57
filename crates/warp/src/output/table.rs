//! Tables like kubectl's: columns as wide as their widest cell, three spaces between, headers in
//! capitals. Cells come from the server's own Table answers or from the caller.

use serde_json::Value;

/// Rows under a header.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<'a>(header: impl AsRef<[&'a str]>) -> Self {
        Self {
            header: header
                .as_ref()
                .iter()
                .map(|name| (*name).to_owned())
                .collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }

    /// A server's answer to `as=Table`. `wide` shows the columns of lower priority too, `namespaces`
    /// puts each row's namespace first.
    pub(crate) fn from_server(answer: &Value, wide: bool, namespaces: bool) -> Self {
        let columns = array(answer, "columnDefinitions");
        let shown: Vec<usize> = columns
            .iter()
            .enumerate()
            .filter(|(_, column)| {
                wide || column.get("priority").and_then(Value::as_i64).unwrap_or(0) == 0
            })
            .map(|(index, _)| index)
            .collect();
        let name = |index: &usize| cell(columns[*index].get("name")).to_uppercase();
        let lead = |text: &str| namespaces.then(|| text.to_owned());
        let header = lead("NAMESPACE")
            .into_iter()
            .chain(shown.iter().map(name))
            .collect();
        let rows = array(answer, "rows")
            .iter()
            .map(|row| {
                let cells = array(row, "cells");
                let namespace = row
                    .pointer("/object/metadata/namespace")
                    .and_then(Value::as_str);
                lead(namespace.unwrap_or_default())
                    .into_iter()
                    .chain(shown.iter().map(|index| cell(cells.get(*index))))
                    .collect()
            })
            .collect();
        Self { header, rows }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The text, with or without the header.
    pub(crate) fn render(&self, with_header: bool) -> String {
        let lines: Vec<&Vec<String>> = with_header
            .then_some(&self.header)
            .into_iter()
            .chain(&self.rows)
            .collect();
        // The header counts even when left out, so that rows printed later line up with it.
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| {
                std::iter::once(&self.header)
                    .chain(&self.rows)
                    .filter_map(|row| row.get(column))
                    .map(|cell| cell.chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for line in lines {
            let mut row = String::new();
            for (cell, width) in line.iter().zip(&widths) {
                row.extend([format!("{cell:<width$}   ")]);
            }
            text += row.trim_end();
            text.push('\n');
        }
        text
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.render(true))
    }
}

fn array<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "<none>".to_owned(),
        // One row is one line, whatever a message holds.
        Some(Value::String(text)) => text.replace('\n', " "),
        Some(other) => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Table;

    #[test]
    fn columns_line_up_and_wide_ones_stay_hidden() {
        let answer = json!({
            "columnDefinitions": [{"name": "Name"}, {"name": "Node", "priority": 1}, {"name": "Age"}],
            "rows": [
                {"cells": ["long-name", "n1", "3m"], "object": {"metadata": {"namespace": "a"}}},
                {"cells": ["x", null, 4], "object": {"metadata": {"namespace": "b"}}}]});
        let narrow = Table::from_server(&answer, false, false).render(true);
        assert_eq!(narrow, "NAME        AGE\nlong-name   3m\nx           4\n");
        let wide = Table::from_server(&answer, true, true).render(false);
        assert_eq!(
            wide,
            "a           long-name   n1       3m\nb           x           <none>   4\n"
        );
    }
}
