# SPDX-License-Identifier: Apache-2.0
"""The textbook's client, with the code that grpcio-tools makes from its proto file: client.py PROTO ADDRESS [PACKAGE].

Pushes 10,000 times 0.1, pulls, and prints the count of parameters that equal -lr * g in f32. A package is added to a
copy of the proto file. Exit code 77: grpcio or grpcio-tools are not installed.
"""
import importlib
import pathlib
import struct
import sys
import tempfile


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def main():
    try:
        import grpc
        from grpc_tools import protoc
    except ImportError:
        return 77
    proto, address, package = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
    with tempfile.TemporaryDirectory() as folder:
        text = pathlib.Path(proto).read_text(encoding="utf-8")
        if package:
            text = text.replace('syntax = "proto3";', f'syntax = "proto3";\npackage {package};')
        pathlib.Path(folder, "textbook.proto").write_text(text, encoding="utf-8")
        if protoc.main(["protoc", f"-I{folder}", f"--python_out={folder}", f"--grpc_python_out={folder}", "textbook.proto"]):
            return 1
        sys.path.insert(0, folder)
        messages, services = importlib.import_module("textbook_pb2"), importlib.import_module("textbook_pb2_grpc")
        with grpc.insecure_channel(address) as channel:
            server = services.ParameterServerStub(channel)
            server.PushGradients(messages.GradientRequest(gradients=[0.1] * 10000, worker_id=0))
            parameters = server.PullParameters(messages.EmptyRequest()).parameters
            try:
                server.PushGradients(messages.GradientRequest(gradients=[0.1] * 9999, worker_id=3))
                return 1
            except grpc.RpcError as e:
                print(e.code(), e.details())
    expected = f32(-f32(f32(0.01) * f32(0.1)))
    print(len(parameters), sum(p == expected for p in parameters), parameters[0])
    return 0 if len(parameters) == 10000 and all(p == expected for p in parameters) else 1


if __name__ == "__main__":
    sys.exit(main())
