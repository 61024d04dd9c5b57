//! Questions to the server: who am I, may I, whose token is this. RBAC objects are stored and not
//! evaluated, so everyone who is authenticated may do everything, and the answer says so.

use serde_json::{Value, json};

use super::{Answer, ResourceCall};
use crate::auth::User;
use crate::codec::body;
use crate::codec::negotiate::View;
use crate::codec::status::Status;
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
    let Some(map) = object.as_object_mut() else {
        return Err(Status::bad_request("the body must be an object"));
    };
    map.insert("kind".into(), resource.kind.clone().into());
    map.insert("apiVersion".into(), request.entry.api_version().into());
    map.entry("metadata").or_insert_with(|| json!({}));
    object["status"] = match review {
        Review::SelfSubject => json!({"userInfo": user_info(&call.user)}),
        Review::SelfSubjectAccess | Review::SubjectAccess | Review::LocalSubjectAccess => {
            json!({"allowed": true, "reason": REASON})
        }
        Review::SelfSubjectRules => json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        }),
        Review::Token => token_review(request, &object),
    };
    Ok(Answer::value(201, object))
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.clone().into();
    }
    info
}

fn token_review(request: &ResourceCall<'_>, object: &Value) -> Value {
    let token = object["spec"]["token"].as_str().unwrap_or_default();
    match request.api.auth.verify(token, request.api.clock.now()) {
        Some(user) => json!({
            "authenticated": true,
            "user": user_info(&user),
            "audiences": object["spec"]["audiences"]
                .as_array()
                .cloned()
                .unwrap_or_else(|| vec![crate::auth::ISSUER.into()]),
        }),
        None => json!({
            "user": {},
            "error": "[invalid bearer token, token lookup failed]",
        }),
    }
}
