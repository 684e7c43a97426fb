"""Profile a step on a GPU: the slowest kernels with and without ours, and the distance from the lower bound.

    python benchmarks/step_profile.py --out benchmarks/results/step_profile.json

The lower bound ("floor") is the time of the necessary work: the step's products at the speed of a large matrix
product, and its bytes (each layer's output written and read once, forward and backward; weights, gradients and momentum
once) at the speed of a large copy, both measured on the same device.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from paper_round import CLASSES, SHAPE, draw_images
from torch.profiler import ProfilerActivity, profile

from feddig.core.algorithms import Correction
from feddig.core.cuda_graphs import RecordedStep, Recorder
from feddig.core.local import Step, Trainee
from feddig.core.samples import DigestSource, ImageSource, Source
from feddig.digest.digest import Digest
from feddig.experiment.setup import choose_device, describe_device, prepare_device
from feddig.gpu.fused import use_kernels
from feddig.models.encoder import feature_shape, load_encoder
from feddig.models.flat import FlatNetwork
from feddig.models.networks import build_classifier, build_guidance
from feddig.settings import TrainingSettings

BATCH, IMAGES = 256, 40_000
VARIANTS = {
    "eager, fp32, torch's kernels": ("fp32", False, False),
    "recorded, fp32, torch's kernels": ("fp32", True, False),
    "recorded, bf16, torch's kernels": ("bf16", True, False),
    "recorded, fp32, our kernels": ("fp32", True, True),
    "recorded, bf16, our kernels": ("bf16", True, True),
}


def sources(device: torch.device, kind: str, guidance: FlatNetwork | None) -> Source:
    """Return the input of a step of this kind: images, images with features, or digests."""
    images = draw_images(IMAGES)
    if kind == "joint":
        assert guidance is not None
        labels = torch.rand(IMAGES, CLASSES, device=device).softmax(1)
        digest = Digest(0, 60 * torch.rand(IMAGES, 4, 8, 8, device=device), labels, {"samples_per_digest": 4})
        return DigestSource([digest], guidance.module, train_guidance=True)
    encoder = load_encoder("default", 1).to(device) if kind == "silo" else None
    return ImageSource(images, encoder, device)


def build_step(device: torch.device, kind: str, precision: str, *, recorded: bool) -> Step:
    """Build one step: a silo's in FedAvg (plain), a silo's in FedDig (silo), or a joint one."""
    torch.manual_seed(0)
    code = None if kind == "plain" else feature_shape(load_encoder("default", 1), SHAPE)
    bf16 = precision == "bf16"
    trainees = [
        Trainee(FlatNetwork(build_classifier("size-matched", SHAPE, CLASSES, code), device, bf16=bf16), 0.001)
    ]
    guidance = None
    if kind == "joint":
        assert code is not None
        guidance = FlatNetwork(build_guidance("deconvolution", code, SHAPE), device, bf16=bf16)
        trainees.append(Trainee(guidance, 0.001))
    source = sources(device, kind, guidance)
    training, correction = TrainingSettings(batch=BATCH, precision=precision), Correction()
    step = (
        Recorder().step(trainees, source, training, correction)
        if recorded
        else Step(trainees, source, training, correction)
    )
    assert isinstance(step, RecordedStep) == recorded
    step.begin(correction)
    return step


def per_step(step: Step, rows: torch.Tensor, repeats: int = 5) -> list[float]:
    """Return the milliseconds per step of several measurements."""
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        steps = step.run(rows, BATCH)
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - started) / steps)
    return times[1:]


def heaviest(step: Step, rows: torch.Tensor, count: int) -> list[dict[str, Any]]:
    """List the slowest kernels of a step."""
    with profile(activities=[ProfilerActivity.CUDA]) as watched:
        steps = step.run(rows[: 20 * BATCH], BATCH)
        torch.cuda.synchronize()
    events = [event for event in watched.key_averages() if event.self_device_time_total > 0]
    events.sort(key=lambda event: -event.self_device_time_total)
    return [
        {"kernel": event.key[:100], "us": event.self_device_time_total / steps, "times": event.count / steps}
        for event in events[:count]
    ]


def rates(device: torch.device) -> dict[str, float]:
    """Measure the two speed limits: bytes per second of a large copy, products per second of a large matrix product."""
    large = torch.empty(2**30, dtype=torch.uint8, device=device)
    other = torch.empty_like(large)
    left = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    copied = _seconds(lambda: other.copy_(large))
    multiplied = _seconds(lambda: left @ left)
    return {"bytes": 2 * large.numel() / copied, "flops": 2 * 8192**3 / multiplied}


def floor(kind: str, rate: dict[str, float]) -> dict[str, float]:
    """Compute a step's necessary bytes (two per number, four per weight) and operations, and their time."""
    layers = [(1, 64, 32), (64, 64, 16), (64, 128, 8)]
    if kind != "plain":
        layers += [(4, 32, 8), (32, 128, 4), (128, 128, 2)]
    width = 2048 if kind == "plain" else 2176
    values = sum(outputs * (side // 2) ** 2 for _, outputs, side in layers) + 512 + CLASSES
    weights = sum(inputs * outputs * 9 for inputs, outputs, _ in layers) + width * 512 + 512 * CLASSES
    products = sum(inputs * outputs * 9 * side**2 for inputs, outputs, side in layers)
    products += width * 512 + 512 * CLASSES
    moved = BATCH * (1024 + 4 * 2 * values) + weights * (4 * 6 + 2 * 2)
    worked = 3 * 2 * BATCH * products
    return {
        "bytes": moved,
        "flops": worked,
        "ms": 1000 * max(moved / rate["bytes"], worked / rate["flops"]),
        "ms_one_after_the_other": 1000 * (moved / rate["bytes"] + worked / rate["flops"]),
    }


def main() -> None:
    """Measure every variant of every kind of step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--kernels", type=int, default=12, help="the number of slowest kernels to list")
    options = parser.parse_args()
    device = choose_device("cuda")
    rate = rates(device)
    rows = torch.randperm(IMAGES, device=device)[: 120 * BATCH]
    found: dict[str, Any] = {}
    for kind in ("plain", "silo", "joint"):
        least = floor(kind, rate)
        found[kind] = {"floor": least, "variants": {}}
        print(f"{kind}: floor {least['ms']:.3f} ms", flush=True)
        for name, (precision, recorded, kernels) in VARIANTS.items():
            prepare_device(precision, device)
            if not recorded:
                torch.backends.cudnn.allow_tf32 = True  # torch's own default
            use_kernels(kernels)
            with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
                step = build_step(device, kind, precision, recorded=recorded)
                times = per_step(step, rows)
                listed = heaviest(step, rows, options.kernels)
            middle = statistics.median(times)
            found[kind]["variants"][name] = {
                "ms": middle,
                "least": min(times),
                "most": max(times),
                "floors": middle / least["ms"],
                "kernels": listed,
            }
            print(f"  {name:34} {middle:.3f} ms ({min(times):.3f} to {max(times):.3f})", flush=True)
            for kernel in listed[:4]:
                print(f"      {kernel['us']:7.1f} us  {kernel['kernel'][:80]}")
    result = {
        "format_version": 1,
        "command": "python benchmarks/step_profile.py",
        "batch": BATCH,
        "rates": rate,
        "device": describe_device(device),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "steps": found,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def _seconds(work: Callable[[], object]) -> float:
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(10):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / 10


if __name__ == "__main__":
    main()
