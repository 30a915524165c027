"""Keeps PyTorch and TensorFlow inside the GPU share that this task holds.

Python imports this file at its start. It waits for the framework to be
imported, then sets the memory limit; it never imports a framework itself, and
it never makes a program fail: what goes wrong is one line on stderr.

  GPU_MEMORY_FRACTION   part of the share that the framework may take, 0 to 1
  GPU_MEMORY_SHARE_MIB  the share of each GPU; absent: the whole device
  GPU_MEMORY_MODE       conservative, aggressive or dynamic
  GPU_VENDOR            amd, intel or huawei; absent: NVIDIA
  GPU_MIXED_PRECISION   bf16 or fp16; absent: leave precision alone
"""
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

MIB = 1 << 20


def _say(text):
    sys.stderr.write("gpu share: %s\n" % text)


def _fraction():
    return float(os.environ.get("GPU_MEMORY_FRACTION", "1"))


def _share_mib():
    return int(os.environ.get("GPU_MEMORY_SHARE_MIB", "0"))


def limit_mib(total_mib):
    """MiB that the framework may take of a device of total_mib."""
    share = _share_mib() or total_mib
    return int(min(share, total_mib) * _fraction())


def _limit(backend):
    for device in range(backend.device_count()):
        total = backend.get_device_properties(device).total_memory
        part = limit_mib(total / MIB) * MIB / total
        if part < 1:
            backend.set_per_process_memory_fraction(part, device)


def _torch(torch):
    # ROCm's builds call their devices CUDA's, Intel's are XPUs.
    backend = torch.xpu if os.environ.get("GPU_VENDOR") == "intel" else torch.cuda
    # Runs when the program first uses a device, or at once if it already did:
    # initialising it here would break programs that fork.
    backend._lazy_call(lambda: _limit(backend))


def _torch_npu(torch_npu):
    torch_npu.npu._lazy_call(lambda: _limit(torch_npu.npu))


def _tensorflow(tf):
    for device in tf.config.list_physical_devices("GPU"):
        if os.environ.get("GPU_MEMORY_MODE") == "dynamic":
            tf.config.experimental.set_memory_growth(device, True)
            continue
        share = _share_mib() or _device_mib(tf, device)
        if share:
            tf.config.set_logical_device_configuration(
                device, [tf.config.LogicalDeviceConfiguration(memory_limit=int(share * _fraction()))])
    precision = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}.get(os.environ.get("GPU_MIXED_PRECISION"))
    if precision:
        tf.keras.mixed_precision.set_global_policy(precision)


def _device_mib(tf, device):
    """Size of a whole device, from NVIDIA's tool; 0 when it cannot be told."""
    import subprocess
    index = int(device.name.rsplit(":", 1)[1])
    try:
        sizes = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            check=True, capture_output=True, text=True, timeout=10).stdout.split()
        return int(sizes[index])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        tf.config.experimental.set_memory_growth(device, True)
        return 0


_AFTER = {"torch": _torch, "tensorflow": _tensorflow}
if os.environ.get("GPU_VENDOR") == "huawei":
    _AFTER["torch_npu"] = _torch_npu
    del _AFTER["torch"]


class _Loader(importlib.abc.Loader):
    def __init__(self, loader, after):
        self._loader, self._after = loader, after

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        try:
            self._after(module)
        except Exception as problem:  # the program must run, limited or not
            _say("%s keeps its own memory settings: %s" % (module.__name__, problem))

    def __getattr__(self, name):
        return getattr(self._loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        after = _AFTER.pop(name, None)
        if after is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, after)
        return spec


def _next_sitecustomize():
    """Runs the file of this name that this one stands in front of."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, _Finder())
_next_sitecustomize()
