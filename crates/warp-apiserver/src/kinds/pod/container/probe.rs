//! Lifecycle handlers and probes of containers.

use serde_json::Value;

use super::Surroundings;
use crate::kinds::checks::{Errors, not_negative, one_of_if_set, port, port_number, required};
use crate::kinds::fields::{at, list, number, text};
use crate::schema::{FieldError, Path};

pub(super) fn lifecycle_and_probes(
    container: &Value,
    path: &Path,
    around: &Surroundings<'_>,
    errors: &mut Errors,
) {
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = at(container, &format!("lifecycle.{hook}")) {
            handlers(
                handler,
                &path.child("lifecycle").child(hook),
                around.grace_period,
                errors,
            );
        }
    }
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = at(container, name) else {
            continue;
        };
        let path = path.child(name);
        handlers(probe, &path, around.grace_period, errors);
        for field in [
            "initialDelaySeconds",
            "timeoutSeconds",
            "periodSeconds",
            "successThreshold",
            "failureThreshold",
        ] {
            not_negative(probe, field, &path, errors);
        }
        let grace = number(probe, "terminationGracePeriodSeconds");
        let grace_path = path.child("terminationGracePeriodSeconds");
        if let Some(seconds) = grace.filter(|seconds| *seconds <= 0) {
            errors.push(FieldError::invalid(
                &grace_path,
                seconds,
                "must be greater than 0",
            ));
        }
        if name == "readinessProbe" {
            if let Some(seconds) = grace {
                let detail = "must not be set for readinessProbes";
                errors.push(FieldError::invalid(&grace_path, seconds, detail));
            }
        } else if let Some(times) = number(probe, "successThreshold").filter(|times| *times != 1) {
            errors.push(FieldError::invalid(
                &path.child("successThreshold"),
                times,
                "must be 1",
            ));
        }
    }
}

fn handlers(handler: &Value, path: &Path, grace_period: i64, errors: &mut Errors) {
    let mut found = 0;
    for kind in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let Some(action) = at(handler, kind) else {
            continue;
        };
        let path = path.child(kind);
        found += 1;
        if found > 1 {
            errors.push(FieldError::forbidden(
                &path,
                "may not specify more than 1 handler type",
            ));
            continue;
        }
        match kind {
            "exec" => {
                if list(action, "command").is_empty() {
                    errors.push(FieldError::required(&path.child("command"), ""));
                }
            }
            "httpGet" => {
                required(text(action, "path"), &path.child("path"), errors);
                port(action.get("port"), &path.child("port"), errors);
                one_of_if_set(action, "scheme", &["HTTP", "HTTPS"], &path, errors);
                for header in list(action, "httpHeaders") {
                    http_header(text(header, "name"), &path.child("httpHeaders"), errors);
                }
            }
            "tcpSocket" => port(action.get("port"), &path.child("port"), errors),
            "grpc" => port_number(
                number(action, "port").unwrap_or(0),
                &path.child("port"),
                errors,
            ),
            _ => {
                let seconds = number(action, "seconds").unwrap_or(0);
                if !(0..=grace_period).contains(&seconds) {
                    let detail = format!(
                        "must be non-negative and less than terminationGracePeriodSeconds \
                         ({grace_period}). Enable AllowPodLifecycleSleepActionZeroValue feature \
                         gate for zero sleep."
                    );
                    errors.push(FieldError::invalid(&path, seconds, detail));
                }
            }
        }
    }
    if found == 0 {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
}

fn http_header(name: &str, path: &Path, errors: &mut Errors) {
    let valid = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    if !valid {
        let detail = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. \
                      'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
        errors.push(FieldError::invalid(path, name, detail));
    }
}
