//! Get and list.

use std::fmt::Write as _;

use bytes::Bytes;
use serde_json::json;

use super::options::{At, Continue, ListOptions, parse_revision};
use super::selector::Selector;
use super::{Answer, ResourceCall};
use crate::codec::negotiate::View;
use crate::codec::status::Status;
use crate::store::{Page, PageQuery};

pub(super) fn get(request: &ResourceCall<'_>) -> Result<Answer, Status> {
    let asked =
        parse_revision(request.call.query.get("resourceVersion")).map_err(Status::bad_request)?;
    not_in_future(asked, request.api.store.revision())?;
    let stored = request
        .entry
        .table
        .get(&request.key())
        .ok_or_else(|| Status::not_found(&request.subject()))?;
    Ok(Answer::bytes(200, request.entry.bytes(&stored)))
}

fn not_in_future(asked: Option<u64>, current: u64) -> Result<(), Status> {
    match asked {
        Some(asked) if asked > current => Err(Status::revision_too_large(asked, current)),
        _ => Ok(()),
    }
}

/// Objects that match, and where the list goes on.
pub(super) struct Listed {
    pub(super) page: Page,
    pub(super) next: Option<String>,
    pub(super) remaining: Option<usize>,
}

pub(super) fn select(
    request: &ResourceCall<'_>,
    options: &ListOptions,
    selector: &Selector,
) -> Result<Listed, Status> {
    let mut query = PageQuery {
        namespace: request.target.namespace.as_deref(),
        limit: options.limit,
        ..PageQuery::default()
    };
    match options.at {
        At::Now => {}
        At::NotOlder(asked) => not_in_future(Some(asked), request.api.store.revision())?,
        At::Exactly(asked) => {
            not_in_future(Some(asked), request.api.store.revision())?;
            query.at = Some(asked);
        }
    }
    if let Some(next) = &options.next {
        query.after = Some(&next.after);
        query.at = next.revision;
        not_in_future(next.revision, request.api.store.revision())?;
    }
    let mut page = request
        .entry
        .table
        .page(query, |stored| selector.matches(stored))
        .map_err(|_| expired(options))?;
    let mut next = None;
    let mut remaining = None;
    if page.remaining > 0
        && let Some(last) = page.objects.last()
    {
        let token = Continue {
            revision: Some(page.revision),
            after: last.key.to_string(),
        };
        next = Some(token.encode());
        remaining = selector.is_everything().then_some(page.remaining);
    }
    if options
        .next
        .as_ref()
        .is_some_and(|next| next.revision.is_none())
    {
        // Going on in the present after the snapshot was lost: this page is the new anchor.
        page.revision = page.revision.max(1);
    }
    Ok(Listed {
        page,
        next,
        remaining,
    })
}

fn expired(options: &ListOptions) -> Status {
    let Some(next) = &options.next else {
        return Status::gone("The resourceVersion for the provided list is too old.");
    };
    let mut status = Status::gone(
        "The provided continue parameter is too old to display a consistent list result. Start a new list \
         without it, or go on with the continue token of this answer: the rest is then shown as it is now, \
         which need not fit what was shown before.",
    );
    let token = Continue {
        revision: None,
        after: next.after.clone(),
    };
    status.next = Some(token.encode().into());
    status
}

pub(super) fn list(request: &ResourceCall<'_>) -> Result<Answer, Status> {
    let query = &request.call.query;
    let options = ListOptions::parse(query, false)?;
    let resource = &request.entry.resource;
    let selector = Selector::parse(
        query.get("labelSelector"),
        query.get("fieldSelector"),
        resource,
    )?;
    let listed = select(request, &options, &selector)?;
    if request.call.form.view == View::Object && !request.call.form.yaml {
        return Ok(Answer::bytes(200, assemble(request, &listed)));
    }
    let items: Vec<_> = listed
        .page
        .objects
        .iter()
        .map(|stored| request.entry.read(stored))
        .collect();
    let mut meta = json!({"resourceVersion": listed.page.revision.to_string()});
    let next = match request.call.form.view {
        View::Table(_) => listed.next.as_deref(),
        _ => next_of(request, &listed),
    };
    if let Some(next) = next {
        meta["continue"] = next.into();
    }
    if let Some(remaining) = listed.remaining {
        meta["remainingItemCount"] = remaining.into();
    }
    Ok(Answer::value(
        200,
        json!({
            "kind": resource.list_kind,
            "apiVersion": request.entry.api_version(),
            "metadata": meta,
            "items": items,
        }),
    ))
}

/// The continue token; lists of custom resources always have one, if only an empty one.
fn next_of<'a>(request: &ResourceCall<'_>, listed: &'a Listed) -> Option<&'a str> {
    match &listed.next {
        Some(next) => Some(next),
        None => request.entry.resource.custom.is_some().then_some(""),
    }
}

/// The list as bytes: items are copied as they are stored.
fn assemble(request: &ResourceCall<'_>, listed: &Listed) -> Bytes {
    let size: usize = listed
        .page
        .objects
        .iter()
        .map(|stored| stored.bytes.len() + 1)
        .sum();
    let mut out = Vec::with_capacity(size + 256);
    let mut meta = String::new();
    if let Some(next) = next_of(request, listed) {
        let _ = write!(meta, ",\"continue\":\"{next}\"");
    }
    if let Some(remaining) = listed.remaining {
        let _ = write!(meta, ",\"remainingItemCount\":{remaining}");
    }
    let head = format!(
        "{{\"kind\":\"{}\",\"apiVersion\":\"{}\",\"metadata\":{{\"resourceVersion\":\"{}\"{meta}}},\"items\":[",
        request.entry.resource.list_kind,
        request.entry.api_version(),
        listed.page.revision,
    );
    out.extend_from_slice(head.as_bytes());
    for (position, stored) in listed.page.objects.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        request.entry.write_item(stored, &mut out);
    }
    out.extend_from_slice(b"]}");
    Bytes::from(out)
}
