//! A cloud on a free port of this machine, until it is dropped.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use crate::{Outcome, Vendor};

/// No request is larger.
const REQUEST_LIMIT_BYTES: usize = 4 << 20;

/// A cloud that is reached over the network.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Where it is, as a base address.
    pub fn address(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Vendor {
    /// Serves this cloud on 127.0.0.1.
    pub async fn serve(&self) -> std::io::Result<Server> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let vendor = self.clone();
        let task = tokio::spawn(async move {
            // Connections end with the server.
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.spawn(connection(vendor.clone(), stream));
            }
        });
        Ok(Server { address, task })
    }
}

async fn connection(vendor: Vendor, stream: TcpStream) {
    let service = service_fn(move |request: Request<Incoming>| {
        let vendor = vendor.clone();
        async move { one(&vendor, request).await }
    });
    // A connection that breaks is a client's business.
    let _ = hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// A hang-up breaks the connection by being an error.
async fn one(
    vendor: &Vendor,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let body = Limited::new(body, REQUEST_LIMIT_BYTES).collect().await;
    let body = body.map_err(std::io::Error::other)?.to_bytes();
    let mut outcome = vendor.answer(&Request::from_parts(parts, body));
    loop {
        match outcome {
            Outcome::Answered(response) => return Ok(response.map(Full::new)),
            Outcome::HungUp => return Err(std::io::Error::other("hung up")),
            Outcome::Later(time, inner) => {
                tokio::time::sleep(time).await;
                outcome = *inner;
            }
        }
    }
}
