"""Whether moto kept of two launches what was meant: names, owners, what they run, how they end, which was spot."""

import base64
import sys

import boto3

ec2 = boto3.client(
    "ec2",
    region_name="us-east-1",
    endpoint_url=sys.argv[1],
    aws_access_key_id="a",
    aws_secret_access_key="b",
)
found = [
    instance
    for reservation in ec2.describe_instances()["Reservations"]
    for instance in reservation["Instances"]
]
assert len(found) == 2, f"{len(found)} machines where two were bought"
for instance in found:
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert tags["Name"].startswith("warp-5f0c2a9e-"), tags
    assert tags["warp-owner"] == "team/h100", tags
    assert instance["State"]["Name"] == "terminated", instance["State"]
    assert instance["KeyName"] == "warp", instance
    data = ec2.describe_instance_attribute(
        InstanceId=instance["InstanceId"], Attribute="userData"
    )
    script = base64.b64decode(data["UserData"]["Value"]).decode()
    assert tags["Name"] in script, script
assert sorted(instance.get("InstanceLifecycle", "") for instance in found) == ["", "spot"]
print("moto kept 2 machines as they were meant: tags, key, user data, spot; both terminated")
