//! What a simulated container shows: the lines its command would have printed, and the commands it
//! understands.

use k8s_openapi::api::core::v1::Pod;
use warp_apiserver::codec::status::Status;
use warp_apiserver::hooks::{ExecOptions, ExecSession, LogOptions};

use super::super::access::{Access, LogStream, said, text};
use super::{Simulated, command};

impl Access for Simulated {
    fn logs(&self, pod: &Pod, container: &str, options: &LogOptions) -> Result<LogStream, Status> {
        let started = pod
            .status
            .as_ref()
            .and_then(|status| {
                status
                    .container_statuses
                    .as_ref()?
                    .iter()
                    .find(|status| status.name == container)
            })
            .and_then(|status| {
                let state = status.state.as_ref()?;
                let running = state
                    .running
                    .as_ref()
                    .and_then(|running| running.started_at.clone());
                running.or_else(|| state.terminated.as_ref()?.started_at.clone())
            });
        let Some(started) = started else {
            return Err(Status::bad_request(format!(
                "container \"{container}\" in pod \"{}\" is waiting to start",
                pod.metadata.name.as_deref().unwrap_or_default()
            )));
        };
        let mut lines = self.output(pod, container);
        if let Some(tail) = options.tail_lines {
            let keep = usize::try_from(tail).unwrap_or(usize::MAX);
            lines.drain(..lines.len().saturating_sub(keep));
        }
        let stamp = if options.timestamps {
            format!("{} ", started.0)
        } else {
            String::new()
        };
        let whole: String = lines
            .iter()
            .map(|line| format!("{stamp}{line}\n"))
            .collect();
        let limit = options
            .limit_bytes
            .and_then(|limit| usize::try_from(limit).ok())
            .unwrap_or(usize::MAX);
        let mut bytes = whole.into_bytes();
        bytes.truncate(limit);
        Ok(text(bytes))
    }

    fn exec(
        &self,
        _pod: &Pod,
        _container: &str,
        options: &ExecOptions,
    ) -> Result<ExecSession, Status> {
        let script = command::read(&options.command).ok_or_else(|| {
            Status::not_implemented("a simulated container runs no programs: it understands echo, true, false, exit and sleep")
        })?;
        let output: String = script
            .output
            .iter()
            .map(|line| format!("{line}\n"))
            .collect();
        Ok(said(&output, script.code))
    }

    fn address(&self, _pod: &Pod) -> Option<String> {
        None
    }
}
