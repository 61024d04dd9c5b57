//! What must hold of rented machines at every moment, by the books of the fake cloud: each was intended before it was
//! bought, a container for a pod, each attempt has one, a request has two only while one is taken back, nothing is bought before all that belongs
//! together is intended, and no request goes before its machine.

use serde_json::Value;
use warp_testkit::fault::history::{Change, text};
use warp_testkit::fault::judge::{Moment, name};

/// On the ConfigMap with the books.
const BOOKS: &str = "/metadata/labels/gpu.warp.dev~1fake-cloud";

fn machines(books: &Value) -> Vec<Value> {
    serde_json::from_str(text(books, "/data/machines")).unwrap_or_default()
}

/// The machines of ours: those that the test itself put into the books belong to nobody.
fn ours(books: &Value) -> Vec<Value> {
    let mut all = machines(books);
    all.retain(|machine| !text(machine, "/owner").is_empty());
    all
}

/// Whether a machine was still there at a time.
fn is_there(machine: &Value, at: &str) -> bool {
    let ended = text(machine, "/ended");
    // Times of the books are whole seconds in one form: their text sorts as they do.
    ended.is_empty() || ended > at
}

/// The uid in a machine's name: the request it is for.
fn request(machine: &str) -> &str {
    machine.rsplit_once('-').map_or(machine, |(rest, _)| rest)
}

/// What was bought in this change may be bought.
pub(crate) fn bought(change: &Change, moment: &Moment, wrong: &mut Vec<String>) {
    if text(&change.object, BOOKS).is_empty() {
        return;
    }
    let before = change.previous.as_ref().map(machines).unwrap_or_default();
    let known = |machine: &Value| before.iter().any(|one| one["id"] == machine["id"]);
    let all = ours(&change.object);
    for machine in all.iter().filter(|machine| !known(machine)) {
        let (own, at) = (text(machine, "/name"), text(machine, "/launched"));
        let attempts = moment.all("GPURequest").flat_map(|request| {
            let attempts = request["status"]["attempts"].as_array();
            attempts.into_iter().flatten()
        });
        let mut intents = attempts.filter(|attempt| text(attempt, "/machine") == own);
        match intents.next() {
            None => wrong.push(format!("{own} was bought and nobody had intended it")),
            Some(intent) if !text(intent, "/outcome").is_empty() => {
                wrong.push(format!("{own} was bought for an attempt that is over"));
            }
            Some(intent)
                if machine["container"].is_object() && text(intent, "/pod/uid").is_empty() =>
            {
                wrong.push(format!("{own} was bought for no pod"));
            }
            Some(_) => {}
        }
        whole(own, moment, wrong);
        let others = all.iter().filter(|other| other["id"] != machine["id"]);
        for other in others.filter(|other| is_there(other, at)) {
            let theirs = text(other, "/name");
            if theirs == own {
                wrong.push(format!("{own} was bought while there is one of that name"));
            } else if request(theirs) == request(own) && other["preempted"] != true {
                wrong.push(format!(
                    "{own} was bought while {theirs} of the same request runs"
                ));
            }
        }
    }
}

/// All that belong together with a machine that was bought were intended too: their money is reserved.
fn whole(bought: &str, moment: &Moment, wrong: &mut Vec<String>) {
    let attempts = |request: &Value| request["status"]["attempts"].as_array().cloned();
    let has = |request: &&Value| {
        let mut attempts = attempts(request).into_iter().flatten();
        attempts.any(|attempt| text(&attempt, "/machine") == bought)
    };
    let Some(own) = moment.all("GPURequest").find(has) else {
        return;
    };
    let together = &own["spec"]["together"];
    let Some(machines) = together["machines"].as_u64() else {
        return;
    };
    let company = moment
        .all("GPURequest")
        .filter(|request| request["spec"]["together"]["name"] == together["name"]);
    let intended = company.filter(|request| attempts(request).is_some_and(|all| !all.is_empty()));
    let intended = intended.count() as u64;
    if intended < machines {
        wrong.push(format!(
            "{bought} was bought when {intended} of the {machines} that belong together were intended"
        ));
    }
}

/// No machine is left of a request that goes.
pub(crate) fn left(gone: &Value, moment: &Moment, wrong: &mut Vec<String>) {
    let uid = text(gone, "/metadata/uid");
    let books = moment
        .all("ConfigMap")
        .filter(|object| !text(object, BOOKS).is_empty());
    for machine in books.flat_map(ours) {
        let its = request(text(&machine, "/name")).ends_with(uid);
        if its && text(&machine, "/ended").is_empty() {
            let what = text(&machine, "/name");
            wrong.push(format!("{} went while its machine {what} runs", name(gone)));
        }
    }
}
