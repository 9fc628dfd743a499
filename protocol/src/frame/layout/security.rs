//! Layouts of what has to do with who the client is and what it may do.

use super::{Layout, NEVER, bytes, int8, int32, int64, layout, list, text};
use crate::messages::ApiKey;

pub(super) static SECURITY: &[Layout] = &[
    layout(ApiKey::SaslHandshake, 0, 1, NEVER, &[text("mechanism")]),
    layout(ApiKey::SaslAuthenticate, 0, 2, 2, &[bytes("auth_bytes")]),
    layout(
        ApiKey::DescribeAcls,
        1,
        3,
        2,
        &[
            int8("resource_type_filter"),
            text("resource_name_filter").or_null(),
            int8("pattern_type_filter"),
            text("principal_filter").or_null(),
            text("host_filter").or_null(),
            int8("operation"),
            int8("permission_type"),
        ],
    ),
    layout(
        ApiKey::CreateAcls,
        1,
        3,
        2,
        &[list(
            "creations",
            &[
                int8("resource_type"),
                text("resource_name"),
                int8("resource_pattern_type"),
                text("principal"),
                text("host"),
                int8("operation"),
                int8("permission_type"),
            ],
        )],
    ),
    layout(
        ApiKey::DeleteAcls,
        1,
        3,
        2,
        &[list(
            "filters",
            &[
                int8("resource_type_filter"),
                text("resource_name_filter").or_null(),
                int8("pattern_type_filter"),
                text("principal_filter").or_null(),
                text("host_filter").or_null(),
                int8("operation"),
                int8("permission_type"),
            ],
        )],
    ),
    layout(
        ApiKey::CreateDelegationToken,
        1,
        3,
        2,
        &[
            text("owner_principal_type").since(3).or_null(),
            text("owner_principal_name").since(3).or_null(),
            list("renewers", &[text("principal_type"), text("principal_name")]),
            int64("max_lifetime_ms"),
        ],
    ),
    layout(ApiKey::RenewDelegationToken, 1, 2, 2, &[bytes("hmac"), int64("renew_period_ms")]),
    layout(ApiKey::ExpireDelegationToken, 1, 2, 2, &[bytes("hmac"), int64("expiry_time_period_ms")]),
    layout(
        ApiKey::DescribeDelegationToken,
        1,
        3,
        2,
        &[list("owners", &[text("principal_type"), text("principal_name")]).or_null()],
    ),
    layout(ApiKey::DescribeUserScramCredentials, 0, 0, 0, &[list("users", &[text("name")]).or_null()]),
    layout(
        ApiKey::AlterUserScramCredentials,
        0,
        0,
        0,
        &[
            list("deletions", &[text("name"), int8("mechanism")]),
            list(
                "upsertions",
                &[
                    text("name"),
                    int8("mechanism"),
                    int32("iterations"),
                    bytes("salt"),
                    bytes("salted_password"),
                ],
            ),
        ],
    ),
];
