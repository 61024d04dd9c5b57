//! Questions to the server: who am I, may I, whose token is this. RBAC objects are stored and not
//! evaluated, so everyone who is authenticated may do everything, and the answer says so.

use serde_json::json;

use super::options::WriteOptions;
use super::write::{Mode, writer};
use super::{Answer, ResourceCall, token};
use crate::codec::body;
use crate::codec::negotiate::View;
use crate::codec::status::Status;
use crate::patch::managed;
use crate::registry::Review;

const REASON: &str =
    "the embedded engine does not evaluate RBAC: every authenticated user may do everything";

pub(super) fn answer(request: &ResourceCall<'_>, review: Review) -> Result<Answer, Status> {
    let call = &request.call;
    if matches!(call.form.view, View::Table(_)) {
        return Err(Status::not_acceptable());
    }
    let mut object = body::decode_object(&call.content_type, &call.body)?.value;
    let resource = &request.entry.resource;
    let options = WriteOptions::parse(&call.query, &call.user_agent, "CreateOptions", false)?;
    let Some(map) = object.as_object_mut() else {
        return Err(Status::bad_request("the body must be an object"));
    };
    map.insert("kind".into(), resource.kind.clone().into());
    map.insert("apiVersion".into(), request.entry.api_version().into());
    map.entry("metadata").or_insert_with(|| json!({}));
    if review == Review::Token {
        let now = request.api.clock.now_text();
        let writer = writer(request, &options, &now, Mode::Main);
        managed::update(None, &mut object, &writer);
    }
    object["status"] = match review {
        Review::SelfSubject => json!({"userInfo": token::user_info(&call.user)}),
        Review::SelfSubjectAccess | Review::SubjectAccess | Review::LocalSubjectAccess => {
            json!({"allowed": true, "reason": REASON})
        }
        Review::SelfSubjectRules => json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        }),
        Review::Token => token::review(request, &object),
    };
    Ok(Answer::value(201, object))
}
