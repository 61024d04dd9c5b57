//! Parts of a page that are generated: a page cannot say anything else than the data a test works with.
//!
//! A part stands between `<!-- NAME: generated -->` and `<!-- end of NAME -->`. Must not know what the parts say.

use anyhow::{Context, Result, bail};

use crate::repository;

/// Checks that the part `name` of the page at `path` (from the repository's root) is `text`. With `UPDATE=1` in the
/// environment it is written instead.
pub fn check_part(path: &str, name: &str, text: &str) -> Result<()> {
    let file = repository().join(path);
    let page = std::fs::read_to_string(&file).with_context(|| format!("failed to read {path}"))?;
    let (begin, end) = (
        format!("<!-- {name}: generated -->\n"),
        format!("<!-- end of {name} -->"),
    );
    let from = page.find(&begin).map(|at| at + begin.len());
    let range = from.and_then(|from| Some(from..from + page[from..].find(&end)?));
    let Some(range) = range else {
        bail!("failed to find the part {name} in {path}: it stands between '{begin}' and '{end}'");
    };
    let wanted = format!("{}\n", text.trim_end());
    if page[range.clone()] == wanted {
        return Ok(());
    }
    if std::env::var_os("UPDATE").is_some() {
        let mut page = page;
        page.replace_range(range, &wanted);
        std::fs::write(&file, page).with_context(|| format!("failed to write {path}"))?;
        return Ok(());
    }
    bail!(
        "the part {name} of {path} is out of date: run this test with UPDATE=1 and read what changed. It should be:\n{wanted}"
    );
}
