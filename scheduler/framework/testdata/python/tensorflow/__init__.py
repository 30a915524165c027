"""Stands in for TensorFlow: one device, and a record of what is set."""
calls = []


class _Device:
    name = "/physical_device:GPU:0"


class config:
    LogicalDeviceConfiguration = staticmethod(lambda memory_limit: memory_limit)

    @staticmethod
    def list_physical_devices(kind):
        return [_Device]

    @staticmethod
    def set_logical_device_configuration(device, limits):
        calls.append(("limit", limits[0]))

    class experimental:
        @staticmethod
        def set_memory_growth(device, on):
            calls.append(("growth", on))


class keras:
    class mixed_precision:
        @staticmethod
        def set_global_policy(name):
            calls.append(("policy", name))
