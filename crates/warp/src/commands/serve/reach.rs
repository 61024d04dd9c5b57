//! A way to a service's engines from wherever the verb runs: directly where an address is of this machine, else through
//! the cluster's API.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, bail};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use warp_api::{InferenceService, label};

use crate::cluster::{Connection, told};

/// A service and its engines.
#[derive(Debug)]
pub(crate) struct Reach {
    pub(crate) model: String,
    port: u16,
    /// Pods that answer, with their addresses.
    pods: Vec<(String, String)>,
    api: Api<Pod>,
    next: AtomicUsize,
}

impl Reach {
    pub(crate) async fn find(connection: &Connection, name: &str) -> anyhow::Result<Self> {
        let services: Api<InferenceService> =
            Api::namespaced(connection.client.clone(), &connection.namespace);
        let service = services
            .get(name)
            .await
            .map_err(told)
            .with_context(|| format!("failed to find the service {name}"))?;
        let status = service.status.clone().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(connection.client.clone(), &connection.namespace);
        // Of a copy that spans nodes only the leader answers.
        let ours = format!(
            "{}={name},{}!=worker",
            label::INFERENCE_SERVICE,
            label::SERVING_ROLE
        );
        let ours = ListParams::default().labels(&ours);
        let pods = api
            .list(&ours)
            .await
            .map_err(told)
            .with_context(|| format!("failed to list the pods of {name}"))?;
        let pods: BTreeMap<String, String> = pods.iter().filter_map(answering).collect();
        if pods.is_empty() {
            bail!(
                "no copy of {name} answers: {}",
                status
                    .message
                    .unwrap_or_else(|| "the operator has not looked at it yet".to_owned())
            );
        }
        Ok(Self {
            model: service.spec.model.served_name().to_owned(),
            port: u16::try_from(service.spec.port).context("its port is none")?,
            pods: pods.into_iter().collect(),
            api,
            next: AtomicUsize::new(0),
        })
    }

    pub(crate) fn copies(&self) -> usize {
        self.pods.len()
    }

    /// A connection to the next copy in turn.
    pub(crate) async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.pods.len().max(1);
        let (pod, address) = self.pods.get(turn).context("no copy answers")?;
        if address.starts_with("127.") {
            let stream = TcpStream::connect((address.as_str(), self.port))
                .await
                .with_context(|| format!("failed to reach {address}:{}", self.port))?;
            stream.set_nodelay(true).ok();
            return handshake(stream).await;
        }
        let mut forwarder = self
            .api
            .portforward(pod, &[self.port])
            .await
            .map_err(told)
            .with_context(|| format!("failed to reach port {} of pod {pod}", self.port))?;
        let stream = forwarder
            .take_stream(self.port)
            .context("the cluster offers no way to the port")?;
        // It ends with its stream.
        tokio::spawn(forwarder.join());
        handshake(stream).await
    }

    pub(crate) fn request(
        &self,
        body: &serde_json::Value,
    ) -> anyhow::Result<http::Request<Full<Bytes>>> {
        let request = http::Request::post("/v1/chat/completions")
            .header("Host", format!("localhost:{}", self.port))
            .header("Content-Type", "application/json");
        let request = match std::env::var("OPENAI_API_KEY") {
            Ok(key) if !key.is_empty() => request.header("Authorization", format!("Bearer {key}")),
            _ => request,
        };
        Ok(request.body(Full::new(Bytes::from(body.to_string())))?)
    }
}

async fn handshake<S>(stream: S) -> anyhow::Result<SendRequest<Full<Bytes>>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .context("the engine does not speak HTTP")?;
    // Ends when the sender is dropped or the engine hangs up.
    tokio::spawn(connection);
    Ok(sender)
}

/// The name and address of a pod that answers.
fn answering(pod: &Pod) -> Option<(String, String)> {
    let status = pod.status.as_ref()?;
    let ready = status
        .conditions
        .iter()
        .flatten()
        .any(|found| found.type_ == "Ready" && found.status == "True");
    let going = pod.metadata.deletion_timestamp.is_some();
    (ready && !going).then_some(())?;
    Some((pod.metadata.name.clone()?, status.pod_ip.clone()?))
}

/// What a stream of events says, piece by piece.
#[derive(Debug, Default)]
pub(crate) struct Events {
    buffer: Vec<u8>,
}

impl Events {
    /// The data of every event that is whole once `bytes` have come.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        self.buffer.extend_from_slice(bytes);
        let mut found = Vec::new();
        while let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
            let text = String::from_utf8_lossy(&event);
            let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
            found.extend(data.map(str::to_owned));
        }
        found
    }
}

/// The body of an answer that is none, in the engine's own words.
pub(crate) async fn refusal(answer: http::Response<Incoming>) -> anyhow::Error {
    use http_body_util::BodyExt as _;
    let status = answer.status();
    let body = match answer.into_body().collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return anyhow::Error::from(error).context("the answer broke off"),
    };
    let value: serde_json::Value = serde_json::from_slice(&body).unwrap_or_default();
    let words = value["error"]["message"].as_str().map_or_else(
        || String::from_utf8_lossy(&body).into_owned(),
        str::to_owned,
    );
    anyhow::anyhow!("the engine answers {status}: {words}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_they_are_cut() {
        let stream = b"data: {\"a\":1}\n\ndata: [DONE]\n\n";
        for cut in 0..stream.len() {
            let mut events = Events::default();
            let mut all = events.take(&stream[..cut]);
            all.extend(events.take(&stream[cut..]));
            assert_eq!(all, ["{\"a\":1}", "[DONE]"]);
        }
    }
}
