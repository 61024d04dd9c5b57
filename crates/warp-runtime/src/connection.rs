//! Connections to an API server that notice when they have died silently: a peer that is gone without a word (a lost
//! machine, a firewall that forgot the connection) is asked for a sign of life every 30 seconds over HTTP/2 and given
//! up 15 seconds later, as client-go does. Watches then end and are begun again, instead of saying nothing for minutes.
//!
//! kube's own connector speaks HTTP/1.1 alone, which has no such sign. A server that offers only that is watched over
//! by TCP keep-alive, which finds lost machines but not a peer that merely hangs.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::legacy::{Builder, Client};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tower::util::BoxService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt};

/// How long a connection may be silent before the peer is asked for a sign of life, and how long that may take.
pub const SILENCE: Duration = Duration::from_secs(30);
pub const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
/// Time to open a connection.
const CONNECT: Duration = Duration::from_secs(10);

type Answer = http::Response<hyper::body::Incoming>;

/// A client builder like kube's own for `config`, over such connections. Nothing is repeated by it.
pub fn builder(
    config: kube::Config,
) -> Result<ClientBuilder<BoxService<http::Request<Body>, Answer, BoxError>>, kube::Error> {
    // Going to the server directly where a proxy is asked for would be a surprise, and mostly in vain.
    if let Some(proxy) = &config.proxy_url {
        return Err(kube::Error::ProxyProtocolUnsupported {
            proxy_url: Box::new(proxy.clone()),
        });
    }
    let mut tls = config.rustls_client_config()?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(Some(CONNECT));
    tcp.set_keepalive(Some(SILENCE));
    tcp.set_keepalive_interval(Some(SIGN_OF_LIFE / 3));
    tcp.set_keepalive_retries(Some(3));
    let connector = Secure {
        tcp,
        tls: TlsConnector::from(Arc::new(tls)),
        server_name: config.tls_server_name.clone(),
    };
    let client: Client<_, Body> = signs_of_life(SILENCE, SIGN_OF_LIFE).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(ClientBuilder::new(
        BoxService::new(service),
        config.default_namespace,
    ))
}

/// Settings of a client that asks its peers for signs of life.
fn signs_of_life(silence: Duration, sign_of_life: Duration) -> Builder {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(silence)
        .http2_keep_alive_timeout(sign_of_life);
    builder
}

/// Opens connections: TLS to `https` addresses, with HTTP/2 where the server offers it.
#[derive(Clone)]
struct Secure {
    tcp: HttpConnector,
    tls: TlsConnector,
    server_name: Option<String>,
}

impl Service<Uri> for Secure {
    type Response = TokioIo<Stream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (tcp, tls) = (self.tcp.clone(), self.tls.clone());
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = self.server_name.clone().unwrap_or_else(|| host.to_owned());
        Box::pin(async move {
            let secure = uri.scheme_str() == Some("https");
            let stream = tcp.oneshot(uri).await?.into_inner();
            if !secure {
                return Ok(TokioIo::new(Stream::Plain(stream)));
            }
            let name = ServerName::try_from(name)?;
            let opening = tokio::time::timeout(CONNECT, tls.connect(name, stream));
            Ok(TokioIo::new(Stream::Secure(Box::new(opening.await??))))
        })
    }
}

/// One connection.
enum Stream {
    Plain(tokio::net::TcpStream),
    Secure(Box<tokio_rustls::client::TlsStream<tokio::net::TcpStream>>),
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Self::Secure(stream) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
                Connected::new().negotiated_h2()
            }
            _ => Connected::new(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Secure(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Secure(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Secure(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Secure(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Empty, StreamBody};
    use hyper::body::Frame;
    use hyper::service::service_fn;
    use parking_lot::Mutex;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// A connection in memory, so that the test runs in virtual time.
    struct Memory(DuplexStream);

    impl Connection for Memory {
        fn connected(&self) -> Connected {
            Connected::new().negotiated_h2()
        }
    }

    impl AsyncRead for Memory {
        fn poll_read(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            buffer: &mut tokio::io::ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            Pin::new(&mut self.0).poll_read(cx, buffer)
        }
    }

    impl AsyncWrite for Memory {
        fn poll_write(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            Pin::new(&mut self.0).poll_write(cx, bytes)
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Pin::new(&mut self.0).poll_flush(cx)
        }

        fn poll_shutdown(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<std::io::Result<()>> {
            Pin::new(&mut self.0).poll_shutdown(cx)
        }
    }

    /// Gives out one connection.
    #[derive(Clone)]
    struct OneConnection(Arc<Mutex<Option<DuplexStream>>>);

    impl Service<Uri> for OneConnection {
        type Response = TokioIo<Memory>;
        type Error = BoxError;
        type Future = std::future::Ready<Result<Self::Response, BoxError>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Uri) -> Self::Future {
            let end = self.0.lock().take();
            let end = end.ok_or_else(|| BoxError::from("one connection is enough"));
            std::future::ready(end.map(|end| TokioIo::new(Memory(end))))
        }
    }

    /// A server that answers with a stream that begins and then says nothing, as a watch on a quiet kind does.
    async fn serve(stream: DuplexStream) {
        let answer = service_fn(|_| async {
            let first = futures::stream::once(async {
                Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from_static(b"first")))
            });
            let quiet = futures::StreamExt::chain(first, futures::stream::pending());
            Ok::<_, std::convert::Infallible>(http::Response::new(StreamBody::new(quiet)))
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = server.serve_connection(TokioIo::new(stream), answer).await;
    }

    /// Carries bytes from one end to the other until `silent`, and then holds on to them for ever.
    async fn carry(
        mut from: tokio::io::ReadHalf<DuplexStream>,
        mut to: tokio::io::WriteHalf<DuplexStream>,
        silent: CancellationToken,
    ) {
        let mut bytes = [0; 1024];
        while let Ok(count) = from.read(&mut bytes).await {
            if count == 0 {
                return;
            }
            if silent.is_cancelled() {
                std::future::pending::<()>().await;
            }
            if to.write_all(&bytes[..count]).await.is_err() {
                return;
            }
        }
    }

    /// hyper reads the machine's clock, so this runs in real time, with shorter times.
    #[tokio::test]
    async fn a_connection_that_died_silently_is_noticed_and_a_quiet_one_is_kept() {
        let quick = Duration::from_millis(50);
        let (client_end, proxy_front) = tokio::io::duplex(1 << 16);
        let (proxy_back, server_end) = tokio::io::duplex(1 << 16);
        let silent = CancellationToken::new();
        let (front_read, front_write) = tokio::io::split(proxy_front);
        let (back_read, back_write) = tokio::io::split(proxy_back);
        tokio::spawn(carry(front_read, back_write, silent.clone()));
        tokio::spawn(carry(back_read, front_write, silent.clone()));
        tokio::spawn(serve(server_end));
        let connector = OneConnection(Arc::new(Mutex::new(Some(client_end))));
        let client: Client<_, Empty<Bytes>> = signs_of_life(quick, quick)
            .http2_only(true)
            .build(connector);
        let answer = client
            .get(Uri::from_static("http://server/watch"))
            .await
            .unwrap();
        let mut watch = answer.into_body();
        let first = watch.frame().await.unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), Bytes::from_static(b"first"));
        // A server that has nothing to say but lives is left alone, over many questions.
        let quiet = tokio::time::timeout(20 * quick, watch.frame()).await;
        assert!(quiet.is_err(), "ended although the server lives: {quiet:?}");
        silent.cancel();
        let end = watch.frame().await;
        assert!(matches!(end, Some(Err(_))), "{end:?}");
    }

    #[test]
    fn silence_is_noticed_within_a_minute() {
        assert!(SILENCE + SIGN_OF_LIFE < Duration::from_mins(1));
    }
}
