#!/usr/bin/env python3
"""Measures schedules of products on Hopper's matrix units, and fits the model by which the planner takes one.

    tune_gemm.py measure times.tsv [--seed N] [--count N]     on the GPU: needs PyTorch with CUDA, and NVRTC
    tune_gemm.py fit times.tsv...                             needs NumPy; prints the constants of wgmma_cost.rs

A measurement is of one drawn size, one product of a layer, and one schedule: a tile, a cluster, and how tiles and terms are dealt out. It
is the time of a launch in a CUDA graph that goes through three times the L2 cache, beside torch.mm on the same matrices; each
result is compared with a product in f32. `Model` and `nanoseconds` are those of crates/causeway/src/backend/gpu/gemm/wgmma_cost.rs, in which
names have the same meaning. A fit starts from the constants below and weighs errors among the schedules of one product, and what a choice
by the model takes beyond the best of them.
"""

import argparse
import csv
import ctypes
import glob
import math
import os
import random
import struct
import sys
from multiprocessing import get_context

HERE = os.path.dirname(os.path.abspath(__file__))
KERNELS = os.environ.get("CAUSEWAY_KERNELS_DIR") or os.path.join(HERE, "..", "kernels")
sys.path.insert(0, HERE)
from draw_shapes import product  # noqa: E402

MULTIPROCESSORS = 132
CALLS = ("forward", "grad-a", "grad-b")
# rows, columns, stages, staging, resident, right row-major (None: either)
TILES = [
    (128, 256, 4, 2, 1, None), (128, 224, 4, 2, 1, None), (128, 192, 4, 2, 1, None), (128, 160, 4, 2, 1, True),
    (128, 160, 5, 2, 1, False), (128, 144, 5, 2, 1, False), (128, 128, 6, 2, 1, None), (128, 64, 8, 2, 1, None),
    (64, 256, 5, 2, 1, None), (64, 128, 8, 2, 1, None), (64, 64, 8, 2, 1, None), (64, 64, 6, 2, 2, None),
    (128, 112, 6, 2, 1, False), (128, 96, 6, 2, 1, False), (128, 80, 7, 2, 1, False), (128, 48, 8, 2, 1, False),
    (128, 32, 9, 2, 1, False), (128, 16, 10, 2, 1, False), (64, 96, 10, 2, 1, False), (64, 48, 14, 2, 1, False),
    (64, 32, 16, 2, 1, False), (64, 16, 16, 2, 1, False),
    (128, 240, 4, 2, 1, None), (192, 176, 4, 1, 1, False), (192, 160, 4, 1, 1, None), (192, 128, 5, 1, 1, None),
]
# blocks above each other, blocks side by side, blocks that split a tile
CLUSTERS = [(1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1), (1, 4, 1), (4, 1, 1), (1, 1, 2), (1, 1, 4), (1, 1, 8)]
COLUMNS = ("m n k call transposed us library down across split rows columns stages staging resident tiles_down tiles_across clusters "
           "deal pieces rest head part turns").split()


def ceil(a, b):
    return -(-a // b)


def matrices(call, m, n, k, transposed=False):
    """Rows, columns and terms of a product; its operands and result: which matrix, and whether rows or columns are side by side. Transposed, the
    result is computed with rows and columns swapped."""
    if transposed:
        rows, columns, terms, left, right, result = matrices(call, m, n, k)
        return columns, rows, terms, right, left, result
    if call == "forward":
        return m, n, k, ("a", False), ("b", True), "c"
    if call == "grad-a":
        return m, k, n, ("c", False), ("b", False), "a"
    return k, n, m, ("a", True), ("c", True), "b"


def of_schedule(s):
    """The matrices of a schedule."""
    return matrices(s["call"], s["m"], s["n"], s["k"], s["transposed"])


def schedules(call, m, n, k):
    """Every schedule that the planner compares."""
    for transposed in (0, 1):
        yield from schedules_of(call, m, n, k, transposed)


def schedules_of(call, m, n, k, transposed):
    """Of one orientation."""
    rows, columns, terms, (_, left_row_major), (_, right_row_major), _ = matrices(call, m, n, k, transposed)
    steps = ceil(terms, 64)
    for tile_rows, tile_columns, stages, staging, resident, where in TILES:
        for down, across, split in CLUSTERS:
            blocks = down * across * split
            parts = [across > 1 and not left_row_major and tile_rows // across % 8,
                     down > 1 and not right_row_major and tile_columns // down % 8]
            fits = tile_rows * (tile_columns * 4 + 32) <= stages * 128 * (tile_rows + tile_columns)
            if (where not in (None, right_row_major) or any(parts) or resident > 1 and blocks > 1
                    or down > 1 and rows <= tile_rows * (down // 2) or across > 1 and columns <= tile_columns * (across // 2)
                    or split > 1 and (transposed or tile_columns % 64 or not fits or steps < split)):
                continue
            tiles_down, tiles_across = ceil(rows, tile_rows * down), ceil(columns, tile_columns * across)
            tiles = tiles_down * tiles_across
            slots = at_a_time(blocks, resident)
            base = dict(m=m, n=n, k=k, call=call, transposed=transposed, down=down, across=across, split=split, rows=tile_rows, columns=tile_columns,
                        stages=stages, staging=staging, resident=resident, tiles_down=tiles_down, tiles_across=tiles_across,
                        clusters=tiles if split > 1 else min(tiles, slots), deal="whole", pieces=1, rest=0, head=0, part=0, turns=0)
            yield base
            for pieces in range(2, 17):
                if split > 1:
                    if tiles * pieces <= slots and steps >= 2 * pieces * split:
                        yield base | dict(deal="parts", pieces=pieces, clusters=tiles * pieces)
                    continue
                rest = tiles % slots
                if rest == 0 or tiles >= slots and pieces > 8:
                    continue
                turns = ceil((pieces - 1) * rest, slots - rest)
                part = steps // (turns + pieces - 1)
                if part >= 3:
                    yield base | dict(deal="rest", pieces=pieces, rest=rest, head=steps - (pieces - 1) * part, part=part,
                                      turns=turns, clusters=min(slots, tiles * pieces))


def at_a_time(blocks, resident):
    """Clusters that run at a time."""
    return {1: MULTIPROCESSORS, 2: MULTIPROCESSORS // 2, 4: 30, 8: 12}[blocks] * resident


def piece(columns):
    """Columns that a warp stores at a time."""
    return next(width for width in (64, 48, 32, 16) if columns % width == 0)


def stored(s):
    """Elements of a line that it stores."""
    return 16 if s["transposed"] else piece(s["columns"])


def waits(s):
    """How often a warp waits for pieces of a rest: it asks for 16 KB at a time, 8 KB with three warpgroups."""
    width = piece(s["columns"])
    return s["columns"] // width * ceil(s["pieces"], (256 if s["rows"] <= 128 else 128) // width)


# ---- the model -----------------------------------------------------------------------------------------------------

MODEL = dict(
    launch=732.0, fill=499.0, arrival=0.99, arrival_straddling=0.21, request=1.49, request_straddling=0.53, from_memory=0.32,
    crowd=0.21, crowd_fill=115.0, outside=1.78, idle=0.3, latency=1057.0, hidden=0.10, multiply=1.14, step=11.1, store=149.0,
    store_line=0.69, store_straddling=0.64, store_narrow=0.29, stores_seen=0.74, last_store=1.96, split=239.0,
    split_block=164.0, split_sums=780.0, handover=1700.0, handover_sums=69.0, rest_wait=150.0, rest_sums=18.0, turn=1550.0,
    share_two=92.1, share_more=84.3, memory=5200.0, memory_reduction_major=0.08, memory_straddling=0.53, memory_narrow=0.16,
)


def features(s):
    """What the model needs of a schedule."""
    rows, columns, terms, (left, left_rm), (right, right_rm), result = of_schedule(s)
    length = {"a": s["k"], "b": s["n"], "c": s["n"]}
    # Cache lines that 128 bytes of a line touch, beyond one.
    beyond = {name: 1 - math.gcd(2 * length[name], 128) / 128 for name in "abc"}
    down, beside = ceil(rows, s["rows"]), ceil(columns, s["columns"])
    whole = lambda extent, row_major: 64 * ceil(extent, 64) if row_major else extent
    inside = [whole(rows, left_rm) / down, whole(columns, right_rm) / beside]
    f = {name: s[name] for name in ("down", "across", "split", "stages", "resident", "clusters", "pieces", "head", "part", "turns")}
    blocks = s["down"] * s["across"] * s["split"]
    return f | dict(
        blocks=blocks, slots=at_a_time(blocks, s["resident"]), tiles=s["tiles_down"] * s["tiles_across"], steps=ceil(terms, 64),
        left=inside[0], right=inside[1], outside_left=max(0, whole(s["rows"], left_rm) - inside[0]),
        outside_right=max(0, whole(s["columns"], right_rm) - inside[1]), beyond_left=beyond[left], beyond_right=beyond[right],
        beyond=beyond[result], tiles_of_rows=down, tiles_of_columns=beside, products=s["rows"] * s["columns"] / 64,
        sums=s["rows"] * s["columns"] / 4096, stored=rows / down * columns / beside / 64, waits=waits(s),
        idle=1 - down * beside / (s["tiles_down"] * s["tiles_across"] * s["down"] * s["across"]),
        pieces_of_line=64 / stored(s) - 1, left_reduction=not left_rm, right_reduction=not right_rm,
        left_bytes=2 * rows * terms, right_bytes=2 * columns * terms, bytes=2 * rows * columns,
        is_rest=s["deal"] == "rest", is_parts=s["deal"] == "parts", us=float(s.get("us", 0)))


def nanoseconds(f, m):
    """Estimates of many schedules: f has an array for each feature."""
    import numpy as np

    arrive = (f["left"] * (1 + m["arrival_straddling"] * f["beyond_left"])
              + f["right"] * (1 + m["arrival_straddling"] * f["beyond_right"])
              + m["outside"] * (f["outside_left"] + f["outside_right"]))
    left = f["left"] / f["across"] * (1 + m["request_straddling"] * f["beyond_left"])
    right = f["right"] / f["down"] * (1 + m["request_straddling"] * f["beyond_right"])
    outside = m["outside"] * (f["outside_left"] / f["across"] + f["outside_right"] / f["down"])
    first = (left * f["across"] / np.maximum(f["tiles_of_columns"], f["across"])
             + right * f["down"] / np.maximum(f["tiles_of_rows"], f["down"]))
    blocks = np.minimum(f["clusters"], f["slots"]) * f["blocks"]
    running = blocks / MULTIPROCESSORS
    doublings = [np.log2(np.maximum(1, np.minimum(asking, blocks)))
                 for asking in (f["tiles_of_columns"] / f["across"], f["tiles_of_rows"] / f["down"])]
    crowd = left * np.minimum(1, doublings[0] / 5) + right * np.minimum(1, doublings[1] / 5)
    shared = np.clip(running, 1, f["resident"])
    request = m["request"] * (left + right + outside) * np.sqrt(np.minimum(running, 1)) + m["from_memory"] * first
    request = request + m["crowd"] * crowd
    idle = 1 + m["idle"] * f["idle"]
    load = np.maximum(np.maximum(m["arrival"] * arrive, request) * shared, m["latency"] / f["stages"]) * idle
    multiply = (m["multiply"] * f["products"] + m["step"]) * shared * idle
    store = (m["store"] + m["store_line"] * f["stored"] * (1 + m["store_straddling"] * f["beyond"])
             * (1 + m["store_narrow"] * f["pieces_of_line"])) * shared
    split = f["split"] > 1
    parts = np.where(split, f["pieces"], 1)
    steps = np.where(split, np.ceil(f["steps"] / (f["split"] * parts)), f["steps"])
    rounds = np.ceil(f["tiles"] * parts / f["slots"])
    full = np.floor(f["tiles"] / f["slots"])
    stores = np.where(f["is_rest"], full + 1, rounds)
    rounds = np.where(f["is_rest"], full + np.maximum(f["head"], f["turns"] * f["part"]) / steps, rounds)
    loading, computing = rounds * steps * load, rounds * steps * multiply + stores * store * m["stores_seen"]
    work = np.maximum(loading, computing) + m["hidden"] * np.minimum(loading, computing)
    work = work + store * m["last_store"] + m["fill"] + m["crowd_fill"] * np.maximum(*doublings)
    work = work + split * ((rounds - 1) * m["fill"]
                           + rounds * (m["split"] + m["split_block"] * f["blocks"] + m["split_sums"] * f["sums"]))
    added = 8 * f["sums"] * f["pieces"] / np.where(split, f["blocks"], 1)
    work = work + f["is_rest"] * m["turn"] * np.sqrt(f["sums"]) * (np.maximum(f["turns"], 1) - 1)
    work = work + f["is_rest"] * (m["handover"] + m["rest_wait"] * f["waits"] + m["rest_sums"] * added)
    work = work + f["is_parts"] * (m["handover"] + m["handover_sums"] * added)
    work = work + np.where(split | (f["blocks"] == 1), 0, np.where(f["blocks"] == 2, m["share_two"], m["share_more"]))
    memory = (f["left_bytes"] * (1 + m["memory_reduction_major"] * f["left_reduction"])
              + f["right_bytes"] * (1 + m["memory_reduction_major"] * f["right_reduction"])
              + f["bytes"] * (1 + m["memory_straddling"] * f["beyond"] + m["memory_narrow"] * f["pieces_of_line"])) / m["memory"]
    return m["launch"] + np.cbrt((work**1.5 + memory**1.5) ** 2)


def arrays(found):
    import numpy as np

    found = [features(s) for s in found]
    return {name: np.array([f[name] for f in found]) for name in found[0]}


# ---- measuring -----------------------------------------------------------------------------------------------------

ARGUMENTS = """#pragma once
#include "portable.cuh"
namespace causeway { namespace gemm {
struct ResultByRows { u64 address; i64 row_stride; i32 rows; i32 columns; };
struct Shares { i32 row_tiles; i32 column_tiles; i32 steps; i32 band; i32 whole; u32 pieces; i32 head; i32 part; float* workspace; u32* counters; };
} }
"""


def source(s):
    """What the planner would have compiled for a schedule."""
    _, _, _, (_, left_rm), (_, right_rm), _ = of_schedule(s)
    flags = dict(bf16=True, left_row_major=left_rm, right_row_major=right_rm, left_by_rows=False, right_by_rows=False,
                 result_by_rows=False, result_transposed=s["transposed"] == 1, split=s["split"] > 1, shared_rest=s["deal"] != "whole")
    numbers = dict(tile_rows=s["rows"], tile_columns=s["columns"], stages=s["stages"], staging=s["staging"], raw_stages=0,
                   aligners=0, cluster=s["down"] * s["across"] * s["split"], share_rows=s["down"])
    constants = [f"static constexpr bool {name} = {str(value).lower()};" for name, value in flags.items()]
    constants += [f"static constexpr int {name} = {value};" for name, value in numbers.items()]
    return ('#include "gemm_wgmma.cuh"\nstruct Tile { ' + " ".join(constants) + " };\n"
            f"CAUSEWAY_KERNEL({s['rows'] * 2 + 32}, {s['resident']}) __cluster_dims__({numbers['cluster']}, 1, 1) "
            "gemm_wgmma(const __grid_constant__ causeway::gemm::Arguments<Tile> arguments) "
            "{ causeway::gemm::gemm_wgmma<Tile>(arguments); }\n")


def nvrtc():
    """NVRTC as PyTorch brings it, or the system's."""
    found = [path for base in sys.path for path in glob.glob(os.path.join(base, "nvidia/*/lib/libnvrtc.so.1[23]"))]
    return ctypes.CDLL(found[0] if found else "libnvrtc.so")


def compiled(job):
    text, folder = job
    library, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"tile.cu", 0, None, None)
    options = ["--gpu-architecture=sm_90a", "-std=c++17", "-DCAUSEWAY_WAVE_SIZE=32", "-I" + folder, "-I" + KERNELS]
    encoded = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    if library.nvrtcCompileProgram(program, len(options), encoded):
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.value.decode() + text)
    library.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    library.nvrtcGetCUBIN(program, code)
    return text, code.raw


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_int * 15)]


class Configuration(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]


class Device:
    """Launches schedules of one drawn size after the other."""

    ELEMENTS = 260_000_000

    def __init__(self, codes):
        import torch

        self.torch, self.codes, self.functions = torch, codes, {}
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.noise = torch.randn(64_000_037, device="cuda").to(torch.bfloat16)
        self.buffer = torch.empty(self.ELEMENTS, dtype=torch.bfloat16, device="cuda")
        self.workspace = torch.zeros(50_000_000, dtype=torch.float32, device="cuda")
        self.counters = torch.zeros(1 << 20, dtype=torch.int32, device="cuda")
        self.early = Attribute(6, 0, 1)  # programmatic stream serialization
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def check(self, status, what):
        if status:
            raise RuntimeError(f"{what}: CUDA error {status}")

    def sets(self, m, n, k):
        """Matrices that together are three times the L2 cache, with random numbers."""
        shapes = {"a": (m, k), "b": (k, n), "c": (m, n)}
        sizes = {name: ceil(shape[0] * shape[1], 128) * 128 for name, shape in shapes.items()}
        all_of_set = sum(sizes.values())
        for at in range(0, self.ELEMENTS, self.noise.numel()):
            part = self.buffer[at : at + self.noise.numel()]
            part.copy_(self.noise[: part.numel()])
        found = []
        for nth in range(max(2, min(160, ceil(190_000_000, 2 * all_of_set), self.ELEMENTS // all_of_set))):
            at, views = nth * all_of_set, {}
            for name, shape in shapes.items():
                views[name] = self.buffer[at : at + shape[0] * shape[1]].view(shape)
                at += sizes[name]
            found.append(views)
        return found

    def map(self, matrix, width, height):
        """A matrix as TMA takes it, in boxes."""
        encoded = (ctypes.c_uint64 * 32)()
        at = (ctypes.addressof(encoded) + 63) // 64 * 64
        lines, length = matrix.shape
        self.check(self.cuda.cuTensorMapEncodeTiled(
            ctypes.c_void_p(at), 9, 2, ctypes.c_void_p(matrix.data_ptr()), (ctypes.c_uint64 * 2)(length, lines),
            (ctypes.c_uint64 * 1)(length * 2), (ctypes.c_uint32 * 2)(width, height), (ctypes.c_uint32 * 2)(1, 1), 0,
            3 if width == 64 else 0, 2, 0), "cuTensorMapEncodeTiled")
        return ctypes.string_at(at, 128)

    def function(self, s):
        text = source(s)
        if text not in self.functions:
            module, function = ctypes.c_void_p(), ctypes.c_void_p()
            self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), self.codes[text]), "cuModuleLoadData")
            self.check(self.cuda.cuModuleGetFunction(ctypes.byref(function), module, b"gemm_wgmma"), "cuModuleGetFunction")
            self.check(self.cuda.cuFuncSetAttribute(function, 8, self.shared(s)), "cuFuncSetAttribute")
            self.functions[text] = function
        return self.functions[text]

    def shared(self, s):
        right_row_major = of_schedule(s)[4][1]
        right = 64 * ceil(s["columns"], 64) if right_row_major else s["columns"]
        return s["stages"] * ((s["rows"] + right) * 128 + 16) + s["staging"] * s["rows"] // 16 * 2048

    def launcher(self, s, sets):
        """A function that launches the schedule on one of the sets."""
        rows, columns, terms, (left, left_rm), (right, right_rm), result = of_schedule(s)
        function, shared, blocks = self.function(s), self.shared(s), s["down"] * s["across"] * s["split"]
        box = (stored(s), piece(s["columns"]) if s["transposed"] else 8 if s["split"] > 1 else 16)
        shares = struct.pack(
            "<iiiiiIiiQQ", s["tiles_down"], s["tiles_across"], ceil(terms, 64), max(1, 2048 // (s["rows"] * s["down"])),
            s["tiles_down"] * s["tiles_across"] - s["rest"], s["pieces"], s["head"], s["part"], self.workspace.data_ptr(),
            self.counters.data_ptr()) + bytes(16)
        arguments = [ctypes.create_string_buffer(
            self.map(v[left], 64, (64 if left_rm else s["rows"]) // s["across"])
            + self.map(v[right], 64, (64 if right_rm else s["columns"]) // s["down"])
            + self.map(v[result], *box) + shares, 448) for v in sets]
        pointers = [(ctypes.c_void_p * 1)(ctypes.addressof(argument)) for argument in arguments]
        configuration = Configuration(
            (ctypes.c_uint * 3)(s["clusters"] * blocks, 1, 1), (ctypes.c_uint * 3)(s["rows"] * 2 + 32, 1, 1), shared,
            self.stream.cuda_stream, ctypes.addressof(self.early), 1)

        def launch(nth, _alive=arguments):
            self.check(self.cuda.cuLaunchKernelEx(ctypes.byref(configuration), function, pointers[nth], None), "cuLaunchKernelEx")

        return launch

    def seconds(self, launch, sets, launches, rounds):
        """The least of some rounds, of a launch."""
        graph = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        with self.torch.cuda.graph(graph, stream=self.stream):
            for nth in range(launches):
                launch(nth % sets)
        times = []
        for _ in range(rounds + 1):
            self.events[0].record()
            graph.replay()
            self.events[1].record()
            self.events[1].synchronize()
            times.append(self.events[0].elapsed_time(self.events[1]) * 1e-3 / launches)
        return min(times[1:])

    def measure(self, call, m, n, k, candidates):
        """Yields each candidate with its time and torch's."""
        torch, sets = self.torch, self.sets(m, n, k)
        result = matrices(call, m, n, k)[5]

        def library(nth):
            a, b, c = (sets[nth][name] for name in "abc")
            if call == "forward":
                torch.mm(a, b, out=c)
            elif call == "grad-a":
                torch.mm(c, b.t(), out=a)
            else:
                torch.mm(a.t(), c, out=b)

        sample = lambda: sets[0][result].flatten()[:: max(1, sets[0][result].numel() // 400_000)].float()
        # By f32: a library that adds parts in bf16 is off by more than a schedule may be.
        a, b, c = (sets[0][name].float() for name in "abc")
        sets[0][result].copy_({"c": lambda: a @ b, "a": lambda: c @ b.t(), "b": lambda: a.t() @ c}[result]())
        expected = sample().clone()
        guess = max(2 * (m * k + k * n + m * n) / 4e12, 2 * m * n * k / 6.5e14, 2.5e-6)
        launches = len(sets) * ceil(4e-4, guess * len(sets)) if guess * len(sets) < 4e-4 else len(sets)
        launches = int(launches)
        theirs = self.seconds(library, len(sets), launches, 4)
        for s in candidates:
            launch = self.launcher(s, sets)
            sets[0][result].fill_(float("nan"))
            launch(0)
            apart = float((sample() - expected).norm() / expected.norm())
            if not apart < 6e-3:
                raise RuntimeError(f"{apart} apart from a product in f32: {s}")
            yield s | dict(us=f"{self.seconds(launch, len(sets), launches, 3) * 1e6:.2f}", library=f"{theirs * 1e6:.2f}")


def promising(call, m, n, k, most):
    """The schedules that are best by the model: of each cluster and deal the best one, then any."""
    import numpy as np

    found = list(schedules(call, m, n, k))
    order = np.argsort(nanoseconds(arrays(found), MODEL), kind="stable")
    kinds, first, others = set(), [], []
    for s in (found[at] for at in order):
        kind = (s["transposed"], s["rows"], s["columns"], s["resident"], s["down"], s["across"], s["split"], s["deal"])
        if kind not in kinds:
            kinds.add(kind)
            first.append(s)
        elif len(others) < 2:
            others.append(s)
    return first[: most - len(others)] + others


def measure(options):
    draw, work = random.Random(options.seed), []
    while len(work) < options.count * len(CALLS):
        m, n, k = product(draw, False)["shape"]
        if 2 * (m * k + k * n + m * n + 384) <= Device.ELEMENTS and 2 * m * n * k <= 1e12:
            work += [(call, m, n, k, promising(call, m, n, k, options.schedules)) for call in CALLS]
    folder = os.path.join(os.path.dirname(os.path.abspath(options.files[0])), "tune-arguments")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "arguments.cuh"), "w") as file:
        file.write(ARGUMENTS)
    texts = dict.fromkeys(source(s) for *_, candidates in work for s in candidates)
    with get_context("fork").Pool() as pool:
        device = Device(dict(pool.map(compiled, [(text, folder) for text in texts])))
    with open(options.files[0], "w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS, delimiter="\t")
        rows.writeheader()
        for job in work:
            rows.writerows(device.measure(*job))
            file.flush()


# ---- fitting -------------------------------------------------------------------------------------------------------


def fit(options):
    import numpy as np

    found = []
    for name in options.files:
        with open(name, newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                row.setdefault("transposed", 0)
                found.append({key: value if key in ("call", "deal") else float(value) if key in ("us", "library") else int(value)
                              for key, value in row.items()})
    f, us = arrays(found), np.array([s["us"] for s in found])
    numbers = {}
    group = np.array([numbers.setdefault((s["m"], s["n"], s["k"], s["call"]), len(numbers)) for s in found])
    best = np.full(len(numbers), np.inf)
    np.minimum.at(best, group, us)
    weight = (best[group] / us) ** 3

    def chosen(estimate):
        least = np.full(len(numbers), np.inf)
        np.minimum.at(least, group, estimate)
        at = np.zeros(len(numbers), int)
        hits = np.where(estimate == least[group])[0]
        at[group[hits]] = hits
        return at

    def loss(m):
        estimate = nanoseconds(f, m) * 1e-3
        error = np.log(estimate / us)
        level = np.bincount(group, weight * error) / np.bincount(group, weight)
        within = (weight * np.minimum(np.abs(error - level[group]), 0.4) ** 1.5).sum() / weight.sum()
        beyond = np.log(us[chosen(estimate)] / best).mean()
        drift = sum(math.log(m[name] / MODEL[name]) ** 2 for name in m)
        return within + 0.1 * np.minimum(np.abs(level), 0.5).mean() + 0.7 * beyond + 0.0012 * drift

    draw, m = random.Random(1), dict(MODEL)
    least = now = loss(m)
    fitted = dict(m)
    free = [name for name in m if name not in ("multiply", "hidden")]
    for turn in range(options.turns):
        other = dict(m)
        for name in draw.sample(free, draw.choice([1, 1, 2, 3])):
            other[name] *= math.exp(draw.gauss(0, 0.12))
        then = loss(other)
        if then < now or draw.random() < math.exp((now - then) / (0.0015 * (1 - turn / options.turns) + 1e-9)):
            now, m = then, other
            if then < least:
                least, fitted = then, dict(other)
    for name, value in fitted.items():
        print(f"    {name}: {value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}{'.0' if value >= 100 else ''},")
    at, library = chosen(nanoseconds(f, fitted)), np.array([s["library"] for s in found])
    mean = lambda ratio: math.exp(np.log(ratio).mean())
    print(f"{len(found)} schedules of {len(numbers)} products: chosen {mean(us[at] / best):.3f} of the best; of torch.mm chosen "
          f"{mean(us[at] / library[at]):.3f}, best {mean(best / library[at]):.3f}", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("action", choices=["measure", "fit"], help="measure schedules on a GPU, or fit the model to measurements")
    parser.add_argument("files", nargs="+", help="where measurements go (one file), or come from")
    parser.add_argument("--seed", type=int, default=1, help="of the sizes that are drawn")
    parser.add_argument("--count", type=int, default=60, help="sizes to draw")
    parser.add_argument("--schedules", type=int, default=14, help="of each product that are measured")
    parser.add_argument("--turns", type=int, default=20000, help="changes of the constants that a fit tries")
    options = parser.parse_args()
    {"measure": measure, "fit": fit}[options.action](options)


if __name__ == "__main__":
    main()
