"""A device plugin for tests, of v1beta1: gives a GPU by NVIDIA's variable (test.io/variable), or by a CDI annotation (test.io/cdi)."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

FOLDER = "/var/lib/kubelet/device-plugins"
VARIABLE, ANNOTATION = 1, 4  # fields of ContainerAllocateResponse, both maps


def field(number, value):
    """A field of protobuf that has a length, below 128 bytes."""
    data = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(data)]) + data


class Plugin(grpc.GenericRpcHandler):
    def __init__(self, number, key, value):
        entry = field(number, field(1, key) + field(2, value))
        self.answers = {
            "GetDevicePluginOptions": lambda request, context: b"",
            "Allocate": lambda request, context: field(1, entry),
        }

    def service(self, details):
        name = details.method.rpartition("/")[2]
        if name == "ListAndWatch":
            return grpc.unary_stream_rpc_method_handler(self.devices)
        return grpc.unary_unary_rpc_method_handler(self.answers[name])

    def devices(self, request, context):
        yield field(1, field(1, "0") + field(2, "Healthy"))
        threading.Event().wait()


def serve(name, number, key, value):
    server = grpc.server(ThreadPoolExecutor(), handlers=[Plugin(number, key, value)])
    server.add_insecure_port(f"unix:{FOLDER}/{name}.sock")
    server.start()
    register = grpc.insecure_channel(f"unix:{FOLDER}/kubelet.sock").unary_unary("/v1beta1.Registration/Register")
    register(field(1, "v1beta1") + field(2, f"{name}.sock") + field(3, f"test.io/{name}"))
    return server


servers = [
    serve("variable", VARIABLE, "NVIDIA_VISIBLE_DEVICES", "0"),
    serve("cdi", ANNOTATION, "cdi.k8s.io/test", "nvidia.com/gpu=0"),
]
threading.Event().wait()
