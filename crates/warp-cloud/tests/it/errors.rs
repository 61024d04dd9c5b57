//! Every code a vendor documents means what its table says.

use warp_cloud::Class;
use warp_vendor::{Brand, Trouble};

use super::stand::Stand;

/// Brand, status, body, and what a launch that meets it means.
const LAUNCHES: &[(Brand, u16, &str, Class)] = &[
    (
        Brand::Lambda,
        400,
        r#"{"error":{"code":"instance-operations/launch/insufficient-capacity","message":"m"}}"#,
        Class::NoCapacity,
    ),
    (
        Brand::Lambda,
        400,
        r#"{"error":{"code":"global/quota-exceeded","message":"m"}}"#,
        Class::Quota,
    ),
    (
        Brand::Lambda,
        400,
        r#"{"error":{"code":"global/invalid-parameters","message":"m"}}"#,
        Class::Refused,
    ),
    (
        Brand::Lambda,
        400,
        r#"{"error":{"code":"instance-operations/launch/file-system-in-wrong-region","message":"m"}}"#,
        Class::Refused,
    ),
    (
        Brand::Lambda,
        400,
        r#"{"error":{"code":"global/object-does-not-exist","message":"m"}}"#,
        Class::Refused,
    ),
    (
        Brand::Lambda,
        404,
        r#"{"error":{"code":"global/object-does-not-exist","message":"m"}}"#,
        Class::Refused,
    ),
    (
        Brand::Lambda,
        401,
        r#"{"error":{"code":"global/invalid-api-key","message":"m"}}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Lambda,
        403,
        r#"{"error":{"code":"global/forbidden","message":"m"}}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Lambda,
        403,
        r#"{"error":{"code":"global/account-inactive","message":"m"}}"#,
        Class::NoBalance,
    ),
    (
        Brand::Lambda,
        403,
        r#"{"error":{"code":"global/invalid-address","message":"m"}}"#,
        Class::NoBalance,
    ),
    (
        Brand::Lambda,
        500,
        r#"{"error":{"code":"global/internal-error","message":"m"}}"#,
        Class::Transient,
    ),
    (
        Brand::Lambda,
        400,
        r#"{"error":{"code":"provider/unavailable","message":"m"}}"#,
        Class::Transient,
    ),
    (
        Brand::Runpod,
        400,
        r#"{"title":"m","status":400,"detail":"m"}"#,
        Class::NoCapacity,
    ),
    (
        Brand::Runpod,
        401,
        r#"{"title":"m","status":401,"detail":"m"}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Runpod,
        402,
        r#"{"title":"m","status":402,"detail":"m"}"#,
        Class::NoBalance,
    ),
    (
        Brand::Runpod,
        403,
        r#"{"title":"m","status":403,"detail":"m"}"#,
        Class::Refused,
    ),
    (
        Brand::Runpod,
        404,
        r#"{"title":"m","status":404,"detail":"m"}"#,
        Class::Refused,
    ),
    (
        Brand::Runpod,
        422,
        r#"{"title":"m","status":422,"detail":"m","errors":["m"]}"#,
        Class::Refused,
    ),
    (
        Brand::Runpod,
        500,
        r#"{"title":"m","status":500,"detail":"m"}"#,
        Class::Transient,
    ),
    (Brand::Runpod, 503, "busy", Class::Transient),
    (
        Brand::Vast,
        400,
        r#"{"success":false,"error":"invalid_args","msg":"m"}"#,
        Class::Refused,
    ),
    (
        Brand::Vast,
        400,
        r#"{"success":false,"error":"invalid_price","msg":"m"}"#,
        Class::Refused,
    ),
    (
        Brand::Vast,
        400,
        r#"{"success":false,"error":"no_ssh_key_for_vm","msg":"m"}"#,
        Class::Refused,
    ),
    (
        Brand::Vast,
        401,
        r#"{"success":false,"error":"auth_error","msg":"m"}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Vast,
        403,
        r#"{"success":false,"error":"insufficient_credit","msg":"m"}"#,
        Class::NoBalance,
    ),
    (
        Brand::Vast,
        404,
        r#"{"success":false,"error":"no_such_ask","msg":"m"}"#,
        Class::NoCapacity,
    ),
    (
        Brand::Vast,
        410,
        r#"{"success":false,"error":"no_such_ask","msg":"m"}"#,
        Class::NoCapacity,
    ),
    (Brand::Vast, 500, "oops", Class::Transient),
    (
        Brand::Aws,
        500,
        "<Response><Errors><Error><Code>InsufficientInstanceCapacity</Code><Message>m</Message></Error></Errors></Response>",
        Class::NoCapacity,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>InsufficientHostCapacity</Code><Message>m</Message></Error></Errors></Response>",
        Class::NoCapacity,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>UnfulfillableCapacity</Code><Message>m</Message></Error></Errors></Response>",
        Class::NoCapacity,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>Unsupported</Code><Message>m</Message></Error></Errors></Response>",
        Class::NoCapacity,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>InsufficientFreeAddressesInSubnet</Code><Message>m</Message></Error></Errors></Response>",
        Class::NoCapacity,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>ReservationCapacityExceeded</Code><Message>m</Message></Error></Errors></Response>",
        Class::NoCapacity,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>SpotMaxPriceTooLow</Code><Message>m</Message></Error></Errors></Response>",
        Class::NoCapacity,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>VcpuLimitExceeded</Code><Message>m</Message></Error></Errors></Response>",
        Class::Quota,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>InstanceLimitExceeded</Code><Message>m</Message></Error></Errors></Response>",
        Class::Quota,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>MaxSpotInstanceCountExceeded</Code><Message>m</Message></Error></Errors></Response>",
        Class::Quota,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>MaxFleetCountExceeded</Code><Message>m</Message></Error></Errors></Response>",
        Class::Quota,
    ),
    (
        Brand::Aws,
        401,
        "<Response><Errors><Error><Code>AuthFailure</Code><Message>m</Message></Error></Errors></Response>",
        Class::BadCredentials,
    ),
    (
        Brand::Aws,
        403,
        "<Response><Errors><Error><Code>UnauthorizedOperation</Code><Message>m</Message></Error></Errors></Response>",
        Class::BadCredentials,
    ),
    (
        Brand::Aws,
        403,
        "<Response><Errors><Error><Code>SignatureDoesNotMatch</Code><Message>m</Message></Error></Errors></Response>",
        Class::BadCredentials,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>OptInRequired</Code><Message>m</Message></Error></Errors></Response>",
        Class::BadCredentials,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>RequestExpired</Code><Message>m</Message></Error></Errors></Response>",
        Class::BadCredentials,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>Blocked</Code><Message>m</Message></Error></Errors></Response>",
        Class::NoBalance,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>PendingVerification</Code><Message>m</Message></Error></Errors></Response>",
        Class::NoBalance,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>IdempotentParameterMismatch</Code><Message>m</Message></Error></Errors></Response>",
        Class::Refused,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>InvalidParameterValue</Code><Message>m</Message></Error></Errors></Response>",
        Class::Refused,
    ),
    (
        Brand::Aws,
        400,
        "<Response><Errors><Error><Code>InvalidAMIID.NotFound</Code><Message>m</Message></Error></Errors></Response>",
        Class::Refused,
    ),
    (
        Brand::Aws,
        503,
        "<Response><Errors><Error><Code>RequestLimitExceeded</Code><Message>m</Message></Error></Errors></Response>",
        Class::Transient,
    ),
    (
        Brand::Aws,
        503,
        "<Response><Errors><Error><Code>Unavailable</Code><Message>m</Message></Error></Errors></Response>",
        Class::Transient,
    ),
    (
        Brand::Aws,
        500,
        "<Response><Errors><Error><Code>InternalError</Code><Message>m</Message></Error></Errors></Response>",
        Class::Transient,
    ),
    (
        Brand::Azure,
        409,
        r#"{"error":{"code":"SkuNotAvailable","message":"m"}}"#,
        Class::NoCapacity,
    ),
    (
        Brand::Azure,
        409,
        r#"{"error":{"code":"AllocationFailed","message":"m"}}"#,
        Class::NoCapacity,
    ),
    (
        Brand::Azure,
        409,
        r#"{"error":{"code":"ZonalAllocationFailed","message":"m"}}"#,
        Class::NoCapacity,
    ),
    (
        Brand::Azure,
        409,
        r#"{"error":{"code":"OverconstrainedAllocationRequest","message":"m"}}"#,
        Class::NoCapacity,
    ),
    (
        Brand::Azure,
        409,
        r#"{"error":{"code":"OperationNotAllowed","message":"exceeding approved quota"}}"#,
        Class::Quota,
    ),
    (
        Brand::Azure,
        409,
        r#"{"error":{"code":"OperationNotAllowed","message":"below the Spot price"}}"#,
        Class::NoCapacity,
    ),
    (
        Brand::Azure,
        400,
        r#"{"error":{"code":"QuotaExceeded","message":"m"}}"#,
        Class::Quota,
    ),
    (
        Brand::Azure,
        401,
        r#"{"error":{"code":"InvalidAuthenticationToken","message":"m"}}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Azure,
        401,
        r#"{"error":{"code":"ExpiredAuthenticationToken","message":"m"}}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Azure,
        403,
        r#"{"error":{"code":"AuthorizationFailed","message":"m"}}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Azure,
        404,
        r#"{"error":{"code":"SubscriptionNotFound","message":"m"}}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Azure,
        409,
        r#"{"error":{"code":"ReadOnlyDisabledSubscription","message":"m"}}"#,
        Class::NoBalance,
    ),
    (
        Brand::Azure,
        400,
        r#"{"error":{"code":"InvalidParameter","message":"m"}}"#,
        Class::Refused,
    ),
    (
        Brand::Azure,
        404,
        r#"{"error":{"code":"ResourceGroupNotFound","message":"m"}}"#,
        Class::Refused,
    ),
    (
        Brand::Azure,
        409,
        r#"{"error":{"code":"Conflict","message":"m"}}"#,
        Class::Transient,
    ),
    (
        Brand::Azure,
        500,
        r#"{"error":{"code":"InternalServerError","message":"m"}}"#,
        Class::Transient,
    ),
    (
        Brand::Gcp,
        403,
        r#"{"error":{"message":"m","errors":[{"reason":"quotaExceeded"}]}}"#,
        Class::Quota,
    ),
    (
        Brand::Gcp,
        401,
        r#"{"error":{"message":"m","errors":[{"reason":"authError"}]}}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Gcp,
        403,
        r#"{"error":{"message":"m","errors":[{"reason":"forbidden"}]}}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Gcp,
        403,
        r#"{"error":{"message":"m","errors":[{"reason":"accessNotConfigured"}]}}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Gcp,
        403,
        r#"{"error":{"message":"m","errors":[{"reason":"billingNotEnabled"}]}}"#,
        Class::NoBalance,
    ),
    (
        Brand::Gcp,
        403,
        r#"{"error":{"message":"m","errors":[{"reason":"rateLimitExceeded"}]}}"#,
        Class::Transient,
    ),
    (
        Brand::Gcp,
        400,
        r#"{"error":{"message":"m","errors":[{"reason":"invalid"}]}}"#,
        Class::Refused,
    ),
    (
        Brand::Gcp,
        404,
        r#"{"error":{"message":"m","errors":[{"reason":"notFound"}]}}"#,
        Class::Refused,
    ),
    (
        Brand::Gcp,
        503,
        r#"{"error":{"message":"m","errors":[{"reason":"backendError"}]}}"#,
        Class::Transient,
    ),
    (
        Brand::Paperspace,
        400,
        r#"{"code":"C","message":"out of capacity"}"#,
        Class::NoCapacity,
    ),
    (
        Brand::Paperspace,
        400,
        r#"{"code":"C","message":"You have reached your limit"}"#,
        Class::Quota,
    ),
    (
        Brand::Paperspace,
        400,
        r#"{"code":"C","message":"A payment method is required"}"#,
        Class::NoBalance,
    ),
    (
        Brand::Paperspace,
        401,
        r#"{"code":"C","message":"m"}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Paperspace,
        403,
        r#"{"code":"C","message":"m"}"#,
        Class::BadCredentials,
    ),
    (
        Brand::Paperspace,
        404,
        r#"{"code":"C","message":"Template not found"}"#,
        Class::Refused,
    ),
    (
        Brand::Paperspace,
        400,
        r#"{"code":"C","message":"m"}"#,
        Class::Refused,
    ),
    (
        Brand::Paperspace,
        500,
        r#"{"code":"C","message":"m"}"#,
        Class::Transient,
    ),
];

#[tokio::test(start_paused = true)]
async fn every_documented_refusal_of_a_launch_is_told_apart() {
    for (brand, status, body, class) in LAUNCHES {
        let stand = Stand::new(*brand);
        let launch = stand.launch(1).await;
        // As often as it is tried.
        for _ in 0..3 {
            stand
                .vendor
                .once(brand.launches(), Trouble::status(*status, body));
        }
        let failure = stand.provider.launch(&launch).await.expect_err(body);
        assert_eq!(
            failure.class, *class,
            "{brand:?} {status} {body}: {failure}"
        );
        assert!(failure.words.starts_with(&status.to_string()), "{failure}");
        assert!(stand.vendor.machines().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_that_does_not_end_is_trouble_that_may_pass() {
    for stand in Stand::every() {
        let launch = stand.launch(1).await;
        for _ in 0..3 {
            stand
                .vendor
                .once(stand.brand.launches(), Trouble::status(429, "too fast"));
        }
        let failure = stand.provider.launch(&launch).await.expect_err("too fast");
        assert_eq!(
            failure.class,
            Class::Transient,
            "{:?}: {failure}",
            stand.brand
        );
    }
}

/// The vendor's words are kept, and what it repeats of our secrets is not.
#[tokio::test(start_paused = true)]
async fn words_are_kept_and_secrets_in_them_are_not() {
    for stand in Stand::every() {
        let launch = stand.launch(1).await;
        let body = "{\"error\":{\"code\":\"c\",\"message\":\"key-of-the-tests-0001 is odd\"},\
                    \"title\":\"key-of-the-tests-0001 is odd\",\"msg\":\"key-of-the-tests-0001 is odd\",\
                    \"message\":\"key-of-the-tests-0001 is odd\",\
                    \"x\":\"<Response><Errors><Error><Message>key-of-the-tests-0001</Message></Error></Errors></Response>\"}";
        for _ in 0..3 {
            stand
                .vendor
                .once(stand.brand.launches(), Trouble::status(418, body));
        }
        let failure = stand.provider.launch(&launch).await.expect_err("odd");
        assert!(
            !failure.words.contains("key-of"),
            "{:?}: {failure}",
            stand.brand
        );
    }
}

/// At Google a launch is accepted first and refused by its operation.
#[tokio::test(start_paused = true)]
async fn an_operation_that_fails_is_a_refusal() {
    for (code, class) in [
        ("ZONE_RESOURCE_POOL_EXHAUSTED", Class::NoCapacity),
        (
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            Class::NoCapacity,
        ),
        ("VM_MIN_COUNT_NOT_REACHED", Class::NoCapacity),
        ("QUOTA_EXCEEDED", Class::Quota),
        ("INTERNAL_ERROR", Class::Transient),
        ("SOMETHING_ELSE", Class::Refused),
    ] {
        let stand = Stand::new(Brand::Gcp);
        let launch = stand.launch(1).await;
        let body = format!(
            r#"{{"name":"op","status":"DONE","error":{{"errors":[{{"code":"{code}"}}]}}}}"#
        );
        stand.vendor.once("/wait", Trouble::status(200, &body));
        let failure = stand.provider.launch(&launch).await.expect_err(code);
        assert_eq!(failure.class, class, "{code}");
    }
}

/// A bid that is too low may leave a machine behind the refusal; it is ended before the refusal is told.
#[tokio::test(start_paused = true)]
async fn what_a_refused_bid_leaves_behind_is_ended() {
    let stand = Stand::new(Brand::Vast);
    let mut launch = stand.launch(1).await;
    launch.spot = true;
    launch.max_price = warp_cloud::Decimal::new(1, 2);
    let failure = stand.provider.launch(&launch).await.expect_err("outbid");
    assert_eq!(failure.class, Class::NoCapacity, "{failure}");
    let machines = stand.vendor.machines();
    assert!(
        machines.len() == 1 && machines[0].was_ended(),
        "{machines:?}"
    );
}
