use std::sync::Arc;

use super::{Ask, view};
use crate::estimate::{Durations, Features};
use crate::fleet::{Cards, Fleet, GpuPool, GpuRequest, Node, Request, Taken, Work, WorkState};
use crate::queue::job::{Job, Shape};
use crate::queue::node_set::End;
use crate::queue::state::State;
use crate::queue::{Policy as _, warp::Warp};

fn node(name: &str, model: &str, gpus: usize) -> Node {
    let mut node = Node {
        name: Arc::from(name),
        gpus: vec![GpuPool::nvidia(model, 80 << 30, Cards::each(gpus))],
        ..Node::default()
    };
    node.allocatable.set("cpu", "64").unwrap();
    node.allocatable.set("memory", "512Gi").unwrap();
    node
}

fn request(count: u32, models: &[&str]) -> Request {
    Request {
        gpu: Some(GpuRequest::whole(count).models(models)),
        ..Request::default()
    }
}

fn work(id: &str, node: &str, cards: &[u16]) -> Work {
    Work {
        id: Arc::from(id),
        request: Arc::new(request(u32::try_from(cards.len()).unwrap(), &[])),
        node: Arc::from(node),
        gpus: Some(Taken {
            pool: 0,
            cards: cards.to_vec(),
        }),
        since: 0,
        state: WorkState::Running,
    }
}

fn fleet() -> Fleet {
    let mut cordoned = node("c", "A100", 8);
    cordoned.unschedulable = true;
    let nodes = [node("a", "A100", 8), node("b", "V100", 4), cordoned];
    let works = [work("mine", "a", &[0, 1]), work("other", "b", &[3])];
    Fleet::rebuild(nodes, works).unwrap()
}

#[test]
fn each_request_sees_the_nodes_it_could_ever_use() {
    let (any, a100, h100, wide) = (
        request(2, &[]),
        request(8, &["A100"]),
        request(1, &["H100"]),
        request(5, &["V100"]),
    );
    let asks = [&any, &a100, &h100, &wide].map(|request| Ask {
        request,
        members: 1,
    });
    let live = view(&fleet(), &asks, &|work| &*work.id == "mine");
    // 8 + 8 + 4, less the one GPU of work that is not ours.
    assert_eq!((live.pool.total(), live.pool.free()), (20, 19));
    let fits = |at: usize| live.pool.fit(&live.needs[at], None, End::Low);
    assert!(fits(0).is_some());
    // The cordoned node is idle but nobody's.
    assert_eq!(live.needs[1].accepts.len(), 1);
    let taken = fits(1).unwrap().parts()[0].0;
    let fleet = fleet();
    assert_eq!(&*fleet.node(live.nodes[taken as usize]).unwrap().name, "a");
    assert!(live.needs[2].accepts.is_empty() && live.needs[3].accepts.is_empty());
}

#[test]
fn the_simulators_policy_runs_over_a_live_fleet() {
    let fleet = fleet();
    let asks = [request(4, &["V100"]), request(6, &[])];
    let asks: Vec<Ask<'_>> = asks
        .iter()
        .map(|request| Ask {
            request,
            members: 1,
        })
        .collect();
    let live = view(&fleet, &asks, &|_| false);
    let mut state = State::new(live.pool);
    let (mut policy, mut durations) = (Warp::default(), Durations::default());
    let group = durations.group(&Features::default());
    for (id, need) in (0..).zip(live.needs) {
        let gpus = need.shape.gpus();
        let need = state.intern(need);
        let job = Job::new(id, 0.0, need, gpus, group);
        state.submit(job, &policy, &mut durations);
    }
    policy.pass(&mut state, &mut durations);
    let started: Vec<u64> = state
        .running()
        .iter()
        .map(|slot| state.job(*slot).id)
        .collect();
    // The V100 node has three GPUs left, the A100 node six.
    assert_eq!(started, [1]);
}

#[test]
fn a_gang_keeps_its_members() {
    let member = request(3, &[]);
    let live = view(
        &fleet(),
        &[Ask {
            request: &member,
            members: 2,
        }],
        &|_| false,
    );
    assert_eq!(live.needs[0].shape, Shape::Members { count: 2, gpus: 3 });
    assert!(live.pool.fit(&live.needs[0], None, End::Low).is_some());
}
