//! What should happen when the spec changes while a Job made from it exists: what has not started is replaced, what runs
//! goes on and says that it is of the spec before. Pure.

use kube::ResourceExt;
use warp_api::{Phase, reason};

use super::{Pass, Standing, current};
use crate::workload::course::Course;
use crate::workload::say::Say;
use crate::workload::spec_hash::outdated;

impl Pass<'_> {
    /// Whether the current Job was made from another spec and nothing of it runs. What ends is left to end: how it
    /// does decides what comes next, and that is made from the new spec.
    pub(super) fn is_of_an_older_spec(&self, standing: &Standing) -> bool {
        let replaceable = match standing {
            Standing::Waiting(wait) => wait.phase != Phase::Running,
            Standing::Gated(_) | Standing::Refused { .. } | Standing::JobSuspended { .. } => true,
            _ => false,
        };
        replaceable && self.has_older_job()
    }

    fn has_older_job(&self) -> bool {
        let job = current(self.workload, self.seen);
        job.is_some_and(|job| outdated(self.workload, job))
    }

    /// The Job goes, and the same attempt is placed anew.
    pub(super) fn spec_changed(mut self) -> Course {
        let seen = self.seen;
        let Some(job) = current(self.workload, seen) else {
            return Course::default();
        };
        self.steps.delete_version(job);
        self.steps
            .because("it was made from an older spec and has not started");
        self.clear_place();
        self.status.next_retry_time = None;
        let say = Say {
            phase: Phase::Pending,
            ready: false,
            reason: reason::SPEC_CHANGED,
            message: format!(
                "the spec changed before Job {} had started; it is placed anew",
                job.name_any()
            ),
        };
        self.transition(&say, None, false)
    }

    /// Said of what runs, when that is not what the spec says now.
    pub(super) fn of_which_spec(&self) -> &'static str {
        if self.has_older_job() {
            "; it was started from the spec before its last change, which holds from the next attempt on: set suspend to true and false again to begin one"
        } else {
            ""
        }
    }
}
