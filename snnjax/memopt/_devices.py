"""The GPUs a plan can be made for without having one: their figures, as frozen data.

XLA's compiler needs them to compile for a card that is not there, and a roofline needs
the peaks. Peaks are dense (no structured sparsity) and at boost clock, as on the data
sheets; memory is what nvidia-smi shows. Limits of a multiprocessor by compute
capability are from the CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability".
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class DeviceSpec:
    """One GPU: what XLA's `GpuTargetConfig` asks for, and its peak rates.

    Args:
        name: by which `device` arguments know it.
        description: the product's name, as its driver gives it.
        compute_capability: CUDA's version of the architecture, (major, minor).
        sm_count: streaming multiprocessors (SMs).
        fpus_per_sm: float32 units of each.
        clock_ghz: boost clock.
        memory_bytes, memory_bandwidth: of the device memory; bytes, and per second.
        l2_bytes: of the cache that all SMs share.
        shared_bytes_per_sm: of an SM's shared memory.
        shared_bytes_per_block_optin: the most that a thread block may ask for.
        threads_per_sm: that an SM can hold.
        fp32_flops: float32 operations per second outside the tensor cores.
        tf32_flops, bf16_flops: of these; None where they lack the format.
        shared_bytes_per_block: the most that a block has without asking.
        registers_per_sm: of 32 bits.
    """

    name: str
    description: str
    compute_capability: tuple[int, int]
    sm_count: int
    fpus_per_sm: int
    clock_ghz: float
    memory_bytes: int
    memory_bandwidth: float
    l2_bytes: int
    shared_bytes_per_sm: int
    shared_bytes_per_block_optin: int
    threads_per_sm: int
    fp32_flops: float
    tf32_flops: float | None
    bf16_flops: float | None
    shared_bytes_per_block: int = 48 * 2**10
    registers_per_sm: int = 65536


_SPECS = (
    # NVIDIA H200 data sheet (SXM); NVIDIA H100 Tensor Core GPU Architecture whitepaper.
    DeviceSpec(
        name="h200",
        description="NVIDIA H200",
        compute_capability=(9, 0),
        sm_count=132,
        fpus_per_sm=128,
        clock_ghz=1.98,
        memory_bytes=143771 * 2**20,
        memory_bandwidth=4.8e12,
        l2_bytes=50 * 2**20,
        shared_bytes_per_sm=228 * 2**10,
        shared_bytes_per_block_optin=227 * 2**10,
        threads_per_sm=2048,
        fp32_flops=67e12,
        tf32_flops=494.5e12,
        bf16_flops=989.5e12,
    ),
    # NVIDIA H100 data sheet (SXM, 80 GB); the same whitepaper.
    DeviceSpec(
        name="h100",
        description="NVIDIA H100 80GB HBM3",
        compute_capability=(9, 0),
        sm_count=132,
        fpus_per_sm=128,
        clock_ghz=1.98,
        memory_bytes=81559 * 2**20,
        memory_bandwidth=3.35e12,
        l2_bytes=50 * 2**20,
        shared_bytes_per_sm=228 * 2**10,
        shared_bytes_per_block_optin=227 * 2**10,
        threads_per_sm=2048,
        fp32_flops=67e12,
        tf32_flops=494.5e12,
        bf16_flops=989.5e12,
    ),
    # NVIDIA A100 data sheet (SXM, 80 GB); NVIDIA A100 Tensor Core GPU Architecture
    # whitepaper.
    DeviceSpec(
        name="a100",
        description="NVIDIA A100-SXM4-80GB",
        compute_capability=(8, 0),
        sm_count=108,
        fpus_per_sm=64,
        clock_ghz=1.41,
        memory_bytes=81920 * 2**20,
        memory_bandwidth=2.039e12,
        l2_bytes=40 * 2**20,
        shared_bytes_per_sm=164 * 2**10,
        shared_bytes_per_block_optin=163 * 2**10,
        threads_per_sm=2048,
        fp32_flops=19.5e12,
        tf32_flops=156e12,
        bf16_flops=312e12,
    ),
    # NVIDIA Ada GPU Architecture whitepaper, appendix on the GeForce RTX 4090.
    DeviceSpec(
        name="rtx4090",
        description="NVIDIA GeForce RTX 4090",
        compute_capability=(8, 9),
        sm_count=128,
        fpus_per_sm=128,
        clock_ghz=2.52,
        memory_bytes=24564 * 2**20,
        memory_bandwidth=1.008e12,
        l2_bytes=72 * 2**20,
        shared_bytes_per_sm=100 * 2**10,
        shared_bytes_per_block_optin=99 * 2**10,
        threads_per_sm=1536,
        fp32_flops=82.6e12,
        tf32_flops=82.6e12,
        bf16_flops=165.2e12,
    ),
    # NVIDIA L4 data sheet; NVIDIA Ada GPU Architecture whitepaper (AD104).
    DeviceSpec(
        name="l4",
        description="NVIDIA L4",
        compute_capability=(8, 9),
        sm_count=58,
        fpus_per_sm=128,
        clock_ghz=2.04,
        memory_bytes=23034 * 2**20,
        memory_bandwidth=300e9,
        l2_bytes=48 * 2**20,
        shared_bytes_per_sm=100 * 2**10,
        shared_bytes_per_block_optin=99 * 2**10,
        threads_per_sm=1536,
        fp32_flops=30.3e12,
        tf32_flops=60e12,
        bf16_flops=121e12,
    ),
    # NVIDIA T4 data sheet; NVIDIA Turing GPU Architecture whitepaper. Its tensor cores
    # know neither TF32 nor BF16.
    DeviceSpec(
        name="t4",
        description="Tesla T4",
        compute_capability=(7, 5),
        sm_count=40,
        fpus_per_sm=64,
        clock_ghz=1.59,
        memory_bytes=15360 * 2**20,
        memory_bandwidth=320e9,
        l2_bytes=4 * 2**20,
        shared_bytes_per_sm=64 * 2**10,
        shared_bytes_per_block_optin=64 * 2**10,
        threads_per_sm=1024,
        fp32_flops=8.1e12,
        tf32_flops=None,
        bf16_flops=None,
    ),
)

DEVICES: dict[str, DeviceSpec] = {spec.name: spec for spec in _SPECS}

# runtime_version must be there: without it XLA's GPU compiler refuses the description.
_TARGET_CONFIG = """\
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: {spec.shared_bytes_per_block}
  shared_memory_per_core: {spec.shared_bytes_per_sm}
  shared_memory_per_block_optin: {spec.shared_bytes_per_block_optin}
  threads_per_core_limit: {spec.threads_per_sm}
  core_count: {spec.sm_count}
  fpus_per_core: {spec.fpus_per_sm}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: {spec.l2_bytes}
  clock_rate_ghz: {spec.clock_ghz}
  device_memory_size: {spec.memory_bytes}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: {spec.registers_per_sm}
  registers_per_block_limit: {spec.registers_per_sm}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
runtime_version {{ major: 12 minor: 9 }}
device_description_str: "{spec.description}"
"""


def device_spec(name: str) -> DeviceSpec:
    """The figures of the GPU called `name`.

    Args:
        name: One of `DEVICES`, for example "rtx4090".

    Returns:
        Its `DeviceSpec`.

    Raises:
        ValueError: There is no such name; the message lists those there are.
    """
    if name in DEVICES:
        return DEVICES[name]
    raise ValueError(
        f"`device` is {name!r}; it must be one of {', '.join(map(repr, DEVICES))}. "
        "For another GPU pass a `DeviceSpec` with its figures."
    )


def target_config(spec: DeviceSpec) -> str:
    """XLA's `GpuTargetConfig` text proto for the GPU that `spec` describes."""
    major, minor = spec.compute_capability
    return _TARGET_CONFIG.format(
        spec=spec, major=major, minor=minor, bandwidth=int(spec.memory_bandwidth)
    )
