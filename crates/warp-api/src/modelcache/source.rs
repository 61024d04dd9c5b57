//! Where a model comes from: exactly one of these places.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Exactly one place a model comes from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelSource {
    /// A repository of the Hugging Face hub or of a mirror.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huggingface: Option<HuggingfaceSource>,
    /// One file by its address, or a list of files below one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpSource>,
    /// What lies below a prefix of a bucket, in S3 or a store that speaks its language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Source>,
    /// An artifact of an OCI registry, as ORAS or ModelPack's tools put it there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oci: Option<OciSource>,
    /// What lies below a prefix of a bucket of Google Cloud Storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gcs: Option<GcsSource>,
    /// What lies below a prefix of a container of Azure Blob Storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub azure: Option<AzureSource>,
    /// A folder of another claim of the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvc: Option<PvcSource>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HuggingfaceSource {
    /// `org/name`.
    #[schemars(
        length(max = 193),
        regex(pattern = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$")
    )]
    pub repository: String,
    /// A branch, a tag or a commit. What was fetched is pinned by its commit; a branch that moves is not followed.
    #[serde(default = "default_revision")]
    #[schemars(
        length(min = 1, max = 255),
        regex(pattern = r"^[A-Za-z0-9_][A-Za-z0-9._/-]*$")
    )]
    pub revision: String,
    /// A mirror to ask instead of the hub: `https://hub.example`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 1024),
        regex(pattern = r"^https?://[^/?#@\s]+(/[^?#\s]*)?$")
    )]
    pub endpoint: Option<String>,
    /// Secret of the same namespace whose key `token` is shown to the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub token_secret: Option<String>,
}

fn default_revision() -> String {
    "main".to_owned()
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpSource {
    /// `https://host/file.gguf`; with `files`, the folder they are below.
    #[schemars(length(max = 2048), regex(pattern = r"^https?://[^/?#@\s]+/[^#\s]*$"))]
    pub url: String,
    /// What the file must hash to, in hexadecimal. Without it, nothing but the length is known of the right content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Option<String>,
    /// Files below `url`, fetched together or not at all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub files: Vec<HttpFile>,
    /// Secret of the same namespace whose key `token` is shown to the host of `url`, and to nobody it redirects to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub token_secret: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpFile {
    /// Its path below `url` and below the model's folder.
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^/#\s][^#]*$"))]
    pub path: String,
    /// What the file must hash to, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{64}$"))]
    pub sha256: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct S3Source {
    /// The bucket.
    #[schemars(
        length(min = 3, max = 255),
        regex(pattern = r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")
    )]
    pub bucket: String,
    /// The folder in it, or one object; the whole bucket where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub prefix: Option<String>,
    /// Region of the bucket.
    #[serde(default = "default_region")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z0-9-]+$"))]
    pub region: String,
    /// Another store that speaks the language of S3: `https://minio.example:9000`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 1024),
        regex(pattern = r"^https?://[^/?#@\s]+(/[^?#\s]*)?$")
    )]
    pub endpoint: Option<String>,
    /// Secret of the same namespace with the keys `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, and
    /// `AWS_SESSION_TOKEN` if the credentials have one. Without it, what everybody may read is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub credentials_secret: Option<String>,
}

fn default_region() -> String {
    "us-east-1".to_owned()
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OciSource {
    /// `registry/name:tag` or `registry/name@sha256:…`. What was fetched is pinned by its digest (`status.commit`); a tag
    /// that moves is not followed.
    #[schemars(
        length(max = 512),
        regex(
            pattern = r"^[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)+(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?$"
        )
    )]
    pub reference: String,
    /// Secret of the same namespace, of type `kubernetes.io/dockerconfigjson` or with the keys `username` and
    /// `password`. Without it, what everybody may read is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub credentials_secret: Option<String>,
    /// Ask the registry without encryption.
    #[serde(default)]
    pub plain_http: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GcsSource {
    /// The bucket.
    #[schemars(length(min = 3, max = 222), regex(pattern = r"^[a-z0-9][a-z0-9._-]*$"))]
    pub bucket: String,
    /// The folder in it, or one object; the whole bucket where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub prefix: Option<String>,
    /// Another server that speaks Google's language: `http://fake-gcs:4443`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 1024),
        regex(pattern = r"^https?://[^/?#@\s]+(/[^?#\s]*)?$")
    )]
    pub endpoint: Option<String>,
    /// Secret of the same namespace whose key `key.json` is the key of a service account. Without it, what everybody may
    /// read is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub credentials_secret: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AzureSource {
    /// The storage account.
    #[schemars(length(min = 3, max = 24), regex(pattern = r"^[a-z0-9]+$"))]
    pub account: String,
    /// The container.
    #[schemars(length(min = 3, max = 63), regex(pattern = r"^[a-z0-9][a-z0-9-]*$"))]
    pub container: String,
    /// The folder in it, or one blob; the whole container where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub prefix: Option<String>,
    /// Another server that speaks Azure's language, with the account: `http://azurite:10000/devstoreaccount1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 1024),
        regex(pattern = r"^https?://[^/?#@\s]+(/[^?#\s]*)?$")
    )]
    pub endpoint: Option<String>,
    /// Secret of the same namespace with the key `AZURE_STORAGE_KEY` (of the account) or `AZURE_STORAGE_SAS_TOKEN` (that
    /// may read and list). Without it, what everybody may read is read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub credentials_secret: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PvcSource {
    /// The claim.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// The folder on it; the whole volume where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub path: Option<String>,
}

impl ModelSource {
    /// The source in one word, as `warp fetch` takes it; of a claim, where it is mounted is the caller's.
    pub fn word(&self) -> String {
        if let Some(hub) = &self.huggingface {
            return format!("hf://{}@{}", hub.repository, hub.revision);
        }
        if let Some(http) = &self.http {
            let digest = http.sha256.as_ref();
            let digest = digest.map_or(String::new(), |sha256| format!("#sha256={sha256}"));
            return format!("{}{digest}", http.url);
        }
        if let Some(s3) = &self.s3 {
            let prefix = s3.prefix.as_deref().unwrap_or_default().trim_matches('/');
            return format!("s3://{}/{prefix}", s3.bucket)
                .trim_end_matches('/')
                .to_owned();
        }
        if let Some(oci) = &self.oci {
            return format!("oci://{}", oci.reference);
        }
        if let Some(gcs) = &self.gcs {
            let prefix = gcs.prefix.as_deref().unwrap_or_default().trim_matches('/');
            return format!("gs://{}/{prefix}", gcs.bucket)
                .trim_end_matches('/')
                .to_owned();
        }
        if let Some(azure) = &self.azure {
            let prefix = azure.prefix.as_deref().unwrap_or_default();
            let prefix = prefix.trim_matches('/');
            return format!("az://{}/{}/{prefix}", azure.account, azure.container)
                .trim_end_matches('/')
                .to_owned();
        }
        let pvc = self.pvc.as_ref();
        pvc.map_or(String::new(), |pvc| {
            let path = pvc.path.as_deref().unwrap_or_default().trim_matches('/');
            format!("pvc://{}/{path}", pvc.claim_name)
                .trim_end_matches('/')
                .to_owned()
        })
    }
}
