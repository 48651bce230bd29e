"""The Triton kernels compile for Hopper (sm_90) on a machine without a GPU, and fit its registers and shared memory.

Triton's interpreter, in which the other tests run them there, takes much that its compiler does not. Compiling needs
TRITON_INTERPRET unset when a kernel is imported, so it happens in a process of its own: this file, run as a program.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0}
EXPERTS = {"k": 2048, "n": 768, "num_experts": 128, "top_k": 8}
CASES: dict[str, tuple[str, str, str, dict[str, int]]] = {
    "decode": ("attention_decode", "bf16", "bf16", {**HEADS, "batch": 1, "q": 1, "context": 4096, "tree": 0}),
    "tree": ("attention_decode", "bf16", "fp8", {**HEADS, "batch": 2, "q": 8, "context": 2048, "tree": 1}),
    "prefill": ("attention_prefill", "bf16", "bf16", {**HEADS, "batch": 1, "q": 1024, "context": 1024}),
    "moe of few": ("moe", "bf16", "", {**EXPERTS, "m": 4}),
    "moe of many": ("moe", "fp8", "", {**EXPERTS, "m": 256, "num_experts": 8}),
    "ngram": ("ngram", "", "", {"batch": 4, "context": 3000}),
}
SHARED_BYTES = 227 * 1024
"""What a program may have on an H100 or H200."""


def compiled(case: str) -> list[dict[str, Any]]:
    """Every kernel that one launch of the case starts: its name, and what ptxas says it takes."""
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.jit import JITFunction

    from draftcast.kernels.operators import attention, linear
    from draftcast.kernels.operators.triton import attention as triton_attention
    from draftcast.kernels.operators.triton import moe as triton_moe
    from draftcast.kernels.operators.triton import ngram as triton_ngram
    from draftcast.kernels.search import ngram

    families: dict[str, tuple[Any, Any]] = {
        "attention_decode": (attention.ATTENTION_DECODE, triton_attention),
        "attention_prefill": (attention.ATTENTION_PREFILL, triton_attention),
        "moe": (linear.MOE, triton_moe),
        "ngram": (ngram.NGRAM, triton_ngram),
    }
    name, dtype, kv_dtype, shape = CASES[case]
    operator, kernels = families[name]
    pointers = {
        torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float8_e4m3fn: "*fp8e4nv", torch.int32: "*i32",
        torch.int64: "*i64",
    }  # fmt: skip
    found = []

    def compile_instead(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        given = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
        signature, constants, attributes = {}, {}, {}
        for index, parameter in enumerate(kernel.params):
            value = given.pop(parameter.name)
            if parameter.is_constexpr:
                signature[parameter.name], constants[(index,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[parameter.name], attributes[(index,)] = pointers[value.dtype], [["tt.divisibility", 16]]
            elif isinstance(value, int):
                signature[parameter.name] = "i32" if value < 2**31 else "i64"
                # As a launch does: what divides by 16 is known to.
                if value % 16 == 0:
                    attributes[(index,)] = [["tt.divisibility", 16]]
            else:
                signature[parameter.name] = "fp32"
        source = ASTSource(kernel, signature, constants, attributes)
        binary = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=given)
        found.append({"name": kernel.fn.__name__, "shared": binary.metadata.shared, **taken(binary.asm["cubin"])})

    JITFunction.run = compile_instead
    generator = torch.Generator().manual_seed(0)
    inputs = operator.make_inputs(shape, dtype, kv_dtype, "cpu", generator)
    kernels.prepare(inputs, operator.make_outputs(inputs))()
    return found


def taken(cubin: bytes) -> dict[str, int]:
    """Registers and bytes of stack (spilled registers) of a compiled kernel."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert match, said
    return {"registers": int(match[1]), "stack": int(match[2])}


@pytest.fixture(scope="module")
def kernels() -> dict[str, list[dict[str, Any]]]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("case", CASES)
def test_kernels_compile_for_hopper_and_fit(case: str, kernels: dict[str, list[dict[str, Any]]]) -> None:
    assert kernels[case]
    for kernel in kernels[case]:
        assert kernel["shared"] <= SHARED_BYTES, kernel
        assert kernel["stack"] <= 64, kernel  # a few registers spilled


def test_all_kernels_of_a_launch_are_compiled(kernels: dict[str, list[dict[str, Any]]]) -> None:
    names = {case: [kernel["name"] for kernel in found] for case, found in kernels.items()}
    assert names["decode"] == ["_attend", "_combine"]
    assert names["prefill"] == ["_attend"]
    assert names["moe of few"] == ["_count", "_sort", "_gate_up", "_down", "_sum"]
    assert names["ngram"] == ["_search", "_draft"]


if __name__ == "__main__":
    print(json.dumps({case: compiled(case) for case in CASES}))
