"""Serves moto on a free port of loopback, with what a launch names, and writes where into a file."""

import os
import signal
import sys

import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=True)
server.start()
_, port = server.get_host_and_port()
address = f"http://127.0.0.1:{port}"
ec2 = boto3.client(
    "ec2",
    region_name="us-east-1",
    endpoint_url=address,
    aws_access_key_id="a",
    aws_secret_access_key="b",
)
ec2.create_key_pair(KeyName="warp")
subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
group = ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
image = ec2.describe_images()["Images"][0]["ImageId"]
told = {
    "WARP_MOTO": address,
    "WARP_MOTO_SUBNET": subnet,
    "WARP_MOTO_GROUP": group,
    "WARP_MOTO_IMAGE": image,
}
with open(sys.argv[1] + ".new", "w") as out:
    out.writelines(f"{name}={value}\n" for name, value in told.items())
os.rename(sys.argv[1] + ".new", sys.argv[1])
signal.pause()
