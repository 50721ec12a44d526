//! The HTTP of the credential sources: the store's own client, so that proxies and the CA bundle hold for them too.

use std::time::Duration;

use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;

use super::super::http::Clients;

/// Answers of credential sources are small.
const ANSWER_LIMIT: usize = 1024 * 1024;

/// Used where the asker names no limit.
const DEFAULT_LIMIT: Duration = Duration::from_secs(5);

/// The client under `aws-config`.
#[derive(Debug, Clone)]
pub(crate) struct AwsHttp {
    clients: Clients,
    limit: Duration,
}

impl AwsHttp {
    pub(crate) fn new(clients: Clients) -> Self {
        AwsHttp { clients, limit: DEFAULT_LIMIT }
    }
}

impl HttpClient for AwsHttp {
    fn http_connector(&self, settings: &HttpConnectorSettings, _: &RuntimeComponents) -> SharedHttpConnector {
        let limits = [settings.connect_timeout(), settings.read_timeout()];
        let sum: Duration = limits.into_iter().flatten().sum();
        let limit = if sum.is_zero() { DEFAULT_LIMIT } else { sum.min(DEFAULT_LIMIT) };
        SharedHttpConnector::new(AwsHttp { clients: self.clients.clone(), limit })
    }
}

impl HttpConnector for AwsHttp {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let clients = self.clients.clone();
        let limit = self.limit;
        HttpConnectorFuture::new(async move {
            let work = exchange(&clients, request);
            tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
                Err(ConnectorError::timeout(
                    format!("no answer within {}", humantime::format_duration(limit)).into(),
                ))
            })
        })
    }
}

async fn exchange(clients: &Clients, request: HttpRequest) -> Result<HttpResponse, ConnectorError> {
    let user = |e: Box<dyn std::error::Error + Send + Sync>| ConnectorError::user(e);
    let method = reqwest::Method::from_bytes(request.method().as_bytes()).map_err(|e| user(e.into()))?;
    let url: reqwest::Url = request.uri().parse().map_err(|_| user("not a URL".into()))?;
    let client = if is_local(&url) { &clients.direct } else { &clients.reqwest };
    let mut out = client.request(method, url);
    for (name, value) in request.headers() {
        out = out.header(name, value);
    }
    let body = request.body().bytes().ok_or_else(|| user("a streaming body".into()))?;
    let failed = |e: reqwest::Error| match e.is_timeout() {
        true => ConnectorError::timeout(e.without_url().into()),
        false => ConnectorError::io(e.without_url().into()),
    };
    let mut answer = out.body(body.to_vec()).send().await.map_err(failed)?;

    let status = StatusCode::try_from(answer.status().as_u16()).map_err(|e| user(e.into()))?;
    let headers = answer.headers().clone();
    let mut content = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(failed)? {
        if content.len() + chunk.len() > ANSWER_LIMIT {
            return Err(ConnectorError::other("the answer is too long".into(), None));
        }
        content.extend_from_slice(&chunk);
    }
    let mut response = HttpResponse::new(status, SdkBody::from(content));
    for (name, value) in &headers {
        if let Ok(value) = value.to_str() {
            response.headers_mut().append(name.as_str().to_owned(), value.to_owned());
        }
    }
    Ok(response)
}

/// Services of the machine itself and of its link are never behind a proxy.
fn is_local(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    match host.parse::<std::net::IpAddr>() {
        Ok(std::net::IpAddr::V4(ip)) => ip.is_loopback() || ip.is_link_local(),
        Ok(std::net::IpAddr::V6(ip)) => {
            ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local()
        }
        Err(_) => host == "localhost",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_services_are_local() {
        let local = |u: &str| is_local(&u.parse().unwrap());
        assert!(
            local("http://169.254.169.254/latest")
                && local("http://[fd00:ec2::254]/x")
                && local("http://127.0.0.1:1/")
        );
        assert!(!local("https://sts.amazonaws.com/") && !local("http://10.0.0.1/"));
    }
}
