"""Talks to `causeway serve` with nothing but the standard library: python3 client.py path/to/causeway"""

import json
import struct
import subprocess
import sys
from array import array


def frame(tensors, **metadata):
    """A safetensors image of f32 tensors {name: (shape, array)}, with its byte count before it."""
    header, data = {"__metadata__": metadata}, b""
    for name, (shape, values) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * len(values)]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    image = struct.pack("<Q", len(text)) + text + data
    return struct.pack("<I", len(image)) + image


def parse(image):
    """Metadata and tensors of a reply; an error of the server becomes an exception."""
    (length,) = struct.unpack_from("<Q", image)
    header = json.loads(image[8 : 8 + length])
    metadata = header.pop("__metadata__")
    if "error" in metadata:
        raise RuntimeError(f"{metadata['error']}: {metadata['message']}")
    data = image[8 + length :]
    return metadata, {name: array("f", data[slice(*info["data_offsets"])]) for name, info in header.items()}


server = subprocess.Popen([sys.argv[1], "serve", *sys.argv[2:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
x = ([1, 1, 4], array("f", [1, 2, 3, 4]))
weight = ([1, 2], array("f", [10, 1]))  # y[t] = 10 x[t-1] + x[t]
server.stdin.write(frame({"x": x, "weight": weight}, operation="conv1d-forward", activation="none"))
server.stdin.flush()
(count,) = struct.unpack("<I", server.stdout.read(4))
metadata, results = parse(server.stdout.read(count))
print(f"{metadata['device']}: y = {list(results['y'])}, {float(metadata['seconds']) * 1e6:.0f} µs")
assert list(results["y"]) == [1, 12, 23, 34]
server.stdin.close()
assert server.wait() == 0
