//! What a simulated container shows: the lines its command would have printed. Whatever only a real process could
//! answer is refused with the reason.
#![allow(
    clippy::result_large_err,
    reason = "the API server's own error, made once per refused request"
)]

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use warp_apiserver::codec::status::Status;
use warp_apiserver::hooks::{ExecOptions, ExecSession, HookFuture, LogOptions};

use super::super::access::{Access, LogStream, text};
use super::Simulated;
use crate::informer::Source;
use crate::informer::feed::{self, Change};
use crate::informer::store::typed;

impl Access for Simulated {
    fn logs(&self, pod: &Pod, container: &str, options: &LogOptions) -> Result<LogStream, Status> {
        let state = status_of(pod, container).and_then(|status| status.state.clone());
        let started = state.as_ref().and_then(|state| {
            let running = state.running.as_ref();
            running
                .and_then(|running| running.started_at.clone())
                .or_else(|| state.terminated.as_ref()?.started_at.clone())
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
            .flat_map(|line| [&stamp, line.as_str(), "\n"])
            .collect();
        let limit = options
            .limit_bytes
            .and_then(|limit| usize::try_from(limit).ok())
            .unwrap_or(usize::MAX);
        let mut bytes = whole.into_bytes();
        bytes.truncate(limit);
        let Some(client) = self
            .client
            .clone()
            .filter(|_| options.follow && running(pod, container).is_some())
        else {
            return Ok(text(bytes));
        };
        // It printed all it ever will; whoever follows is let go when it ends.
        let end = until_ended(client, pod.clone(), container.to_owned());
        let wait = futures::stream::once(end).filter_map(async |()| None);
        Ok(text(bytes).chain(wait).boxed())
    }

    fn exec(
        &self,
        pod: &Pod,
        _container: &str,
        _options: &ExecOptions,
    ) -> Result<ExecSession, Status> {
        Err(nothing_runs(pod, "exec"))
    }

    fn attach(
        &self,
        pod: &Pod,
        _container: &str,
        _options: &ExecOptions,
    ) -> Result<ExecSession, Status> {
        Err(nothing_runs(pod, "attach"))
    }

    fn addresses(&self, pod: &Pod) -> HookFuture<Vec<String>> {
        Box::pin(std::future::ready(Err(nothing_runs(pod, "port-forward"))))
    }
}

/// What is said where only a real process could answer.
fn nothing_runs(pod: &Pod, what: &str) -> Status {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    Status::not_implemented(format!(
        "pod \"{}\" runs on simulated node \"{}\": nothing really runs there, so {what} is not possible; use a process node (`warp up` without --demo and --nodes)",
        pod.metadata.name.as_deref().unwrap_or_default(),
        node.unwrap_or_default()
    ))
}

fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses)
        .flatten()
        .find(|status| status.name == container)
}

/// Which run the container is in, while it runs.
fn running(pod: &Pod, container: &str) -> Option<i32> {
    let status = status_of(pod, container)?;
    status.state.as_ref()?.running.as_ref()?;
    Some(status.restart_count)
}

/// Resolves when the run that `pod` shows is over, or nobody can tell any more.
async fn until_ended(client: kube::Client, pod: Pod, container: String) {
    let name = pod.metadata.name.clone().unwrap_or_default();
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let over = |now: Option<Arc<Pod>>| {
        now.is_none_or(|now| {
            now.metadata.uid != pod.metadata.uid
                || running(&now, &container) != running(&pod, &container)
        })
    };
    let mut changes = feed::of::<Pod>(client, Source::named::<Pod>(&namespace, &name));
    while let Some(change) = changes.next().await {
        let ended = match change {
            Change::Listed(found, _) => over(found.into_iter().next().map(typed)),
            Change::Set(now) => over(Some(typed(now))),
            Change::Removed(_) => true,
            Change::Reached(_) => false,
        };
        if ended {
            return;
        }
    }
}
