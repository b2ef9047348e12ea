"""Initialisers by name. Ports fail on these scales: torch's linear layer starts at std 1 / sqrt(3 fan_in), Flax's at
1 / sqrt(fan_in); torch's embedding at std 1, Flax's at 1 / sqrt(width)."""

from flax.linen import initializers

from e2h.registry import setting

KERNELS = {
    "lecun_normal": initializers.lecun_normal(),  # std 1 / sqrt(fan_in), cut at two std (Flax's default)
    "torch_uniform": initializers.variance_scaling(1 / 3, "fan_in", "uniform"),  # U(+-1 / sqrt(fan_in))
    "xavier_uniform": initializers.xavier_uniform(),
    "normal_0.02": initializers.normal(0.02),
    "normal_1": initializers.normal(1.0),  # of any other std with --init_scale
}


def kernel_setting(default: str):
    return setting(default, "initialiser of the matrices", choices=KERNELS)
