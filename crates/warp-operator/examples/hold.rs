use warp_testkit::{Cluster, NodeShape};
#[tokio::main]
async fn main() {
    let n: usize = std::env::args().nth(1).and_then(|t| t.parse().ok()).unwrap_or(3);
    let c = Cluster::real().nodes(NodeShape::h100(8), n).audited().quick_node_loss().start().await.unwrap();
    println!("{}", c.kubeconfig().display());
    println!("{}", c.folder().display());
    let mut s = String::new();
    tokio::task::spawn_blocking(move || std::io::stdin().read_line(&mut s)).await.unwrap().unwrap();
    drop(c);
}
